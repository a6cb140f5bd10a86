#include "benchmarks/syncbn/cuda_rank.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {
namespace {

absl::StatusOr<Event> MakeTimedEvent() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&event), "creating an event"));
  return Event(event);
}

// Two events. Of the current device. Errors: CudaStatus of what the runtime
// says.
class CudaTimer {
 public:
  static absl::StatusOr<CudaTimer> Create() {
    CudaTimer timer;
    LOCKSTEP_ASSIGN_OR_RETURN(timer.begin_, MakeTimedEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(timer.end_, MakeTimedEvent());
    return timer;
  }

  // Calls `enqueue` between the two on `stream`. Errors: its own too.
  absl::Status Time(cudaStream_t stream,
                    absl::FunctionRef<absl::Status()> enqueue) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(begin_.get(), stream), "starting a timer"));
    LOCKSTEP_RETURN_IF_ERROR(enqueue());
    return CudaStatus(cudaEventRecord(end_.get(), stream), "stopping a timer");
  }

  // Of the last that was timed. Waits until it is done.
  absl::StatusOr<double> Seconds() const {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaEventSynchronize(end_.get()), "waiting for a timer"));
    float milliseconds = 0;
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
        "reading a timer"));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  Event begin_;
  Event end_;
};

// Kernels with an event of their stream before and after each. Borrows both.
class CudaTimedKernels : public TimedKernels {
 public:
  CudaTimedKernels(CudaBatchNormKernels& kernels, CallTiming& timing)
      : TimedKernels(kernels, timing), stream_(kernels.stream()) {}

  // Adds the times of the kernels since the last call to `timing`, once the
  // stream has done them. Errors: CudaStatus of what the runtime says.
  absl::Status Collect() {
    for (size_t i = 0; i < used_; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double seconds,
                                timed_[i].timer.Seconds());
      AddSeconds(timed_[i].kernel, seconds);
    }
    used_ = 0;
    return absl::OkStatus();
  }

 protected:
  // Errors: CudaStatus of what the runtime says, and the kernel's.
  absl::Status Time(TimedKernel kernel,
                    absl::FunctionRef<absl::Status()> run) override {
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

 private:
  struct Timed {
    TimedKernel kernel;
    CudaTimer timer;
  };

  const cudaStream_t stream_;
  std::vector<Timed> timed_;  // Of which the first `used_` are due.
  size_t used_ = 0;
};

// Copies on one stream, whose device is the calling thread's current one. Not
// thread safe. Errors: CudaStatus of what the runtime says.
class CudaLayerMirror : public LayerMirror {
 public:
  // Borrows the stream, and the kernels, whose times Finish collects.
  CudaLayerMirror(cudaStream_t stream, CudaTimedKernels& kernels)
      : stream_(stream), kernels_(kernels) {}

  absl::Status Add(std::span<float> host) override {
    LOCKSTEP_ASSIGN_OR_RETURN(
        DeviceMemory device,
        AllocateDeviceMemory(static_cast<int64_t>(host.size_bytes())));
    parts_.push_back({.host = host, .device = std::move(device)});
    return absl::OkStatus();
  }
  void* Of(const float* host) const override {
    for (const Part& part : parts_) {
      if (part.host.data() == host) return part.device.get();
    }
    return nullptr;
  }
  absl::Status Upload() override {
    return Copy(cudaMemcpyHostToDevice, "copying a layer's tensors to the GPU");
  }
  absl::Status Download() override {
    return Copy(cudaMemcpyDeviceToHost,
                "copying a layer's tensors from the GPU");
  }
  absl::Status Finish() override {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaStreamSynchronize(stream_), "waiting for a layer"));
    return kernels_.Collect();
  }

 private:
  struct Part {
    std::span<float> host;
    DeviceMemory device;
  };

  absl::Status Copy(cudaMemcpyKind kind, const char* what) {
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

  const cudaStream_t stream_;
  CudaTimedKernels& kernels_;
  std::vector<Part> parts_;
};

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

// Turns on a GPU, by subject; TakeCudaTurn says what is promised.
class SyncBnCudaRank {
 public:
  SyncBnCudaRank(Communicator& group, CreateLocalBatchNorm create_local)
      : group_(group), create_local_(std::move(create_local)) {
    timing_.clock = SteadySeconds;
  }

  absl::Status Start(const GroupOptions& options) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CountGpus());
    NcclOptions nccl = {.device = group_.rank() % gpus,
                        .group = {.timeout = options.timeout}};
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
    LOCKSTEP_ASSIGN_OR_RETURN(
        nccl_, NcclCommunicator::Create(std::move(control), nccl));
    LOCKSTEP_ASSIGN_OR_RETURN(kernels_,
                              CudaBatchNormKernels::Create(stream_.get()));
    timed_kernels_.emplace(*kernels_, timing_);
    timed_group_.emplace(*nccl_, timing_, [this] {
      return CudaStatus(cudaStreamSynchronize(stream_.get()),
                        "before a message");
    });
    return absl::OkStatus();
  }

  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request) {
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

 private:
  absl::Status UseLayer(const LayerSpec& spec) {
    if (layer_ != nullptr && layer_->spec() == spec) return absl::OkStatus();
    layer_.reset();  // Its memory first.
    const BatchNormOptions options = OptionsOf(spec);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> local,
                              create_local_(options, *kernels_));
    LOCKSTEP_ASSIGN_OR_RETURN(
        subjects_,
        LayerSubjects::Create(options, std::move(local), *kernels_, *nccl_,
                              *timed_kernels_, *timed_group_));
    LOCKSTEP_ASSIGN_OR_RETURN(
        layer_, SyncBnLayer::Create(spec, group_,
                                    std::make_unique<CudaLayerMirror>(
                                        stream_.get(), *timed_kernels_)));
    return absl::OkStatus();
  }

  absl::StatusOr<RankTurn> TimeMessages(const SyncBnRequest& request) {
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

  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request) {
    // From two tensors to two: within as much memory as the layer has.
    const int64_t bytes = kCopiedTensors * request.layer.shape().size() *
                          SizeOf(request.layer.type);
    LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory memory,
                              AllocateDeviceMemory(2 * bytes));
    std::byte* const to = memory.get() + bytes;
    const auto size = static_cast<size_t>(bytes);
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(memory.get(), kCopied, size, stream_.get()),
                   "filling"));
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

  Communicator& group_;
  const CreateLocalBatchNorm create_local_;
  CallTiming timing_;
  std::string gpu_;  // Its name.
  Stream stream_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::unique_ptr<CudaBatchNormKernels> kernels_;
  std::optional<CudaTimedKernels> timed_kernels_;
  // Its messages begin when the stream has done all before them, so that the
  // time in a message has no kernel's in it.
  std::optional<TimedCommunicator> timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // Of layer_'s channels.
};

}  // namespace

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  return absl::FailedPreconditionError(absl::StrCat(
      "no GPU: ",
      error == cudaSuccess ? "no devices" : cudaGetErrorString(error)));
}

absl::StatusOr<TakeCudaTurn> CreateSyncBnCudaRank(
    Communicator& group, const GroupOptions& options,
    CreateLocalBatchNorm create_local) {
  const auto rank =
      std::make_shared<SyncBnCudaRank>(group, std::move(create_local));
  LOCKSTEP_RETURN_IF_ERROR(rank->Start(options));
  return [rank](const SyncBnRequest& request) { return rank->Take(request); };
}

}  // namespace lockstep::benchmarks
