// Collectives on GPUs: agreement of the ranks, NCCL, and failures.
#include "collectives/nccl/nccl_communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/deadline.h"
#include "base/fnv1a.h"
#include "base/run_within.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/nccl/call_poller.h"
#include "collectives/nccl/gpu_direct.h"
#include "collectives/nccl/gpu_ring.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/issue_order.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/watchdog.h"
#include "collectives/pending_collective.h"
#include "collectives/replay.h"

namespace lockstep {
namespace {

// Return whether an operation ignores its input, or its output, on this rank.
bool IgnoresInput(const Collective& call, int rank) {
  return call.operation == Operation::kScatter && rank != call.peer;
}
bool IgnoresOutput(const Collective& call, int rank) {
  return (call.operation == Operation::kReduce ||
          call.operation == Operation::kGather) &&
         rank != call.peer;
}

// How long a failed group waits for its streams to end: a kernel takes
// milliseconds, but may wait behind the caller's.
constexpr absl::Duration kStreamsEnd = absl::Milliseconds(500);

// How long it waits for kernels on windows to end, before NCCL unmaps the
// windows. Kernels that wait for another rank see the failure at once, but may
// need a core that another program has (on the stand-in).
constexpr absl::Duration kWindowKernelsEnd = absl::Milliseconds(500);

// How long it waits for CUDA to destroy the ring's graphs.
constexpr absl::Duration kGraphsEnd = absl::Seconds(1);

// How long it waits for CUDA to answer a query, in addition to the times above.
constexpr absl::Duration kAnswer = absl::Milliseconds(100);

absl::Status CheckOptions(const NcclOptions& options) {
  if (options.group.algorithm == Algorithm::kTree) {
    return absl::InvalidArgumentError(
        "the nccl backend has the algorithms auto, ring and direct, not tree");
  }
  if (options.chunk_bytes < 16 || options.chunk_bytes % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes,
                     ", which is no positive multiple of 16"));
  }
  return absl::OkStatus();
}

// Returns an error as a phrase that continues "rank 1 called Gather(...) but ".
absl::Status CheckMemory(const ConstBuffer& buffer, const char* name,
                         int device, bool aligned) {
  if (buffer.count == 0) return absl::OkStatus();
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, buffer.data);
  if (error != cudaSuccess || (attributes.type != cudaMemoryTypeDevice &&
                               attributes.type != cudaMemoryTypeManaged)) {
    // Older runtimes record an error for memory that is not CUDA's.
    cudaGetLastError();
    return absl::InvalidArgumentError(
        absl::StrCat("its ", name, " is not device memory"));
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", name, " is memory of GPU ", attributes.device,
                     ", not of its GPU ", device));
  }
  if (aligned &&
      reinterpret_cast<uintptr_t>(buffer.data) % SizeOf(buffer.type) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", name,
                     " is not aligned to its elements, as device "
                     "memory that is reduced must be"));
  }
  return absl::OkStatus();
}

// The buffers that a rank sends to, and receives from, each rank; empty if
// none.
struct Messages {
  explicit Messages(int world_size) : sent(world_size), received(world_size) {}

  std::vector<ConstBuffer> sent;
  std::vector<Buffer> received;
};

Messages MessagesOf(const Collective& call, int rank, int world_size) {
  Messages messages(world_size);
  const bool is_root = rank == call.peer;
  int64_t begin = 0;
  for (int peer = 0; peer < world_size; ++peer) {
    switch (call.operation) {
      case Operation::kAllGather:
        messages.sent[peer] = call.input;
        messages.received[peer] = call.output.Part(begin, call.counts[peer]);
        begin += call.counts[peer];
        break;
      case Operation::kScatter: {
        const int64_t part = call.output.count;
        if (is_root) {
          messages.sent[peer] = call.input.Part(peer * part, part);
        }
        if (peer == call.peer) messages.received[peer] = call.output;
        break;
      }
      case Operation::kGather: {
        const int64_t part = call.input.count;
        if (peer == call.peer) messages.sent[peer] = call.input;
        if (is_root) {
          messages.received[peer] = call.output.Part(peer * part, part);
        }
        break;
      }
      case Operation::kAllToAll: {
        const int64_t part = call.input.count / world_size;
        messages.sent[peer] = call.input.Part(peer * part, part);
        messages.received[peer] = call.output.Part(peer * part, part);
        break;
      }
      default:
        break;
    }
  }
  return messages;
}

// Copies a rank's own part, unless it is in place already.
absl::Status CopyOwn(const ConstBuffer& from, const Buffer& to,
                     cudaStream_t stream) {
  if (from.count == 0 || from.data == to.data) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.size_bytes()),
                      cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync");
}

