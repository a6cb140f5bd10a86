// The graphs of a rank's steps on a GPU.
#ifndef LOCKSTEP_MODELS_TRAIN_STEP_GRAPHS_H_
#define LOCKSTEP_MODELS_TRAIN_STEP_GRAPHS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_graph.h"
#include "collectives/nccl/nccl_communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/train/gpu_steps.h"

namespace lockstep {

// Takes steps by launching graphs, each of which GpuSteps was captured in:
// forward, backward, reduction and update are one launch. Not thread safe. The
// object ends before the groups, whose calls its graphs hold.
class StepGraphs {
 public:
  // A rank's objects, which are borrowed.
  struct Rank {
    GpuSteps* steps = nullptr;
    CudaReplica* replica = nullptr;
    cudaStream_t compute = nullptr;
    // The groups whose calls steps make; null: none.
    NcclCommunicator* gradients = nullptr;
    NcclCommunicator* norms = nullptr;
  };
  explicit StepGraphs(const Rank& rank) : rank_(rank) {}

  // Enqueues the step that rank.steps->Enqueue would, with the same bits. Every
  // rank must make the call for the same step, with a shard that is not empty,
  // and capture it at the same time (NcclCommunicator::Capture).
  // Captures the step first, if no step was captured that had the shard in the
  // same memory, the same global_samples and the same events. Keeps the graphs
  // used last. Errors: as for GpuSteps::Enqueue, and those of captures and
  // launches.
  absl::Status Enqueue(const DeviceBatch& shard, int64_t global_samples,
                       const GpuStepEvents& events);

 private:
  struct Step {
    DeviceBatch shard;
    int64_t global_samples = 0;
    cudaEvent_t computed = nullptr;
    cudaEvent_t summed = nullptr;
    std::shared_ptr<const void> work = {};  // What the graph uses.
    std::vector<int64_t> counted = {};      // How far it advances each counter.
    NcclCommunicator::CapturedCalls gradients = {};
    NcclCommunicator::CapturedCalls norms = {};
    Graph graph = {};
  };

  // Returns the captured step, which is then the last of steps_; null if there
  // is none.
  Step* Find(const DeviceBatch& shard, int64_t global_samples,
             const GpuStepEvents& events);
  // Captures a step and adds it to steps_. The counters advance as they do in
  // one step.
  absl::StatusOr<Step*> Add(const DeviceBatch& shard, int64_t global_samples,
                            const GpuStepEvents& events);
  absl::Status Capture(const GpuStepEvents& events, Step& step);
  // Makes the step's calls on the captured streams.
  absl::Status EnqueueCaptured(const GpuStepEvents& events, Step& step);
  absl::Status Launch(const Step& step);

  const Rank rank_;
  std::vector<Step> steps_;  // The one used longest ago first.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_STEP_GRAPHS_H_
