// What one batch norm layer is.
#ifndef LOCKSTEP_SYNCBN_BATCH_NORM_OPTIONS_H_
#define LOCKSTEP_SYNCBN_BATCH_NORM_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "syncbn/batch_norm_semantics.h"

namespace lockstep {

struct BatchNormOptions {
  int64_t channels = 1;
  BatchNormSemantics semantics = kTorchBatchNorm;
  double epsilon = 1e-5;  // Added to the variance before its root is taken.
  // In [0, 1], with the meaning that the semantics give it. Without a value the
  // running statistics are the plain average over all batches so far.
  std::optional<double> momentum = kTorchBatchNorm.default_momentum;
  bool affine = true;               // y = weight * normalised + bias.
  bool track_running_stats = true;  // Else evaluation uses the batch's own.
};

// Errors: kInvalidArgument, naming the field and its value: channels outside
// [1, 2^31 - 1], an epsilon that is negative or not finite, a momentum outside
// [0, 1].
absl::Status CheckBatchNormOptions(const BatchNormOptions& options);

// The weight w of a batch in running = (1 - w) * running + w * batch. batches:
// how many have entered, this one included; at least 1.
double WeightOfBatch(const BatchNormOptions& options, int64_t batches);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_NORM_OPTIONS_H_
