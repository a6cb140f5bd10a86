#include "benchmarks/syncbn/cuda_rank.h"

#include <cuda_runtime.h>

#include <algorithm>
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
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/nvml.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {
namespace {

float Milliseconds(cudaEvent_t begin, cudaEvent_t end, cudaError_t& error) {
  float milliseconds = 0;
  const cudaError_t read = cudaEventElapsedTime(&milliseconds, begin, end);
  if (error == cudaSuccess) error = read;
  return milliseconds;
}

// Events on one stream: marks between calls or laps, and pairs around the timed
// parts inside them. Not thread safe. Errors: CudaStatus of the runtime's
// errors.
class EventLog {
 public:
  explicit EventLog(cudaStream_t stream) : stream_(stream) {}

  void Clear() {
    used_ = 0;
    marks_.clear();
    parts_.clear();
  }

  // Ends a call, if one has begun, and begins the next.
  absl::Status Mark() {
    LOCKSTEP_ASSIGN_OR_RETURN(cudaEvent_t const event, Record());
    marks_.push_back(event);
    return absl::OkStatus();
  }

  // Times the work that `run` enqueues: a kernel of the call that has begun, or
  // without `kernel` a message of so many bytes. Errors: those of `run` too.
  absl::Status Time(std::optional<TimedKernel> kernel, int64_t bytes,
                    absl::FunctionRef<absl::Status()> run) {
    Part part = {.call = marks_.size(), .kernel = kernel, .bytes = bytes};
    LOCKSTEP_ASSIGN_OR_RETURN(part.begin, Record());
    LOCKSTEP_RETURN_IF_ERROR(run());
    LOCKSTEP_ASSIGN_OR_RETURN(part.end, Record());
    parts_.push_back(part);
    return absl::OkStatus();
  }

  // Returns whether the last mark has been reached.
  bool IsDone() const {
    return cudaEventQuery(marks_.back()) != cudaErrorNotReady;
  }

  // Returns the calls between marks. Waits for the last mark.
  absl::StatusOr<std::vector<CallTimes>> Read() const {
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(marks_.back()),
                                        "waiting for queued calls"));
    std::vector<CallTimes> calls(marks_.size() - 1);
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < calls.size(); ++i) {
      calls[i].end =
          1e-3 * double{Milliseconds(marks_[i], marks_[i + 1], error)};
    }
    for (const Part& part : parts_) {
      // There is no call before the first mark.
      if (part.call == 0 || part.call > calls.size()) continue;
      CallTimes& call = calls[part.call - 1];
      const double seconds =
          1e-3 * double{Milliseconds(part.begin, part.end, error)};
      if (part.kernel.has_value()) {
        call.kernels[static_cast<size_t>(*part.kernel)] += seconds;
      } else {
        // GPUs have no common clock, but leave a message together. The rank
        // that is in the message for the shortest time entered it last.
        call.messages.push_back(
            {.entered = -seconds, .left = 0, .bytes = part.bytes});
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(error, "reading a timer"));
    return calls;
  }

 private:
  struct Part {
    size_t call = 0;  // The number of marks before the part.
    std::optional<TimedKernel> kernel;
    int64_t bytes = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };

  absl::StatusOr<cudaEvent_t> Record() {
    if (used_ == events_.size()) {
      LOCKSTEP_ASSIGN_OR_RETURN(Event event, MakeTimedEvent());
      events_.push_back(std::move(event));
    }
    cudaEvent_t const event = events_[used_++].get();
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(event, stream_), "recording an event"));
    return event;
  }

  const cudaStream_t stream_;
  std::vector<Event> events_;
  size_t used_ = 0;
  std::vector<cudaEvent_t> marks_;
  std::vector<Part> parts_;
};

// Kernels, and messages, with an event of their stream before and after each.
// Both classes borrow their arguments.
class CudaTimedKernels : public TimedKernels {
 public:
  CudaTimedKernels(CudaBatchNormKernels& kernels, CallTiming& timing,
                   EventLog& log)
      : TimedKernels(kernels, timing), log_(log) {}

 protected:
  absl::Status Time(TimedKernel kernel,
                    absl::FunctionRef<absl::Status()> run) override {
    return log_.Time(kernel, 0, run);
  }

