// A network and its loss as a Model, and how many threads it computes on.
#ifndef LOCKSTEP_MODELS_CPU_CLASSIFIER_H_
#define LOCKSTEP_MODELS_CPU_CLASSIFIER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "models/model.h"

namespace lockstep {

struct Layer;
struct Shape;

// Sets how many OpenMP threads oneDNN uses for what the calling thread computes
// from now on; each rank thread calls it for itself. count: at least 1.
void SetComputeThreads(int count);

// Sums -log softmax(logits)[label] over the samples and counts the samples
// whose label has the highest logit: of equal ones the first counts, and a
// sample with a NaN is never correct.
//
// logits: host float32 [n, classes], row-major. labels: host [n], each in
// [0, classes) (a precondition). gradient: host float32
// [n, classes], overwritten with gradient_scale * (softmax - onehot), rounded
// once from float64, may be `logits` itself; or empty: not wanted.
Metrics SoftmaxCrossEntropy(std::span<const float> logits,
                            std::span<const int32_t> labels, int64_t classes,
                            float gradient_scale, std::span<float> gradient);

// A layer and the loss made into a Model.
//
// sample: the shape of one image, n = 1; c = 1, so that the images of a Batch
// lie as the layers want them. network: from [n, 1, h, w] to [n, classes, 1, 1]
// logits. The model plans for a batch size when it first meets it and keeps
// the plans of the last few; errors of planning come from that call, and so
// do kResourceExhausted if there is no memory for the plan or its activations
// and kInternal if the network gives another number of logits.
//
// Runs on the calling thread's OpenMP threads, whose number must not change
// once the model is in use. With the same number, the same inputs give the same
// bits in every run and replica.
std::unique_ptr<Model> CreateClassifier(const Shape& sample, int64_t classes,
                                        Parameters parameters, Buffers buffers,
                                        Layer network);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_CLASSIFIER_H_
