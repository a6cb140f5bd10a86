#include "benchmarks/syncbn/cuda_rank.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/syncbn/cuda_timers.h"
#include "benchmarks/syncbn/plan.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::benchmarks {

absl::Status CudaLayerMirror::Add(std::span<float> host) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DeviceMemory device,
      AllocateDeviceMemory(static_cast<int64_t>(host.size_bytes())));
  parts_.push_back({.host = host, .device = std::move(device)});
  return absl::OkStatus();
}

void* CudaLayerMirror::Of(const float* host) const {
  for (const Part& part : parts_) {
    if (part.host.data() == host) return part.device.get();
  }
  return nullptr;
}

absl::Status CudaLayerMirror::Upload() {
  for (const Part& part : parts_) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(part.device.get(), part.host.data(),
                                   part.host.size_bytes(),
                                   cudaMemcpyHostToDevice, stream_),
                   "copying a layer's tensors to the GPU"));
  }
  return CudaStatus(cudaStreamSynchronize(stream_),
                    "copying a layer's tensors to the GPU");
}

absl::Status CudaLayerMirror::Download() {
  for (const Part& part : parts_) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(part.host.data(), part.device.get(),
                                   part.host.size_bytes(),
                                   cudaMemcpyDeviceToHost, stream_),
                   "copying a layer's tensors from the GPU"));
  }
  return CudaStatus(cudaStreamSynchronize(stream_),
                    "copying a layer's tensors from the GPU");
}

// Turns on a GPU, by subject.
namespace {

// What a copy writes, over zeros.
constexpr int kCopied = 0x5a;

absl::StatusOr<int64_t> CountNot(int value, const std::byte* device,
                                 int64_t bytes) {
  std::vector<std::byte> host(static_cast<size_t>(bytes));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost),
      "reading a copy"));
  const auto right =
      std::count(host.begin(), host.end(), static_cast<std::byte>(value));
  return bytes - static_cast<int64_t>(right);
}

}  // namespace

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  return absl::FailedPreconditionError(absl::StrCat(
      "no GPU: ",
      error == cudaSuccess ? "no devices" : cudaGetErrorString(error)));
}

SyncBnCudaRank::SyncBnCudaRank(Communicator& group,
                               CreateLocalBatchNorm create_local)
    : group_(group), create_local_(std::move(create_local)) {
  timing_.clock = SteadySeconds;
}

absl::StatusOr<std::unique_ptr<SyncBnCudaRank>> SyncBnCudaRank::Create(
    Communicator& group, const GroupOptions& options,
    CreateLocalBatchNorm create_local) {
  std::unique_ptr<SyncBnCudaRank> rank(
      new SyncBnCudaRank(group, std::move(create_local)));
  LOCKSTEP_RETURN_IF_ERROR(rank->Start(options));
  return rank;
}