 private:
  EventLog& log_;
};

class CudaTimedCommunicator : public ForwardingCommunicator {
 public:
  CudaTimedCommunicator(Communicator& group, EventLog& log)
      : ForwardingCommunicator(group), log_(log) {}

  absl::Status Run(const Collective& call) override {
    return log_.Time(std::nullopt, call.input.size_bytes(),
                     [&] { return inner().Run(call); });
  }

 private:
  EventLog& log_;
};

// Queues the calls of turns on a rank's stream, and reads their times.
class CallQueue {
 public:
  using SetPass = LayerMirror::SetPass;

  // Borrows all arguments. group: where the ranks meet; messages: the group
  // that calls send over.
  CallQueue(Communicator& group, Communicator& messages, EventLog& log,
            const NvmlGpu& nvml)
      : group_(group), messages_(messages), log_(log), nvml_(nvml) {}

  // Works as LayerMirror::Time. The ranks meet first; then each host queues its
  // calls. backward: may be null.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request, int sets,
                                const SetPass& forward,
                                const SetPass& backward = nullptr) {
    const auto laps_for = [sets](int calls) {
      return (calls + sets - 1) / sets;
    };
    // An event takes a GPU about as long as a small kernel. So only kSplit has
    // an event for each call.
    const bool one_by_one = request.subject == SyncBnSubject::kSplit;
    log_.Clear();
    LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
    const int warmup = laps_for(request.warmup);
    const int laps = laps_for(request.iterations);
    double begin = 0;
    for (int lap = -warmup; lap < laps; ++lap) {
      if (lap == 0) begin = SteadySeconds();
      for (const SetPass* const pass : {&forward, &backward}) {
        for (int set = 0; *pass != nullptr && set < sets; ++set) {
          if (set == 0 || one_by_one) LOCKSTEP_RETURN_IF_ERROR(log_.Mark());
          LOCKSTEP_RETURN_IF_ERROR((*pass)(set));
        }
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(log_.Mark());
    RankTurn turn;
    turn.host_seconds = (SteadySeconds() - begin) / (laps * sets);
    turn.sm_mhz = nvml_.SmClockMhz().value_or(0);
    // If the GPU was already done, the clock read is that of an idle GPU.
    if (log_.IsDone()) turn.sm_mhz = 0;
    LOCKSTEP_RETURN_IF_ERROR(messages_.Wait());
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<CallTimes> calls, log_.Read());
    const int passes = backward == nullptr ? 1 : 2;
    const int marks = one_by_one ? sets : 1;  // In a lap's pass.
    for (size_t i = static_cast<size_t>(warmup * passes * marks);
         i < calls.size(); ++i) {
      const bool ahead = static_cast<int>(i) / marks % passes == 0;
      calls[i].end *= static_cast<double>(marks) / sets;
      (ahead ? turn.forward : turn.backward).push_back(std::move(calls[i]));
    }
    return turn;
  }

 private:
  Communicator& group_;
  Communicator& messages_;
  EventLog& log_;
  const NvmlGpu& nvml_;
};

// Copies on one stream, whose device is the calling thread's current one. Not
// thread safe. Errors: CudaStatus of the runtime's errors.
class CudaLayerMirror : public LayerMirror {
 public:
  // Borrows the stream and the queue.
  CudaLayerMirror(cudaStream_t stream, CallQueue& queue, int sets)
      : stream_(stream), queue_(queue), sets_(sets) {}

