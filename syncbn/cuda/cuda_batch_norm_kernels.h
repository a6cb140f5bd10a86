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
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/elementwise.h"
#include "syncbn/cuda/reductions.h"

namespace lockstep {

struct FreePinnedMemory {
  void operator()(int64_t* memory) const { cudaFreeHost(memory); }
};

// Batch norm for float32, float16 and bfloat16 in the layouts kNchw and kNhwc.
// For float64, every operation returns kUnimplemented. For kNchw16c, every
// operation with activations returns kUnimplemented. All memory is the
// device's.
//
// All work is enqueued on one stream, in the order of the calls; only ReadCount
// waits for the stream. The same calls add in the same order everywhere, and
// give the same bits in every run on GPUs of one architecture.
//
// Partial results of reductions lie in scratch memory: 16 bytes
// (ComputeMoments) or 8 (BackwardReduce) for each block and channel. Create
// allocates kScratchBytes of it, enough for layers of some ten thousand
// channels. A call that needs more allocates more. Graphs that captured earlier
// calls stay valid as long as this object.
// Merging moves tens of bytes a channel. Errors, besides kUnimplemented: those
// of the launches.
//
// For SyncBatchNorm, the group must be an NcclCommunicator with this same
// stream as NcclOptions::stream. Its calls then start after the kernels
// enqueued so far, and kernels enqueued later see their results.
//
// Not thread safe. The calling thread's current device must be the stream's.
class CudaBatchNormKernels : public BatchNormKernels {
 public:
  static constexpr int64_t kScratchBytes = int64_t{6} << 20;

  // Borrows the stream, which must outlive this object. Loads all kernels now,
  // so that no later call waits for that. max_blocks: the largest number of
  // blocks of element-wise kernels, which does not change their results; 0
  // means as many as keep the device busy. Errors: the CudaStatus of the
  // runtime's error.
  static absl::StatusOr<std::unique_ptr<CudaBatchNormKernels>> Create(
      cudaStream_t stream, int64_t max_blocks = 0);

  // Waits for the stream, since enqueued work uses scratch memory.
  ~CudaBatchNormKernels() override;

  cudaStream_t stream() const { return stream_; }

  // Freeing the memory waits for the device.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::Status Merge(const MergeCall& call) override;
  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override;
  absl::Status UseRunning(const RunningCall& call) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call) override;
  absl::Status BackwardInput(const BackwardCall& call) override;
  // Merges in the kernel that computes the moments, and leaves `record` as it
  // was.
  absl::Status ForwardLocal(const NormalizeCall& call,
                            const MergeOptions& options,
                            std::byte* record) override;

  // Updates the running statistics with a batch of `count` values per channel,
  // at least 2. The mean and the unbiased variance are [c] in device float32.
  // The variance enters divided by count, in place of count - 1. This is for
  // libraries that give only the unbiased variance.
  absl::Status TrackBiased(const StatisticsRecord& record, const float* mean,
                           const float* unbiased_variance, int64_t count,
                           double weight_of_batch,
                           const RunningStatistics& running);

 private:
  explicit CudaBatchNormKernels(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
  ElementwiseGrid grid_;
  std::unique_ptr<int64_t, FreePinnedMemory> count_;  // One, pinned.
  ReductionMemory memory_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDA_BATCH_NORM_KERNELS_H_
