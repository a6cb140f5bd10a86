// The operations of batch norm on a GPU.
#ifndef LOCKSTEP_SYNCBN_CUDA_CUDA_BATCH_NORM_KERNELS_H_
#define LOCKSTEP_SYNCBN_CUDA_CUDA_BATCH_NORM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/nccl/cuda_handles.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

struct FreePinnedMemory {
  void operator()(int64_t* memory) const { cudaFreeHost(memory); }
};

// Batch norm for float32, float16 and bfloat16; for float64 every operation is
// kUnimplemented. All memory is the device's.
//
// Everything is enqueued on one stream, in the order of the calls; Merge alone
// waits for it. The same calls give the same bits in every run and on every
// GPU. Scratch memory grows to what the largest call needs, which waits for the
// device, and is then kept.
//
// For SyncBatchNorm the group is an NcclCommunicator with this very stream as
// NcclOptions::stream: its calls start after the kernels enqueued so far, and
// return when their results can be read, so kernels enqueued later see them.
//
// Not thread safe. The calling thread's current device is the stream's.
class CudaBatchNormKernels : public BatchNormKernels {
 public:
  // Borrows the stream, which outlives this. Errors: CudaStatus of what the
  // runtime says.
  static absl::StatusOr<std::unique_ptr<CudaBatchNormKernels>> Create(
      cudaStream_t stream);

  // Waits for the stream, since what is enqueued uses scratch memory.
  ~CudaBatchNormKernels() override;

  cudaStream_t stream() const { return stream_; }

  // Freeing it waits for the device.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override;
  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override;
  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override;

 private:
  explicit CudaBatchNormKernels(cudaStream_t stream) : stream_(stream) {}

  // Makes scratch memory large enough for `bytes`.
  absl::Status Reserve(int64_t bytes);

  const cudaStream_t stream_;
  int64_t max_blocks_ = 0;  // Of element-wise kernels.
  std::unique_ptr<int64_t, FreePinnedMemory> count_;  // One, pinned.
  DeviceMemory scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDA_BATCH_NORM_KERNELS_H_
