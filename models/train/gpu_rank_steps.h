// The steps of a rank on a GPU of its own, whose gradients NCCL sums.
#ifndef LOCKSTEP_MODELS_TRAIN_GPU_RANK_STEPS_H_
#define LOCKSTEP_MODELS_TRAIN_GPU_RANK_STEPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/optimizer.h"
#include "models/train/device.h"
#include "models/train/gpu_steps.h"
#include "models/train/rank_steps.h"
#include "models/train/step_graphs.h"

namespace lockstep {

// Steps on whole batches are graphs, after the first two (StepGraphs).
//
// Copies a batch to the GPU while the GPU computes the step before it, and
// waits for the GPU only where metrics are asked for, and if the GPU is more
// than two steps behind. Times are the GPU's. The current device of the calling
// thread is set by every call.
class GpuRankSteps : public RankSteps {
 public:
  // Borrows the group, which is on host memory. device: as for cudaSetDevice.
  // Every rank must call it, and all get the same status. Allocates memory for
  // steps of options.largest_shard samples and takes one such step, and one of
  // its part of options.graph_samples, so that no later step allocates or loads
  // kernels beside those of NCCL. Returns null, and why in `shared`, if ranks
  // share a GPU and NCCL does not support that. Errors: those of CudaReplica
  // and NcclCommunicator::Create; kInvalidArgument for sync_bn and a network
  // without batch norm.
  static absl::StatusOr<std::unique_ptr<GpuRankSteps>> Create(
      Communicator& group, int device, const Network& network,
      const GpuStepsOptions& options, std::string& shared);

  absl::Status Begin() override;
  absl::StatusOr<StepResult> Step(const Batch& shard, int64_t global_samples,
                                  float learning_rate,
                                  bool with_metrics) override;
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override;
  absl::Status BroadcastBuffers() override;
  absl::Status Read(Parameters& parameters, Buffers& buffers) override;
  absl::Status Write(const Parameters& parameters,
                     const Buffers& buffers) override;
  absl::StatusOr<OptimizerState> ReadOptimizer() override;
  absl::Status WriteOptimizer(const OptimizerState& state) override;
  const std::string& warning() const override { return no_warning_; }

 private:
  // A step that the GPU may still compute.
  struct Slot {
    BatchCopy batch;
    Event copied;
    Event begin, computed, summed, end;  // Timed; on the compute stream.
    bool is_used = false;
  };

  GpuRankSteps(Communicator& group, int device, int64_t graph_samples)
      : group_(group), device_(device), graph_samples_(graph_samples) {}

  // Makes this rank's part, and takes a step alone.
  absl::Status Prepare(const Network& network, const GpuStepsOptions& options);
  absl::Status CreateStreams();
  absl::Status WarmUp(int64_t samples);
  absl::Status JoinGroups(const GpuStepsOptions& options, std::string& shared);
  absl::Status UseDevice() const;
  // Copies the batch to a slot whose work is done; the compute stream waits.
  absl::StatusOr<DeviceBatch> CopyTo(Slot& slot, const Batch& batch,
                                     float learning_rate);
  // Waits for the slot's step and adds its times. The steps before it are
  // retired.
  absl::Status Retire(Slot& slot);
  absl::Status RetireAll();

  Communicator& group_;
  const int device_;
  const int64_t graph_samples_;  // As in GpuStepsOptions.
  const std::string no_warning_;
  Stream compute_, communication_, copy_;
  // The groups end before the slots and the replica, which wait for the GPU:
  // after an error other ranks may have enqueued more or less.
  std::array<Slot, 3> slots_;
  Slot evaluation_;  // Not in the memory that graphs read.
  std::unique_ptr<CudaReplica> replica_;
  std::unique_ptr<NcclCommunicator> norms_, gradients_;  // Null: one rank.
  std::unique_ptr<GpuSteps> steps_;
  std::unique_ptr<StepGraphs> graphs_;
  int whole_batches_ = 0;  // Steps on graph_samples_, up to kEagerSteps.
  size_t next_slot_ = 0;
  Event last_end_;             // The end of the step that was retired last.
  bool follows_step_ = false;  // Whether last_end_ is the GPU's last.
  StepTimes times_;            // Of the steps since the last metrics.
  std::vector<StepTimes> step_times_;  // The same, of each step.
  Metrics untaken_;                    // Of the steps before an evaluation.
  bool scales_loss_ = false;           // Whether steps may be skipped.
  int64_t skipped_steps_ = 0;          // Up to the last metrics.
  bool has_steps_ = false;             // Whether steps' metrics are on the GPU.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GPU_RANK_STEPS_H_
