#include "syncbn/cuda/cuda_batch_norm_kernels.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/nccl/cuda_handles.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/kernels.h"

namespace lockstep {
namespace {

// Eight blocks of 256 threads are all the threads that a multiprocessor holds;
// where registers let it hold fewer, the others follow.
constexpr int64_t kBlocksPerMultiprocessor = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBatchNormKernels>>
CudaBatchNormKernels::Create(cudaStream_t stream) {
  std::unique_ptr<CudaBatchNormKernels> made(new CudaBatchNormKernels(stream));
  int device = 0;
  int multiprocessors = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  made->max_blocks_ = kBlocksPerMultiprocessor * multiprocessors;
  int64_t* count = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMallocHost(&count, sizeof(int64_t)), "cudaMallocHost"));
  made->count_.reset(count);
  return made;
}

CudaBatchNormKernels::~CudaBatchNormKernels() {
  cudaStreamSynchronize(stream_);
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaBatchNormKernels::Allocate(
    int64_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(bytes));
  return std::shared_ptr<std::byte>(std::move(memory));
}

absl::Status CudaBatchNormKernels::Reserve(int64_t bytes) {
  if (bytes <= scratch_bytes_) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  LOCKSTEP_ASSIGN_OR_RETURN(scratch_, AllocateDeviceMemory(bytes));
  scratch_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status CudaBatchNormKernels::ComputeMoments(const ActivationShape& shape,
                                                  ConstBuffer x,
                                                  std::byte* record) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes, MomentsScratchBytes(shape, x));
  LOCKSTEP_RETURN_IF_ERROR(Reserve(bytes));
  return lockstep::ComputeMoments(shape, x, record, scratch_.get(), stream_);
}

absl::StatusOr<int64_t> CudaBatchNormKernels::Merge(
    const StatisticsRecord& record, const std::byte* gathered, int ranks,
    const MergeOptions& options, const RunningStatistics& running,
    std::byte* saved) {
  LOCKSTEP_RETURN_IF_ERROR(
      MergeRecords(record, gathered, ranks, options, running, saved, stream_));
  // The count is the first thing in a record.
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(count_.get(), saved, sizeof(int64_t),
                                 cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return *count_;
}

absl::Status CudaBatchNormKernels::UseRunning(const StatisticsRecord& record,
                                              const RunningStatistics& running,
                                              double epsilon,
                                              std::byte* saved) {
  return lockstep::UseRunning(record, running, epsilon, saved, stream_);
}

absl::Status CudaBatchNormKernels::Normalize(const NormalizeCall& call) {
  return lockstep::Normalize(call, max_blocks_, stream_);
}

absl::Status CudaBatchNormKernels::BackwardReduce(const BackwardCall& call,
                                                  Buffer sums, Buffer dweight,
                                                  Buffer dbias) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes,
                            BackwardReduceScratchBytes(call));
  LOCKSTEP_RETURN_IF_ERROR(Reserve(bytes));
  return lockstep::BackwardReduce(call, sums, dweight, dbias, scratch_.get(),
                                  stream_);
}

absl::Status CudaBatchNormKernels::BackwardInput(const BackwardCall& call,
                                                 ConstBuffer sums, Buffer dx,
                                                 Buffer dresidual) {
  return lockstep::BackwardInput(call, sums, dx, dresidual, max_blocks_,
                                 stream_);
}

}  // namespace lockstep