absl::Status EnqueueMessages(const Messages& messages, int rank,
                             NcclHandle& handle, cudaStream_t stream) {
  LOCKSTEP_RETURN_IF_ERROR(
      CopyOwn(messages.sent[rank], messages.received[rank], stream));
  const int world_size = static_cast<int>(messages.sent.size());
  return handle.Group([&] {
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer == rank) continue;
      const ncclResult_t results[] = {
          handle.Send(messages.sent[peer], peer, stream),
          handle.Receive(messages.received[peer], peer, stream)};
      for (const ncclResult_t result : results) {
        if (result != ncclSuccess) return result;
      }
    }
    return ncclSuccess;
  });
}

// Enqueues a valid call, on device memory, on `stream`. The call is done when
// the stream has reached its end. Reductions are NCCL's, and their memory is
// aligned to its elements. Scatter, gather, all-to-all and all-gather of
// unequal counts are groups of messages. kBarrier, kAllocate and kSplit move
// nothing. Errors: NcclHandle::Group's, CudaStatus's.
absl::Status EnqueueNative(const Collective& call, int rank, int world_size,
                           NcclHandle& handle, cudaStream_t stream) {
  switch (call.operation) {
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      return absl::OkStatus();
    case Operation::kSend:
      return handle.Group(
          [&] { return handle.Send(call.input, call.peer, stream); });
    case Operation::kReceive:
      return handle.Group(
          [&] { return handle.Receive(call.output, call.peer, stream); });
    case Operation::kAllGather:
      if (call.counts.empty()) break;
      [[fallthrough]];
    case Operation::kScatter:
    case Operation::kGather:
    case Operation::kAllToAll:
      return EnqueueMessages(MessagesOf(call, rank, world_size), rank, handle,
                             stream);
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
      break;
  }
  return handle.Group(
      [&] { return IssueNative(call, rank, handle.comm(), stream); });
}

// A call on the GPU, whose number the watchdog gave. The first Wait tells what
// became of the call.
class OnGpu : public PendingCollective::Progress {
 public:
  OnGpu(Watchdog& watchdog, int64_t number)
      : watchdog_(watchdog), number_(number) {}

  absl::Status Wait() override {
    if (!status_.has_value()) status_ = watchdog_.WaitForCallsUpTo(number_);
    return *status_;
  }
  bool done() override {
    return status_.has_value() || watchdog_.HaveEndedUpTo(number_);
  }

 private:
  Watchdog& watchdog_;
  const int64_t number_;
  std::optional<absl::Status> status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    std::unique_ptr<Communicator> control, const NcclOptions& options) {
  return Create(std::move(control), options, std::make_shared<IssueOrder>());
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    std::unique_ptr<Communicator> control, const NcclOptions& options,
    std::shared_ptr<IssueOrder> order) {
  if (control == nullptr) {
    return absl::InvalidArgumentError("the nccl backend has no control group");
  }
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(*control, options, std::move(order)));
  LOCKSTEP_RETURN_IF_ERROR(made->Join(std::move(control)));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  // The current device may have changed since the last call.
  cudaSetDevice(options_.device);
  if (watchdog_ == nullptr) return;
  static_cast<void>(watchdog_->WaitForCalls());
  const bool in_health = watchdog_->Leave();
  if (ring_ != nullptr) ring_->DestroyGraphs();
  CloseDirect();
  if (in_health) handle_->Destroy(options_.group.timeout);
}

