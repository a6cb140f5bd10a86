// Steps of SGD on a GPU, whose ranks sum their gradients while the backward
// pass runs.
#ifndef LOCKSTEP_MODELS_TRAIN_GPU_STEPS_H_
#define LOCKSTEP_MODELS_TRAIN_GPU_STEPS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/model.h"
#include "models/train/gradient_buckets.h"

namespace lockstep {

// The streams of a rank. The calls of the gradients' group follow
// `communication`; those of SyncBatchNorm's group follow `compute`. One group
// is a split of the other (NcclCommunicator::SplitOnStream), so that ranks
// which begin their calls in different orders get an error and do not hang.
struct GpuStepStreams {
  cudaStream_t compute = nullptr;        // The replica's.
  cudaStream_t communication = nullptr;  // Urgent: MakeUrgentStream.
};

// Timed events, which a step records on the compute stream, unless they are
// null.
struct GpuStepEvents {
  cudaEvent_t begin = nullptr;
  cudaEvent_t computed = nullptr;  // After the backward pass.
  cudaEvent_t summed = nullptr;    // When all gradients are summed.
  cudaEvent_t end = nullptr;       // After the update.
  // Whether the compute stream is being captured. Each replay then records the
  // events.
  bool captured = false;
};

// One rank. Not thread safe: one thread enqueues steps and makes all calls of
// the rank's groups.
class GpuSteps {
 public:
  // PyTorch's bucket. Larger messages use a network better; smaller ones begin
  // earlier.
  static constexpr int64_t kBucketBytes = int64_t{25} << 20;

  // Borrows everything. The replicas of all ranks must have the same values.
  // gradients: a group of device memory that enqueues (NcclCommunicator); with
  // one rank it is not used. Errors: kInvalidArgument for another group; those
  // of CUDA.
  static absl::StatusOr<std::unique_ptr<GpuSteps>> Create(
      CudaReplica& replica, Communicator& gradients,
      const GpuStepStreams& streams, int64_t bucket_bytes = kBucketBytes);

  // Enqueues a step on a global batch. `shard` is this rank's part, in device
  // memory with the numbers of the step, and may be empty. The ranks' gradients
  // add up to the gradient of the global mean loss, and every rank then applies
  // value -= learning rate * gradient to the same bits. A bucket is summed on
  // the communication stream once the compute stream has computed it; the
  // update waits for all sums. The host waits for nothing, except that a rank
  // without samples waits in each layer of SyncBatchNorm. `events` are
  // recorded. Errors of other ranks show in the group's Wait, or in the next
  // step. Errors: kInvalidArgument if global_samples < 1; the replica's and the
  // group's, after which the rank leaves its groups and then destroys the
  // replica, since other ranks have enqueued more or less.
  absl::Status Enqueue(const DeviceBatch& shard, int64_t global_samples,
                       const GpuStepEvents& events = {});

 private:
  GpuSteps(CudaReplica& replica, Communicator& gradients,
           const GpuStepStreams& streams, int64_t bucket_bytes, Event event)
      : replica_(replica),
        gradients_(gradients),
        streams_(streams),
        buckets_(replica.parameters(), bucket_bytes),
        event_(std::move(event)) {}

  // Makes `later` wait for the work that is on `earlier` now.
  absl::Status Join(cudaStream_t earlier, cudaStream_t later);
  absl::Status SumBucket(int bucket);
  absl::Status Record(const GpuStepEvents& events,
                      cudaEvent_t GpuStepEvents::*event);

  CudaReplica& replica_;
  Communicator& gradients_;
  const GpuStepStreams streams_;
  GradientBuckets buckets_;
  const Event event_;  // A wait refers to the event's last record before it.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GPU_STEPS_H_
