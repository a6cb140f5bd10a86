// The replica of a rank as a trainer drives it, wherever it computes.
#ifndef LOCKSTEP_MODELS_TRAIN_RANK_STEPS_H_
#define LOCKSTEP_MODELS_TRAIN_RANK_STEPS_H_

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/data_parallel.h"

namespace lockstep {

// One rank's replica, its group and its optimizer. Every rank makes the same
// calls. Not thread safe. After an error the ranks are no longer in step:
// destroy the object and leave the group.
class RankSteps {
 public:
  virtual ~RankSteps() = default;

  // Gives every rank rank 0's parameters, buffers and optimizer state. Called
  // once, before the steps.
  virtual absl::Status Begin() = 0;

  // Takes a step of the optimizer on a global batch, as TrainStep does. When
  // the call returns, the batch is no longer needed, but a GPU may still
  // compute. with_metrics: the call waits for the GPU, and its result holds the
  // metrics and times of all steps since the last such result. Results of other
  // calls may be empty.
  virtual absl::StatusOr<StepResult> Step(const Batch& shard,
                                          int64_t global_samples,
                                          float learning_rate,
                                          bool with_metrics) = 0;

  // Returns the metrics of a batch, and changes nothing.
  virtual absl::StatusOr<Metrics> Evaluate(const Batch& batch) = 0;

  // Copies rank 0's buffers to every rank.
  virtual absl::Status BroadcastBuffers() = 0;

  // Copy this rank's parameters and buffers to host memory, and from it. The
  // objects are of the replica's network. Gradients are not copied.
  virtual absl::Status Read(Parameters& parameters, Buffers& buffers) = 0;
  virtual absl::Status Write(const Parameters& parameters,
                             const Buffers& buffers) = 0;

  // Copy the optimizer's state to host memory, and from it. The state is in the
  // order of the network's parameters. Error of WriteOptimizer:
  // kInvalidArgument for a state of another optimizer or network.
  virtual absl::StatusOr<OptimizerState> ReadOptimizer() = 0;
  virtual absl::Status WriteOptimizer(const OptimizerState& state) = 0;

  // A warning for the user about how this replica runs, one line, the same on
  // every rank, after Begin; empty if there is none.
  virtual const std::string& warning() const = 0;
};

// The steps of a model on host memory, whose gradients a GradientReducer sums
// (TrainStep). Metrics and times are those of each step.
class ModelSteps : public RankSteps {
 public:
  // Borrows both. bucket_bytes: as for GradientReducer. optimizer: accepted by
  // CheckOptimizer, and the same on every rank.
  ModelSteps(Communicator& communicator, Model& model, int64_t bucket_bytes,
             const OptimizerOptions& optimizer = {})
      : communicator_(communicator),
        model_(model),
        bucket_bytes_(bucket_bytes),
        optimizer_(optimizer, std::ssize(model.parameters().values())) {}

  // Moves the gradients to memory of the group if it has some
  // (PlaceGradientsInGroup).
  absl::Status Begin() override;
  absl::StatusOr<StepResult> Step(const Batch& shard, int64_t global_samples,
                                  float learning_rate,
                                  bool with_metrics) override;
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override;
  absl::Status BroadcastBuffers() override;
  absl::Status Read(Parameters& parameters, Buffers& buffers) override;
  absl::Status Write(const Parameters& parameters,
                     const Buffers& buffers) override;
  absl::StatusOr<OptimizerState> ReadOptimizer() override {
    return optimizer_.state();
  }
  absl::Status WriteOptimizer(const OptimizerState& state) override {
    return optimizer_.SetState(state);
  }
  const std::string& warning() const override { return warning_; }

 private:
  Communicator& communicator_;
  Model& model_;
  const int64_t bucket_bytes_;
  Optimizer optimizer_;
  std::unique_ptr<GradientReducer> reducer_;  // After Begin.
  std::string warning_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_RANK_STEPS_H_