absl::Status NcclCommunicator::Join(std::unique_ptr<Communicator> control) {
  absl::Status own = CheckOptions(options_);
  if (own.ok()) own = Prepare();
  LOCKSTEP_ASSIGN_OR_RETURN(shared_gpu_,
                            ShareGpus(*control, options_.device, own));
  NcclSetup setup = {.algorithm = options_.group.algorithm,
                     .nccl_arithmetic = options_.nccl_arithmetic,
                     .chunk_bytes = options_.chunk_bytes};
  LOCKSTEP_RETURN_IF_ERROR(ExchangeSetup(*control, setup));
  options_.group.algorithm = setup.algorithm;
  options_.nccl_arithmetic = setup.nccl_arithmetic;
  options_.chunk_bytes = setup.chunk_bytes;
  if (options_.group.algorithm != Algorithm::kAuto) {
    // Turns off NCCL's automatic registration of buffers in windows and graphs,
    // before NCCL first asks for it. Both ranks of a message would have to
    // register their buffers, but the ring's slots are not registered.
    LOCKSTEP_RETURN_IF_ERROR(ShareStatus(
        *control, SetNcclEnvironment({{"NCCL_LOCAL_REGISTER", "0"},
                                      {"NCCL_GRAPH_REGISTER", "0"}})));
  }
  LOCKSTEP_RETURN_IF_ERROR(handle_->Init(*control, setup.id, options_.device,
                                         options_.group.timeout));
  if (world_size_ > 1) {
    absl::StatusOr<std::unique_ptr<GpuRing>> ring = GpuRing::Create(
        rank_, world_size_, options_.chunk_bytes, *handle_, stream_.get());
    LOCKSTEP_RETURN_IF_ERROR(ShareJoining(*control, ring.status()));
    ring_ = *std::move(ring);
  }
  if (options_.group.algorithm == Algorithm::kDirect && world_size_ > 1) {
    LOCKSTEP_RETURN_IF_ERROR(CreateDirect(*control));
  }
  watchdog_ = std::make_unique<Watchdog>(
      std::move(control),
      Watchdog::Options{.device = options_.device,
                        .timeout = options_.group.timeout,
                        .order = order_,
                        .health = [this] { return handle_->Health(); },
                        .abort = [this] { Abort(); }});
  return absl::OkStatus();
}

// Makes direct_ if all ranks can access each other's memory. Otherwise direct_
// is null on every rank.
absl::Status NcclCommunicator::CreateDirect(Communicator& control) {
  absl::StatusOr<std::unique_ptr<GpuDirect>> direct = GpuDirect::Create(
      rank_, world_size_, handle_, stream_.get(), options_.group.timeout);
  LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, direct.status()));
  direct_ = *std::move(direct);
  const absl::Status reached = ShareStatus(
      control, direct_ != nullptr ? absl::OkStatus()
                                  : absl::UnimplementedError("no windows"));
  if (absl::IsUnimplemented(reached)) {
    CloseDirect();
    return absl::OkStatus();
  }
  return reached;
}

void NcclCommunicator::CloseDirect() {
  if (direct_ == nullptr) return;
  direct_->Close();
  direct_ = nullptr;
}

// CUDA may not answer while another thread waits for the device. Every call of
// CUDA therefore runs in a thread of its own, which is abandoned in time.
void NcclCommunicator::Abort() {
  // NCCL waits until the graphs that captured its calls are destroyed, and a
  // graph that hangs ends only after NCCL aborts. Both therefore run at once.
  std::thread forget([ring = ring_] {
    if (ring == nullptr) return;
    static_cast<void>(RunWithin(kGraphsEnd, [ring] {
      ring->DestroyGraphs();
      return absl::OkStatus();
    }));
  });
  if (direct_ != nullptr) {
    direct_->Abort();
    // ncclCommAbort unmaps windows without waiting for kernels that use them,
    // which would then fault, and CUDA with them.
    WaitForStreams(kWindowKernelsEnd, /*of_ring=*/false);
  }
  handle_->Abort();
  forget.join();
  // Work that follows NCCL's kernels on the streams still runs.
  WaitForStreams(kStreamsEnd, /*of_ring=*/true);
}

void NcclCommunicator::WaitForStreams(absl::Duration limit,
                                      bool of_ring) const {
  const auto wait = [limit, device = options_.device, stream = stream_,
                     graphs = replayed_on_.load(),
                     ring = of_ring ? ring_ : nullptr]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(UseDeviceBesideCaptures(device));
    const Deadline deadline(limit);
    while (
        (cudaStreamQuery(stream.get()) == cudaErrorNotReady ||
         (graphs != nullptr && cudaStreamQuery(graphs) == cudaErrorNotReady) ||
         (ring != nullptr && ring->IsBusy())) &&
        !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return absl::OkStatus();
  };
  static_cast<void>(RunWithin(limit + kAnswer, wait));
}

absl::Status NcclCommunicator::Prepare() {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaSetDevice(options_.device),
      absl::StrCat("rank ", rank_, ": cudaSetDevice(", options_.device, ")")));
  LOCKSTEP_ASSIGN_OR_RETURN(stream_, MakeUrgentStream());
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Run(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(Issue(call).status());
  return call.operation == Operation::kBarrier ? watchdog_->WaitForRanks()
                                               : absl::OkStatus();
}

PendingCollective NcclCommunicator::Start(const Collective& call) {
  const absl::StatusOr<int64_t> number = Issue(call);
  if (!number.ok()) return PendingCollective(number.status());
  return PendingCollective(std::make_shared<OnGpu>(*watchdog_, *number));
}