  int sets() const override { return sets_; }
  void Add(std::span<float> host) override {
    // Sets begin at multiples of 256, as fresh memory does.
    const auto stride =
        (static_cast<int64_t>(host.size_bytes()) + 255) / 256 * 256;
    parts_.push_back({.host = host, .device = {}, .stride = stride});
  }
  void* Of(const float* host, int set) const override {
    for (const Part& part : parts_) {
      if (part.host.data() == host) return part.Of(set);
    }
    return nullptr;
  }
  absl::Status Upload() override {
    for (Part& part : parts_) {
      if (part.device == nullptr) {
        LOCKSTEP_ASSIGN_OR_RETURN(part.device,
                                  AllocateDeviceMemory(sets_ * part.stride));
      }
      LOCKSTEP_RETURN_IF_ERROR(
          Copy(part.Of(0), part.host.data(), part, cudaMemcpyHostToDevice));
      for (int set = 1; set < sets_; ++set) {
        LOCKSTEP_RETURN_IF_ERROR(
            Copy(part.Of(set), part.Of(0), part, cudaMemcpyDeviceToDevice));
      }
    }
    return Wait();
  }
  absl::Status Download(int set) override {
    for (const Part& part : parts_) {
      LOCKSTEP_RETURN_IF_ERROR(
          Copy(part.host.data(), part.Of(set), part, cudaMemcpyDeviceToHost));
    }
    return Wait();
  }
  void Release() override {
    for (Part& part : parts_) part.device.reset();
  }
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request,
                                const SetPass& forward,
                                const SetPass& backward) override {
    return queue_.Time(request, sets_, forward, backward);
  }

 private:
  struct Part {
    std::byte* Of(int set) const { return device.get() + set * stride; }

    std::span<float> host;
    DeviceMemory device;
    int64_t stride;  // The distance of two sets.
  };

  absl::Status Copy(void* to, const void* from, const Part& part,
                    cudaMemcpyKind kind) {
    return CudaStatus(
        cudaMemcpyAsync(to, from, part.host.size_bytes(), kind, stream_),
        "copying a layer's tensors");
  }
  absl::Status Wait() {
    return CudaStatus(cudaStreamSynchronize(stream_),
                      "copying a layer's tensors");
  }

  const cudaStream_t stream_;
  CallQueue& queue_;
  const int sets_;
  std::vector<Part> parts_;
};

// The byte that a copy writes over zeros.
constexpr int kCopied = 0x5a;

absl::StatusOr<int64_t> CountBytesOtherThan(int value, const std::byte* device,
                                            int64_t bytes) {
  std::vector<std::byte> host(static_cast<size_t>(bytes));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost),
      "reading a copy"));
  const auto right =
      std::count(host.begin(), host.end(), static_cast<std::byte>(value));
  return bytes - static_cast<int64_t>(right);
}

// Takes turns on a GPU, by subject. TakeCudaTurn documents them.
class SyncBnCudaRank {
 public:
  SyncBnCudaRank(Communicator& group, SyncBnCudaRankOptions options)
      : group_(group), options_(std::move(options)) {}

