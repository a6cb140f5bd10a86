// A layer and a loss made into a Model.
#ifndef LOCKSTEP_MODELS_CPU_CLASSIFIER_H_
#define LOCKSTEP_MODELS_CPU_CLASSIFIER_H_

#include <cstdint>
#include <memory>

#include "models/buffers.h"
#include "models/cpu/layer.h"
#include "models/cpu/shape.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {

// sample: the shape of one image, n = 1; c = 1, so that the images of a Batch
// lie as the layers want them. network: from [n, 1, h, w] to [n, classes, 1, 1]
// logits. The model plans for a batch size when it first meets it and keeps
// the plans of the last few; errors of planning come from that call, and so
// do kResourceExhausted if there is no memory for its activations and kInternal
// if the network gives another number of logits.
//
// Runs on the calling thread's OpenMP threads, whose number must not change
// once the model is in use. With the same number, the same inputs give the same
// bits in every run and replica.
std::unique_ptr<Model> CreateClassifier(const Shape& sample, int64_t classes,
                                        Parameters parameters, Buffers buffers,
                                        std::unique_ptr<Layer> network);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_CLASSIFIER_H_