absl::StatusOr<int64_t> NcclCommunicator::Issue(const Collective& collective) {
  Call call = CallOf(collective, world_size_);
  // The hash includes the place, so that ranks which use different places
  // disagree.
  const uint64_t place = direct_ == nullptr ? 0 : direct_->PlaceOf(collective);
  call.AddToHash(place);
  if (captured_ != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(IssueCaptured(collective, call, place != 0));
    return -1;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t number,
                            watchdog_->Begin(call, CheckArguments(collective)));
  if (call.operation == Operation::kBarrier) {
    watchdog_->Issued(nullptr);
    return number;
  }
  absl::StatusOr<std::shared_ptr<CallEvents>> events = watchdog_->TakeEvents();
  absl::StatusOr<bool> capturing = IsCapturing();
  absl::Status status = events.status();
  status.Update(capturing.status());
  if (status.ok()) {
    status = Enqueue(collective, place != 0, *capturing, **events);
  }
  if (!status.ok()) return watchdog_->Failed(status);
  if (*capturing) {
    // Events that are part of a graph must not be queried.
    watchdog_->ReturnEvents(*std::move(events));
    watchdog_->Issued(nullptr);
  } else {
    watchdog_->Issued(*std::move(events));
  }
  return number;
}

absl::Status NcclCommunicator::IssueCaptured(const Collective& collective,
                                             const Call& call, bool is_direct) {
  if (call.operation == Operation::kBarrier || IsBetweenTwo(call.operation)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a graph cannot capture ", ToString(call)));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckArguments(collective));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<CallEvents> events,
                            watchdog_->TakeEvents());
  LOCKSTEP_RETURN_IF_ERROR(
      Enqueue(collective, is_direct, /*capturing=*/true, *events));
  watchdog_->ReturnEvents(std::move(events));
  // The source positions do not count; the places among the calls of other
  // groups do.
  Call agreed = call;
  agreed.line = 0;
  std::ranges::fill(agreed.file, 0);
  ++captured_->count;
  captured_->hash =
      Fnv1a(absl::StrCat(ToString(agreed), agreed.hash, "#",
                         order_->NextCaptured() - captured_begin_),
            captured_->hash);
  return absl::OkStatus();
}

absl::StatusOr<NcclCommunicator::CapturedCalls> NcclCommunicator::Capture(
    absl::FunctionRef<absl::Status()> enqueue, CallSite site) {
  CapturedCalls calls;
  captured_ = &calls;
  captured_begin_ = order_->captured();
  const absl::Status status = enqueue();
  captured_ = nullptr;
  if (status.ok()) return calls;
  // The other ranks learn why this rank will not replay the graph.
  return watchdog_->Begin(CallOf(kReplay, /*count=*/0, site), status).status();
}

absl::Status NcclCommunicator::Replay(const CapturedCalls& calls,
                                      cudaStream_t stream,
                                      absl::FunctionRef<absl::Status()> launch,
                                      CallSite site) {
  Call call = CallOf(kReplay, calls.count, site);
  call.AddToHash(calls.hash);
  LOCKSTEP_RETURN_IF_ERROR(
      watchdog_->Begin(call, /*arguments=*/absl::OkStatus()).status());
  absl::StatusOr<std::shared_ptr<CallEvents>> events = watchdog_->TakeEvents();
  const auto record = [stream](const Event& event) {
    return CudaStatus(cudaEventRecord(event.get(), stream), "cudaEventRecord");
  };
  replayed_on_ = stream;
  absl::Status status = events.status();
  if (status.ok()) status = record((*events)->started);
  if (status.ok()) status = launch();
  if (status.ok()) status = record((*events)->done);
  if (!status.ok()) return watchdog_->Failed(status);
  watchdog_->Issued(*std::move(events));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Wait() { return watchdog_->WaitForCalls(); }

absl::Status NcclCommunicator::CheckArguments(const Collective& call) const {
  LOCKSTEP_RETURN_IF_ERROR(Validate(call, rank_, world_size_));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice"));
  if (!IgnoresInput(call, rank_)) {
    LOCKSTEP_RETURN_IF_ERROR(CheckMemory(call.input, "input", options_.device,
                                         Reduces(call.operation)));
  }
  if (IgnoresOutput(call, rank_)) return absl::OkStatus();
  return CheckMemory(call.output, "output", options_.device,
                     Reduces(call.operation));
}

absl::StatusOr<bool> NcclCommunicator::IsCapturing() const {
  // The legacy stream cannot be captured.
  if (options_.stream == nullptr) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamIsCapturing(options_.stream, &status),
                 "cudaStreamIsCapturing"));
  return status != cudaStreamCaptureStatusNone;
}