  absl::Status Start() {
    LOCKSTEP_ASSIGN_OR_RETURN(device_, DeviceOfRank(options_.local_rank));
    NcclOptions nccl = {.device = device_,
                        .group = {.timeout = options_.group.timeout}};
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(device_), "choosing the GPU"));
    cudaDeviceProp properties;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaGetDeviceProperties(&properties, device_),
                   "asking for the GPU's name"));
    gpu_ = properties.name;
    int cache = 0;
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device_),
        "asking for the GPU's cache"));
    // All ranks use the largest cache, so that they have the same number of
    // sets and calls.
    cache_bytes_ = cache;
    LOCKSTEP_RETURN_IF_ERROR(
        group_.AllReduce(Buffer(std::span(&cache_bytes_, 1)), ReduceOp::kMax));
    LOCKSTEP_ASSIGN_OR_RETURN(stream_, MakeStream());
    nccl.stream = stream_.get();
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                              group_.Split(0, 0));
    LOCKSTEP_ASSIGN_OR_RETURN(
        nccl_, NcclCommunicator::Create(std::move(control), nccl));
    LOCKSTEP_ASSIGN_OR_RETURN(kernels_,
                              CudaBatchNormKernels::Create(stream_.get()));
    log_.emplace(stream_.get());
    nvml_.emplace(properties.uuid.bytes);
    queue_.emplace(group_, *nccl_, *log_, *nvml_);
    timed_kernels_.emplace(*kernels_, timing_, *log_);
    timed_group_.emplace(*nccl_, *log_);
    return absl::OkStatus();
  }

  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request) {
    LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn, TakeUnnamed(request));
    turn.gpu = gpu_;
    turn.shared_gpu = nccl_->shared_gpu() ? 1 : 0;
    return turn;
  }

 private:
  // A layer of the network.
  struct NetworkLayer {
    LayerSubjects subjects;
    std::unique_ptr<SyncBnLayer> layer;
  };

  absl::StatusOr<RankTurn> TakeUnnamed(const SyncBnRequest& request) {
    if (request.network != 0) return TimeNetwork(request);
    network_.clear();
    switch (request.subject) {
      case SyncBnSubject::kCopy:
        return TimeCopies(request);
      case SyncBnSubject::kMessage:
        return TimeMessages(request);
      case SyncBnSubject::kTorch:
      case SyncBnSubject::kTorchSync:
        return TakePeer(request);
      default:
        LOCKSTEP_RETURN_IF_ERROR(UseLayer(request.layer));
        return subjects_.Time(*layer_, request, timing_);
    }
  }

  // Forward reads x and writes y. Backward begins after forward on all sets.
  int SetsOf(const LayerSpec& spec) const {
    return SetsBeyondCache(2 * spec.shape().size() * SizeOf(spec.type),
                           cache_bytes_);
  }

  absl::StatusOr<LayerSubjects> CreateSubjects(
      const BatchNormOptions& options, std::unique_ptr<BatchNorm> local) {
    return LayerSubjects::Create(options, std::move(local), *kernels_, *nccl_,
                                 *timed_kernels_, *timed_group_);
  }
  absl::StatusOr<std::unique_ptr<SyncBnLayer>> CreateLayer(
      const LayerSpec& spec, int sets) {
    return SyncBnLayer::Create(
        spec, group_,
        std::make_unique<CudaLayerMirror>(stream_.get(), *queue_, sets));
  }

  absl::Status UseLayer(const LayerSpec& spec) {
    const bool same = layer_ != nullptr && layer_->spec() == spec;
    if (same && subjects_.sync != nullptr) return absl::OkStatus();
    if (!same) layer_.reset();  // Its memory is freed first.
    const BatchNormOptions options = OptionsOf(spec);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> local,
                              options_.create_local(options, *kernels_));
    LOCKSTEP_ASSIGN_OR_RETURN(subjects_,
                              CreateSubjects(options, std::move(local)));
    if (same) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(layer_, CreateLayer(spec, SetsOf(spec)));
    return absl::OkStatus();
  }

  absl::Status UseNetwork(const LayerSpec& spec) {
    if (!network_.empty()) return absl::OkStatus();
    layer_.reset();
    subjects_ = {};
    int64_t touched = 0;
    std::vector<LayerSpec> specs;
    for (const ActivationShape& shape : options_.network) {
      LayerSpec& layer = specs.emplace_back(spec);
      layer.h = shape.hw;
      layer.w = 1;
      layer.c = shape.c;
      layer.seed += specs.size();
      touched += 4 * layer.shape().size() * SizeOf(layer.type);
    }
    network_sets_ = SetsBeyondCache(touched, cache_bytes_);
    for (const LayerSpec& layer : specs) {
      NetworkLayer made;
      LOCKSTEP_ASSIGN_OR_RETURN(made.subjects,
                                CreateSubjects(OptionsOf(layer), nullptr));
      LOCKSTEP_ASSIGN_OR_RETURN(made.layer, CreateLayer(layer, network_sets_));
      network_.push_back(std::move(made));
    }
    return absl::OkStatus();
  }

  // Runs all layers forward, then all backward, on their set `set`.
  absl::Status Step(SyncBnSubject subject, int set) {
    const auto norm = [subject](const NetworkLayer& layer) -> BatchNorm& {
      return subject == SyncBnSubject::kLocal  ? *layer.subjects.own_local
             : subject == SyncBnSubject::kSync ? *layer.subjects.sync
                                               : *layer.subjects.split;
    };
    for (NetworkLayer& layer : network_) {
      LOCKSTEP_RETURN_IF_ERROR(layer.layer->Forward(norm(layer), set));
    }
    for (size_t i = network_.size(); i-- > 0;) {
      LOCKSTEP_RETURN_IF_ERROR(
          network_[i].layer->Backward(norm(network_[i]), set));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RankTurn> TimeNetwork(const SyncBnRequest& request) {
    LOCKSTEP_RETURN_IF_ERROR(UseNetwork(request.layer));
    for (NetworkLayer& layer : network_) {
      LOCKSTEP_RETURN_IF_ERROR(layer.layer->Prepare());
    }
    LOCKSTEP_ASSIGN_OR_RETURN(
        RankTurn turn, queue_->Time(request, network_sets_, [&](int set) {
          return Step(request.subject, set);
        }));
    for (NetworkLayer& layer : network_) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const int64_t wrong,
          layer.layer->CountWrong(request.subject != SyncBnSubject::kLocal,
                                  network_sets_ - 1));
      turn.wrong += wrong;
    }
    return turn;
  }

  absl::StatusOr<RankTurn> TakePeer(const SyncBnRequest& request) {
    if (options_.take_peer == nullptr) {
      return Missing(absl::UnimplementedError("not asked for"));
    }
    // The GPU's memory is left to PyTorch. The host's memory of the layer is
    // kept, because it took seconds to compute.
    subjects_ = {};
    if (layer_ != nullptr) layer_->Release();
    return options_.take_peer(
        request, absl::StrCat("cuda ", device_, " ", group_.rank(), " ",
                              group_.world_size(), " ", SetsOf(request.layer)));
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
        CudaStatus(cudaMemsetAsync(sums.get(), 0, sums_bytes, stream_.get()),
                   "clearing sums"));
    const MessagePasses passes =
        MessagesOf(request.layer, *nccl_,
                   Buffer(records.get(), records_bytes, DataType::kUInt8),
                   Buffer(sums.get(), sums_count, DataType::kFloat32));
    return queue_->Time(
        request, /*sets=*/1, [&](int) { return passes.forward(); },
        [&](int) { return passes.backward(); });
  }

  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request) {
    // The copy goes from two tensors to two others.
    const int64_t bytes = kCopiedTensors * request.layer.shape().size() *
                          SizeOf(request.layer.type);
    const int sets = SetsBeyondCache(2 * bytes, cache_bytes_);
    LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory memory,
                              AllocateDeviceMemory(2 * sets * bytes));
    std::byte* const to = memory.get() + sets * bytes;
    const auto all = static_cast<size_t>(sets * bytes);
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(memory.get(), kCopied, all, stream_.get()), "filling"));
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(to, 0, all, stream_.get()), "clearing"));
    LOCKSTEP_ASSIGN_OR_RETURN(
        RankTurn turn, queue_->Time(request, sets, [&](int set) {
          return CudaStatus(
              cudaMemcpyAsync(to + set * bytes, memory.get() + set * bytes,
                              static_cast<size_t>(bytes),
                              cudaMemcpyDeviceToDevice, stream_.get()),
              "copying");
        }));
    LOCKSTEP_ASSIGN_OR_RETURN(
        turn.wrong,
        CountBytesOtherThan(kCopied, to + (sets - 1) * bytes, bytes));
    return turn;
  }

  Communicator& group_;
  const SyncBnCudaRankOptions options_;
  CallTiming timing_;  // Nothing here writes to it.
  int device_ = 0;
  std::string gpu_;          // The GPU's name.
  int64_t cache_bytes_ = 0;  // The largest L2 of all ranks.
  Stream stream_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::unique_ptr<CudaBatchNormKernels> kernels_;
  std::optional<EventLog> log_;
  std::optional<NvmlGpu> nvml_;
  std::optional<CallQueue> queue_;
  std::optional<CudaTimedKernels> timed_kernels_;
  std::optional<CudaTimedCommunicator> timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // For layer_'s channels.
  std::vector<NetworkLayer> network_;
  int network_sets_ = 1;
};

}  // namespace

int SetsBeyondCache(int64_t touched, int64_t cache_bytes) {
  return static_cast<int>(1 + (3 * cache_bytes + touched) / touched);
}

absl::StatusOr<TakeCudaTurn> CreateSyncBnCudaRank(
    Communicator& group, SyncBnCudaRankOptions options) {
  const auto rank = std::make_shared<SyncBnCudaRank>(group, std::move(options));
  LOCKSTEP_RETURN_IF_ERROR(rank->Start());
  return [rank](const SyncBnRequest& request) { return rank->Take(request); };
}

}  // namespace lockstep::benchmarks
