#include "benchmarks/syncbn/cuda_rank.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/plan.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {
namespace {

absl::StatusOr<Event> MakeTimedEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&event), "creating an event"));
  return Event(event);
}

}  // namespace

absl::StatusOr<CudaTimer> CudaTimer::Create() {
  CudaTimer timer;
  LOCKSTEP_ASSIGN_OR_RETURN(timer.begin_, MakeTimedEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(timer.end_, MakeTimedEvent());
  return timer;
}

absl::Status CudaTimer::Time(cudaStream_t stream,
                             absl::FunctionRef<absl::Status()> enqueue) {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(begin_.get(), stream), "starting a timer"));
  LOCKSTEP_RETURN_IF_ERROR(enqueue());
  return CudaStatus(cudaEventRecord(end_.get(), stream), "stopping a timer");
}

absl::StatusOr<double> CudaTimer::Seconds() const {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventSynchronize(end_.get()), "waiting for a timer"));
  float milliseconds = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
                 "reading a timer"));
  return 1e-3 * static_cast<double>(milliseconds);
}

absl::Status CudaTimedKernels::Time(TimedKernel kernel,
                                    absl::FunctionRef<absl::Status()> run) {
  if (used_ == timed_.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(CudaTimer timer, CudaTimer::Create());
    timed_.push_back({.kernel = kernel, .timer = std::move(timer)});
  }
  Timed& timed = timed_[used_];
  timed.kernel = kernel;
  LOCKSTEP_RETURN_IF_ERROR(timed.timer.Time(stream_, run));
  ++used_;
  return absl::OkStatus();
}

absl::Status CudaTimedKernels::Collect() {
  for (size_t i = 0; i < used_; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, timed_[i].timer.Seconds());
    AddSeconds(timed_[i].kernel, seconds);
  }
  used_ = 0;
  return absl::OkStatus();
}

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

absl::Status CudaLayerMirror::Copy(cudaMemcpyKind kind, const char* what) {
  for (const Part& part : parts_) {
    void* const host = part.host.data();
    void* const device = part.device.get();
    const bool up = kind == cudaMemcpyHostToDevice;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(up ? device : host, up ? host : device,
                                   part.host.size_bytes(), kind, stream_),
                   what));
  }
  return CudaStatus(cudaStreamSynchronize(stream_), what);
}

absl::Status CudaLayerMirror::Upload() {
  return Copy(cudaMemcpyHostToDevice, "copying a layer's tensors to the GPU");
}

absl::Status CudaLayerMirror::Download() {
  return Copy(cudaMemcpyDeviceToHost, "copying a layer's tensors from the GPU");
}

absl::Status CudaLayerMirror::Finish() {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "waiting for a layer"));
  return kernels_.Collect();
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
  timed_group_.emplace(*nccl_, timing_, [this] {
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "before a message");
  });
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnCudaRank::Take(const SyncBnRequest& request) {
  if (request.network != 0 || request.subject == SyncBnSubject::kTorch) {
    return absl::UnimplementedError("not on a GPU");
  }
  absl::StatusOr<RankTurn> turn;
  if (request.subject == SyncBnSubject::kCopy) {
    turn = TimeCopies(request);
  } else if (request.subject == SyncBnSubject::kMessage) {
    turn = TimeMessages(request);
  } else {
    LOCKSTEP_RETURN_IF_ERROR(UseLayer(request.layer));
    turn = subjects_.Time(*layer_, request, timing_);
  }
  if (!turn.ok()) return turn;
  turn->gpu = gpu_;
  turn->shared_gpu = nccl_->shared_gpu() ? 1 : 0;
  return turn;
}

absl::Status SyncBnCudaRank::UseLayer(const LayerSpec& spec) {
  if (layer_ != nullptr && layer_->spec() == spec) return absl::OkStatus();
  layer_.reset();  // Its memory first.
  const BatchNormOptions options = OptionsOf(spec);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> local,
                            create_local_(options, *kernels_));
  LOCKSTEP_ASSIGN_OR_RETURN(
      subjects_, LayerSubjects::Create(options, std::move(local), *kernels_,
                                       *nccl_, *timed_kernels_, *timed_group_));
  LOCKSTEP_ASSIGN_OR_RETURN(
      layer_, SyncBnLayer::Create(spec, group_,
                                  std::make_unique<CudaLayerMirror>(
                                      stream_.get(), *timed_kernels_)));
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnCudaRank::TimeMessages(
    const SyncBnRequest& request) {
  const int64_t records_bytes =
      RecordBytes(request.layer) * group_.world_size();
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory records,
                            AllocateDeviceMemory(records_bytes));
  const int64_t sums_count = 2 * request.layer.c;
  const auto sums_bytes = static_cast<size_t>(sums_count) * sizeof(float);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const DeviceMemory sums,
      AllocateDeviceMemory(static_cast<int64_t>(sums_bytes)));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(sums.get(), 0, sums_bytes), "clearing sums"));
  return benchmarks::TimeMessages(
      request, group_, *nccl_, timing_,
      Buffer(records.get(), records_bytes, DataType::kUInt8),
      Buffer(sums.get(), sums_count, DataType::kFloat32));
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
