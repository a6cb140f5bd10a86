// What a trainer needs of a network.
#ifndef LOCKSTEP_MODELS_MODEL_H_
#define LOCKSTEP_MODELS_MODEL_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/buffers.h"
#include "models/parameters.h"

namespace lockstep {

// A micro-batch. Borrowed for the duration of a call.
struct Batch {
  std::span<const float> images;    // Host [n, c, h, w], row-major.
  std::span<const int32_t> labels;  // Host [n], each in [0, classes).
};

// Sums over samples, so that they add up over batches and ranks.
struct Metrics {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t samples = 0;

  Metrics& operator+=(const Metrics& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
};

// One replica of a classifier trained with softmax cross-entropy. Not thread
// safe. Any batch size from 0 up; work space grows to the largest seen.
class Model {
 public:
  // Called with a parameter's index once its gradient is final.
  using GradientReady = absl::FunctionRef<void(int)>;

  virtual ~Model() = default;

  virtual Parameters& parameters() = 0;

  // Running statistics and the like; empty in models without.
  virtual Buffers& buffers() = 0;

  // Makes every batch norm layer normalise, in training, over the batches of
  // all ranks of `group` (SyncBatchNorm), which the model borrows from now on
  // and uses in ForwardBackward alone. Every rank then calls ForwardBackward at
  // the same time, with an empty batch if need be. Parameters and buffers stay.
  // Returns the number of such layers: 0 where there is nothing to convert.
  virtual int ConvertSyncBatchNorm(Communicator& group) = 0;

  // Overwrites the gradients with those of gradient_scale * (sum of the batch's
  // losses), calling `ready` once for each parameter, from the last layer to
  // the first, while backward goes on with the layers below. Updates the
  // buffers. An empty batch gives zero gradients. Errors: those of the group of
  // ConvertSyncBatchNorm; kInvalidArgument if the sizes of images and
  // labels do not fit each other or a label is out of range.
  virtual absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                                  float gradient_scale,
                                                  GradientReady ready) = 0;

  // Forward only, with the buffers as they are. Errors: kInvalidArgument as
  // above.
  virtual absl::StatusOr<Metrics> Evaluate(const Batch& batch) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_MODEL_H_