absl::Status NcclCommunicator::Enqueue(const Collective& call, bool is_direct,
                                       bool capturing,
                                       const CallEvents& events) {
  const auto order = [](cudaStream_t earlier, const Event& event,
                        cudaStream_t later) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(event.get(), earlier), "cudaEventRecord"));
    return CudaStatus(cudaStreamWaitEvent(later, event.get(), 0),
                      "cudaStreamWaitEvent");
  };
  LOCKSTEP_RETURN_IF_ERROR(
      order(options_.stream, events.started, stream_.get()));
  LOCKSTEP_RETURN_IF_ERROR(EnqueueOnOwnStream(call, is_direct, capturing));
  return order(stream_.get(), events.done, options_.stream);
}

bool NcclCommunicator::UsesRing(const Collective& call) const {
  if (!Reduces(call.operation) || world_size_ == 1) return false;
  if (options_.group.algorithm != Algorithm::kAuto) return true;
  return !options_.nccl_arithmetic &&
         !NcclKeepsMeaning(call.input.type, call.op);
}

absl::Status NcclCommunicator::EnqueueOnOwnStream(const Collective& call,
                                                  bool is_direct,
                                                  bool capturing) {
  if (is_direct) return direct_->Reduce(call);
  if (UsesRing(call)) return ring_->Reduce(call, capturing);
  return EnqueueNative(call, rank_, world_size_, *handle_, stream_.get());
}

absl::StatusOr<GroupBuffer> NcclCommunicator::Allocate(int64_t bytes,
                                                       CallSite site) {
  const Call call = CallOf(Operation::kAllocate, bytes, site);
  if (captured_ != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a graph cannot capture ", ToString(call)));
  }
  if (bytes < 0) {
    const absl::Status own = absl::InvalidArgumentError("the size is negative");
    return watchdog_->Begin(call, own).status();
  }
  // Allocates before the ranks agree, so that no rank waits for one without
  // memory.
  absl::StatusOr<std::shared_ptr<std::byte>> memory = AllocateOwn(bytes);
  LOCKSTEP_RETURN_IF_ERROR(watchdog_->Begin(call, memory.status()).status());
  LOCKSTEP_RETURN_IF_ERROR(watchdog_->WaitForRanks());
  if (direct_ != nullptr && bytes > 0) {
    memory = direct_->Register(*std::move(memory), bytes);
  }
  absl::Status status = memory.status();
  if (status.ok()) status = Zero(memory->get(), bytes);
  if (!status.ok()) return watchdog_->Failed(status);
  watchdog_->Issued(nullptr);
  std::byte* const begin = memory->get();
  return GroupBuffer(*std::move(memory),
                     std::span(begin, static_cast<size_t>(bytes)));
}

absl::StatusOr<std::shared_ptr<std::byte>> NcclCommunicator::AllocateOwn(
    int64_t bytes) const {
  if (bytes == 0) return nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice"));
  if (direct_ != nullptr) return direct_->Allocate(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(bytes));
  return memory;
}

absl::Status NcclCommunicator::Zero(std::byte* memory, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  // Uses a stream of its own, so as not to wait for calls in progress.
  LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream.get()),
      "cudaMemsetAsync"));
  return CudaStatus(cudaStreamSynchronize(stream.get()),
                    "cudaStreamSynchronize");
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>>
NcclCommunicator::SplitOnStream(int color, int key, cudaStream_t stream,
                                CallSite site) {
  const Call call = CallOf(Operation::kSplit, /*count=*/0, site);
  if (captured_ != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a graph cannot capture ", ToString(call)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            watchdog_->Split(call, color, key, site));
  if (control == nullptr) return nullptr;
  const bool has_all_ranks = control->world_size() == world_size_;
  NcclOptions options = options_;
  options.stream = stream;
  return Create(std::move(control), options,
                has_all_ranks ? order_ : std::make_shared<IssueOrder>());
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  // Joins before looking for a GPU, so that the other ranks learn at once of a
  // rank without one.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            JoinLaunchedGroup(environment, options.group));
  LOCKSTEP_ASSIGN_OR_RETURN(options.device,
                            DeviceOfRank(environment.local_rank));
  return NcclCommunicator::Create(std::move(control), options);
}

namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("nccl", [](const GroupOptions& options) {
      return JoinNcclGroup({.group = options});
    });

}  // namespace
}  // namespace lockstep
