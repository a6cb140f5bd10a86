#include "models/train/step_graphs.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/nccl/nccl_communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/model.h"
#include "models/train/gpu_steps.h"

namespace lockstep {
namespace {

// One for each of the three batches that are on their way, and as many for
// batches in another form.
constexpr size_t kMostGraphs = 6;

template <typename T>
bool IsSame(std::span<const T> a, std::span<const T> b) {
  return a.data() == b.data() && a.size() == b.size();
}

// Returns whether the batches are the same memory.
bool IsSame(const DeviceBatch& a, const DeviceBatch& b) {
  return a.numbers == b.numbers && IsSame(a.batch.images, b.batch.images) &&
         IsSame(a.batch.labels, b.batch.labels) &&
         IsSame(a.batch.other_labels, b.batch.other_labels) &&
         IsSame(a.batch.shares, b.batch.shares) &&
         IsSame(a.batch.samples, b.batch.samples);
}

// Runs `enqueue` within the group's Capture, unless there is no group.
absl::Status CaptureCalls(NcclCommunicator* group,
                          NcclCommunicator::CapturedCalls& calls,
                          absl::FunctionRef<absl::Status()> enqueue) {
  if (group == nullptr) return enqueue();
  LOCKSTEP_ASSIGN_OR_RETURN(calls, group->Capture(enqueue));
  return absl::OkStatus();
}

// Calls `launch` within the group's Replay, unless there is no group.
absl::Status ReplayCalls(NcclCommunicator* group,
                         const NcclCommunicator::CapturedCalls& calls,
                         cudaStream_t stream,
                         absl::FunctionRef<absl::Status()> launch) {
  return group == nullptr ? launch() : group->Replay(calls, stream, launch);
}

absl::Status Record(cudaEvent_t event, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord");
}

}  // namespace

absl::Status StepGraphs::EnqueueCaptured(const GpuStepEvents& events,
                                         Step& step) {
  return CaptureCalls(rank_.gradients, step.gradients, [&] {
    return CaptureCalls(rank_.norms, step.norms, [&] {
      return rank_.steps->Enqueue(step.shard, step.global_samples,
                                  {.computed = events.computed,
                                   .summed = events.summed,
                                   .captured = true});
    });
  });
}

absl::Status StepGraphs::Capture(const GpuStepEvents& events, Step& step) {
  const auto samples = static_cast<int64_t>(step.shard.batch.labels.size());
  LOCKSTEP_RETURN_IF_ERROR(rank_.replica->Plan(samples));
  const std::span<const int64_t> counters = rank_.replica->buffers().counters();
  step.counted.assign(counters.begin(), counters.end());
  LOCKSTEP_ASSIGN_OR_RETURN(step.graph, CaptureGraph(rank_.compute, [&] {
                              return EnqueueCaptured(events, step);
                            }));
  step.work = rank_.replica->WorkOf(samples);
  for (size_t i = 0; i < counters.size(); ++i) {
    step.counted[i] = counters[i] - step.counted[i];
  }
  return absl::OkStatus();
}

StepGraphs::Step* StepGraphs::Find(const DeviceBatch& shard,
                                   int64_t global_samples,
                                   const GpuStepEvents& events) {
  const auto found = std::ranges::find_if(steps_, [&](const Step& step) {
    return step.global_samples == global_samples &&
           step.computed == events.computed && step.summed == events.summed &&
           IsSame(step.shard, shard);
  });
  if (found == steps_.end()) return nullptr;
  std::rotate(found, found + 1, steps_.end());
  return &steps_.back();
}

absl::StatusOr<StepGraphs::Step*> StepGraphs::Add(const DeviceBatch& shard,
                                                  int64_t global_samples,
                                                  const GpuStepEvents& events) {
  if (steps_.size() == kMostGraphs) steps_.erase(steps_.begin());
  Step step = {.shard = shard,
               .global_samples = global_samples,
               .computed = events.computed,
               .summed = events.summed};
  LOCKSTEP_RETURN_IF_ERROR(Capture(events, step));
  return &steps_.emplace_back(std::move(step));
}

absl::Status StepGraphs::Launch(const Step& step) {
  return ReplayCalls(rank_.gradients, step.gradients, rank_.compute, [&] {
    return ReplayCalls(rank_.norms, step.norms, rank_.compute, [&] {
      return CudaStatus(cudaGraphLaunch(step.graph.get(), rank_.compute),
                        "cudaGraphLaunch");
    });
  });
}

absl::Status StepGraphs::Enqueue(const DeviceBatch& shard,
                                 int64_t global_samples,
                                 const GpuStepEvents& events) {
  Step* step = Find(shard, global_samples, events);
  if (step == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(step, Add(shard, global_samples, events));
  } else {
    const std::span<int64_t> counters = rank_.replica->buffers().counters();
    for (size_t i = 0; i < counters.size(); ++i)
      counters[i] += step->counted[i];
  }
  LOCKSTEP_RETURN_IF_ERROR(Record(events.begin, rank_.compute));
  LOCKSTEP_RETURN_IF_ERROR(Launch(*step));
  return Record(events.end, rank_.compute);
}

}  // namespace lockstep
