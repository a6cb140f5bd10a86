// What a training run ends with, down to the bit, in a form to compare.
#ifndef LOCKSTEP_CONFORMANCE_TRAINED_BITS_H_
#define LOCKSTEP_CONFORMANCE_TRAINED_BITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep {

// A run on BlobDataset, with SyncBatchNorm where the model has batch norm.
// Images are dealt unevenly: 2, 2, 1, 1 a step to 4 ranks.
struct BitsRun {
  std::string model = "lenet";
  int64_t bucket_bytes = 64 << 10;
  int64_t steps = 20;
  int64_t batch_size = 6;  // Global.
  float learning_rate = 0.02f;
};

// Trains on this rank of `group` with the product's trainer and returns a line
// for each step, with the bits of this rank's loss, and one for each parameter
// and buffer at the end, with a 64-bit digest of its bits (FNV-1a; two that
// differ have the same one with a chance of 2^-64). Errors: the trainer's.
absl::StatusOr<std::string> TrainedBits(Communicator& group,
                                        const BitsRun& run);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_TRAINED_BITS_H_
