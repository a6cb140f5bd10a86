// A check that all ranks train on the same data.
#ifndef LOCKSTEP_MODELS_TRAIN_SAME_DATA_H_
#define LOCKSTEP_MODELS_TRAIN_SAME_DATA_H_

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "models/data/load_dataset.h"

namespace lockstep {

// Checks that every rank has loaded the same images: the same number of each
// part, with the same labels and files, by name and folder, in the same order.
// Pixels are not compared. Every rank must call this function. Errors:
// kInvalidArgument, the same on every rank, naming the first rank that differs
// from rank 0; the communicator's. Cost: a look at each label and file name,
// and an AllGather of three numbers.
absl::Status CheckSameData(Communicator& communicator,
                           const DatasetParts& data);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_SAME_DATA_H_