absl::Status SyncBnCudaRank::Start(const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CountGpus());
  NcclOptions nccl;
  nccl.group.timeout = options.timeout;
  nccl.device = group_.rank() % gpus;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(nccl.device), "choosing the GPU"));
  cudaDeviceProp properties;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, nccl.device),
                 "asking for the GPU's name"));
  gpu_ = properties.name;
  LOCKSTEP_ASSIGN_OR_RETURN(stream_, MakeStream());
  nccl.stream = stream_.get();
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            group_.Split(0, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(nccl_,
                            NcclCommunicator::Create(std::move(control), nccl));
  LOCKSTEP_ASSIGN_OR_RETURN(kernels_,
                            CudaBatchNormKernels::Create(stream_.get()));
  timed_kernels_.emplace(*kernels_, timing_);
  timed_group_.emplace(*nccl_, timing_);
  drained_group_.emplace(*timed_group_, stream_.get());
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnCudaRank::Take(const SyncBnRequest& request) {
  if (request.network != 0 || request.subject == SyncBnSubject::kTorch) {
    return absl::UnimplementedError("not on a GPU");
  }
  absl::StatusOr<RankTurn> turn =
      request.subject == SyncBnSubject::kCopy      ? TimeCopies(request)
      : request.subject == SyncBnSubject::kMessage ? TimeMessages(request)
                                                   : TimeLayer(request);
  if (!turn.ok()) return turn;
  turn->gpu = gpu_;
  turn->shared_gpu = nccl_->shared_gpu() ? 1 : 0;
  return turn;
}

absl::StatusOr<RankTurn> SyncBnCudaRank::TimeLayer(
    const SyncBnRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(UseLayer(request.layer));
  return TimeSubject(*layer_, subjects_, request, timing_);
}

absl::Status SyncBnCudaRank::UseLayer(const LayerSpec& spec) {
  if (layer_ != nullptr && layer_->spec() == spec) return absl::OkStatus();
  layer_.reset();  // Its memory first.
  const BatchNormOptions options = OptionsOf(spec);
  const auto finished = [this](std::unique_ptr<BatchNorm> layer) {
    return std::make_unique<FinishedBatchNorm>(
        std::move(layer), stream_.get(),
        [this] { return timed_kernels_->Collect(); });
  };
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> local,
                            create_local_(options, *kernels_));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> own_local,
                            SyncBatchNorm::CreateLocal(options, *kernels_));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> sync,
                            SyncBatchNorm::Create(options, *kernels_, *nccl_));
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchNorm> split,
      SyncBatchNorm::Create(options, *timed_kernels_, *drained_group_));
  subjects_.local = finished(std::move(local));
  subjects_.own_local = finished(std::move(own_local));
  subjects_.sync = finished(std::move(sync));
  subjects_.split = finished(std::move(split));
  LOCKSTEP_ASSIGN_OR_RETURN(
      layer_,
      SyncBnLayer::Create(spec, group_,
                          std::make_unique<CudaLayerMirror>(stream_.get())));
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnCudaRank::TimeMessages(
    const SyncBnRequest& request) {
  const StatisticsRecord record = {
      .channels = request.layer.c,
      .type = StatisticsTypeOf(request.layer.type)};
  const int64_t size = record.size_bytes();
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory records,
                            AllocateDeviceMemory(size * group_.world_size()));
  const int64_t sums_count = 2 * request.layer.c;
  const auto sums_bytes = static_cast<size_t>(sums_count) * sizeof(float);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const DeviceMemory sums,
      AllocateDeviceMemory(static_cast<int64_t>(sums_bytes)));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(sums.get(), 0, sums_bytes), "clearing sums"));
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        CallTimes forward, TimeCall(group_, timing_, [&] {
          return nccl_->AllGather(
              ConstBuffer(records.get() + group_.rank() * size, size,
                          DataType::kUInt8),
              Buffer(records.get(), size * group_.world_size(),
                     DataType::kUInt8));
        }));
    LOCKSTEP_ASSIGN_OR_RETURN(
        CallTimes backward, TimeCall(group_, timing_, [&] {
          return nccl_->AllReduce(
              Buffer(sums.get(), sums_count, DataType::kFloat32));
        }));
    if (i < 0) continue;
    turn.forward.push_back(std::move(forward));
    turn.backward.push_back(std::move(backward));
  }
  return turn;
}

absl::StatusOr<RankTurn> SyncBnCudaRank::TimeCopies(
    const SyncBnRequest& request) {
  // From two tensors to two: within as much memory as the layer has.
  const int64_t bytes = kCopiedTensors * request.layer.shape().size() *
                        SizeOf(request.layer.type);
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory memory,
                            AllocateDeviceMemory(2 * bytes));
  std::byte* const to = memory.get() + bytes;
  const auto size = static_cast<size_t>(bytes);
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(memory.get(), kCopied, size, stream_.get()), "filling"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(to, 0, size, stream_.get()), "clearing"));
  LOCKSTEP_ASSIGN_OR_RETURN(CudaTimer timer, CudaTimer::Create());
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
    LOCKSTEP_RETURN_IF_ERROR(timer.Time(stream_.get(), [&] {
      return CudaStatus(
          cudaMemcpyAsync(to, memory.get(), size, cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "copying");
    }));
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, timer.Seconds());
    if (i < 0) continue;
    turn.forward.emplace_back();
    turn.forward.back().end = seconds;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(turn.wrong, CountNot(kCopied, to, bytes));
  return turn;
}

}  // namespace lockstep::benchmarks
