#include "models/train/gpu_steps.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/model.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<GpuSteps>> GpuSteps::Create(
    CudaReplica& replica, Communicator& gradients,
    const GpuStepStreams& streams, int64_t bucket_bytes) {
  if (gradients.world_size() > 1 && !gradients.enqueues()) {
    return absl::InvalidArgumentError(
        "the gradients' group does not enqueue its calls on the GPU");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Event event, MakeEvent());
  return std::unique_ptr<GpuSteps>(new GpuSteps(
      replica, gradients, streams, bucket_bytes, std::move(event)));
}

absl::Status GpuSteps::Join(cudaStream_t earlier, cudaStream_t later) {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(event_.get(), earlier), "cudaEventRecord"));
  return CudaStatus(cudaStreamWaitEvent(later, event_.get(), 0),
                    "cudaStreamWaitEvent");
}

absl::Status GpuSteps::SumBucket(int bucket) {
  LOCKSTEP_RETURN_IF_ERROR(Join(streams_.compute, streams_.communication));
  return gradients_.Run(
      Collective::UniformAllReduce(buckets_.gradients(bucket)));
}

absl::Status GpuSteps::Record(const GpuStepEvents& events,
                              cudaEvent_t GpuStepEvents::*event) {
  if (events.*event == nullptr) return absl::OkStatus();
  return CudaStatus(
      cudaEventRecordWithFlags(
          events.*event, streams_.compute,
          events.captured ? cudaEventRecordExternal : cudaEventRecordDefault),
      "cudaEventRecordWithFlags");
}

absl::Status GpuSteps::Enqueue(const DeviceBatch& shard, int64_t global_samples,
                               const GpuStepEvents& events) {
  if (global_samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step needs at least 1 sample over all ranks, got ", global_samples));
  }
  const bool alone = gradients_.world_size() == 1;
  LOCKSTEP_RETURN_IF_ERROR(Record(events, &GpuStepEvents::begin));
  absl::Status sums;
  const absl::Status computed = replica_.Enqueue(
      shard, 1.0f / static_cast<float>(global_samples), [&](int index) {
        buckets_.MarkReady(index, [&](int bucket) {
          if (!alone && sums.ok()) sums = SumBucket(bucket);
        });
      });
  const absl::Status marks = buckets_.FinishStep();
  LOCKSTEP_RETURN_IF_ERROR(computed);
  LOCKSTEP_RETURN_IF_ERROR(sums);
  LOCKSTEP_RETURN_IF_ERROR(marks);
  LOCKSTEP_RETURN_IF_ERROR(Record(events, &GpuStepEvents::computed));
  if (!alone) {
    LOCKSTEP_RETURN_IF_ERROR(Join(streams_.communication, streams_.compute));
  }
  LOCKSTEP_RETURN_IF_ERROR(Record(events, &GpuStepEvents::summed));
  LOCKSTEP_RETURN_IF_ERROR(replica_.EnqueueUpdate(shard.numbers));
  return Record(events, &GpuStepEvents::end);
}

}  // namespace lockstep
