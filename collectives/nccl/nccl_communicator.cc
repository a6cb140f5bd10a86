// Collectives on GPUs: agreement, NCCL, and what happens when it fails.
#include "collectives/nccl/nccl_communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

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
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/nccl/gpu_ring.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"

namespace lockstep {
namespace {

// Whether an operation has no use for its input, or its output, on this rank.
bool IgnoresInput(const Collective& call, int rank) {
  return call.operation == Operation::kScatter && rank != call.peer;
}
bool IgnoresOutput(const Collective& call, int rank) {
  return (call.operation == Operation::kReduce ||
          call.operation == Operation::kGather) &&
         rank != call.peer;
}

absl::Status CheckOptions(const NcclOptions& options) {
  if (options.group.algorithm != Algorithm::kAuto &&
      options.group.algorithm != Algorithm::kRing) {
    return absl::InvalidArgumentError(
        absl::StrCat("the nccl backend has the algorithms auto and ring, not ",
                     Name(options.group.algorithm)));
  }
  if (options.chunk_bytes < 16 || options.chunk_bytes % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes,
                     ", which is no positive multiple of 16"));
  }
  return absl::OkStatus();
}

// As a phrase that continues "rank 1 called Gather(...) but ".
absl::Status CheckMemory(const ConstBuffer& buffer, const char* name,
                         bool aligned) {
  if (buffer.count == 0) return absl::OkStatus();
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, buffer.data);
  if (error != cudaSuccess || (attributes.type != cudaMemoryTypeDevice &&
                               attributes.type != cudaMemoryTypeManaged)) {
    cudaGetLastError();  // Older runtimes note one for memory that is not
                         // CUDA's.
    return absl::InvalidArgumentError(
        absl::StrCat("its ", name, " is not device memory"));
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

// What a rank sends to, and receives from, each rank; nothing where empty.
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

// What a rank has for itself is copied, unless it is in place already.
absl::Status CopyOwn(const ConstBuffer& from, const Buffer& to,
                     cudaStream_t stream) {
  if (from.count == 0 || from.data == to.data) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.size_bytes()),
                      cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync");
}

absl::Status EnqueueMessages(const Messages& messages, int rank,
                             NcclHandle& handle, cudaStream_t stream,
                             CallProgress& progress) {
  LOCKSTEP_RETURN_IF_ERROR(
      CopyOwn(messages.sent[rank], messages.received[rank], stream));
  const int world_size = static_cast<int>(messages.sent.size());
  return handle.Group(
      [&] {
        for (int peer = 0; peer < world_size; ++peer) {
          if (peer == rank) continue;
          const ncclResult_t results[] = {
              handle.Send(messages.sent[peer], peer, stream),
              handle.Receive(messages.received[peer], peer, stream)};
          for (const ncclResult_t result : results) {
            if (!Started(result)) return result;
          }
        }
        return ncclSuccess;
      },
      progress);
}

// The calls that NCCL has. Bytes are as good as elements where nothing is
// reduced, and need no alignment.
ncclResult_t Issue(const Collective& call, int rank, ncclComm_t comm,
                   cudaStream_t stream) {
  const void* const in = call.input.data;
  void* const out = call.output.data;
  const size_t count = static_cast<size_t>(call.input.count);
  const size_t bytes = static_cast<size_t>(call.input.size_bytes());
  const ncclDataType_t type = NcclType(call.input.type);
  const ncclRedOp_t op = NcclOp(call.op);
  switch (call.operation) {
    case Operation::kAllReduce:
      return ncclAllReduce(in, out, count, type, op, comm, stream);
    case Operation::kReduce:
      return ncclReduce(in, rank == call.peer ? out : nullptr, count, type, op,
                        call.peer, comm, stream);
    case Operation::kReduceScatter:
      return ncclReduceScatter(in, out, static_cast<size_t>(call.output.count),
                               type, op, comm, stream);
    case Operation::kAllGather:
      return ncclAllGather(in, out, bytes, ncclUint8, comm, stream);
    case Operation::kBroadcast:
      return ncclBroadcast(in, out, bytes, ncclUint8, call.peer, comm, stream);
    default:
      return ncclInvalidUsage;
  }
}

// Enqueues a valid call, of device memory, on `stream`; it is done when the
// stream has come past. Reductions are NCCL's, and their memory is aligned to
// its elements; scatter, gather, all-to-all and all-gather of unequal counts
// are groups of messages. kBarrier, kAllocate and kSplit move nothing.
// Errors: NcclHandle::Group's, CudaStatus's.
absl::Status EnqueueNative(const Collective& call, int rank, int world_size,
                           NcclHandle& handle, cudaStream_t stream,
                           CallProgress& progress) {
  switch (call.operation) {
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      return absl::OkStatus();
    case Operation::kSend:
      return handle.Group(
          [&] { return handle.Send(call.input, call.peer, stream); }, progress);
    case Operation::kReceive:
      return handle.Group(
          [&] { return handle.Receive(call.output, call.peer, stream); },
          progress);
    case Operation::kAllGather:
      if (call.counts.empty()) break;
      [[fallthrough]];
    case Operation::kScatter:
    case Operation::kGather:
    case Operation::kAllToAll:
      return EnqueueMessages(MessagesOf(call, rank, world_size), rank, handle,
                             stream, progress);
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
      break;
  }
  return handle.Group([&] { return Issue(call, rank, handle.comm(), stream); },
                      progress);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    std::unique_ptr<Communicator> control, const NcclOptions& options) {
  if (control == nullptr) {
    return absl::InvalidArgumentError("the nccl backend has no control group");
  }
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(control), options));
  LOCKSTEP_RETURN_IF_ERROR(made->Join());
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  // The device may be another by now.
  cudaSetDevice(options_.device);
}

absl::Status NcclCommunicator::Join() {
  absl::Status own = CheckOptions(options_);
  if (own.ok()) own = Prepare();
  LOCKSTEP_ASSIGN_OR_RETURN(shared_gpu_,
                            ShareGpus(peers_, options_.device, own));
  NcclSetup setup = {.algorithm = options_.group.algorithm,
                     .nccl_arithmetic = options_.nccl_arithmetic,
                     .chunk_bytes = options_.chunk_bytes,
                     .check_calls = options_.check_calls};
  LOCKSTEP_RETURN_IF_ERROR(ExchangeSetup(peers_, setup));
  options_.group.algorithm = setup.algorithm;
  options_.nccl_arithmetic = setup.nccl_arithmetic;
  options_.chunk_bytes = setup.chunk_bytes;
  CallProgress progress(peers_, absl::StrCat("rank ", rank(), ": joining NCCL"),
                        options_.group.timeout);
  own = handle_.Init(setup.id, rank(), world_size(), progress);
  LOCKSTEP_RETURN_IF_ERROR(progress.Finish(own));
  peers_.set_checks(setup.check_calls);
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Prepare() {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaSetDevice(options_.device),
      absl::StrCat("rank ", rank(), ": cudaSetDevice(", options_.device, ")")));
  LOCKSTEP_ASSIGN_OR_RETURN(stream_, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(before_, MakeEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(done_, MakeEvent());
  return absl::OkStatus();
}

absl::Status NcclCommunicator::CheckUsable(const Call& call) const {
  if (failure_.ok()) return absl::OkStatus();
  return CallAfterFailure(rank(), call, failure_);
}

absl::Status NcclCommunicator::Fail(const absl::Status& cause) {
  if (cause.ok()) return cause;
  failure_ = cause;
  handle_.Abort();
  return cause;
}

absl::Status NcclCommunicator::Run(const Collective& collective) {
  Call call = CallOf(collective, world_size());
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable(call));
  return Fail(RunUnfailed(collective, call));
}

absl::Status NcclCommunicator::RunUnfailed(const Collective& collective,
                                           const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(
      peers_.Agree(call, CheckArguments(collective), collective.site));
  CallProgress progress = Begin(call);
  return progress.Finish(Move(collective, progress));
}

CallProgress NcclCommunicator::Begin(const Call& call) {
  return CallProgress(peers_,
                      absl::StrCat("rank ", rank(), ": ", ToString(call)),
                      options_.group.timeout);
}

absl::Status NcclCommunicator::CheckArguments(const Collective& call) const {
  LOCKSTEP_RETURN_IF_ERROR(Validate(call, rank(), world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice"));
  if (!IgnoresInput(call, rank())) {
    LOCKSTEP_RETURN_IF_ERROR(
        CheckMemory(call.input, "input", Reduces(call.operation)));
  }
  if (IgnoresOutput(call, rank())) return absl::OkStatus();
  return CheckMemory(call.output, "output", Reduces(call.operation));
}

absl::Status NcclCommunicator::Move(const Collective& call,
                                    CallProgress& progress) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(before_.get(), options_.stream), "cudaEventRecord"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamWaitEvent(stream_.get(), before_.get(), 0),
                 "cudaStreamWaitEvent"));
  LOCKSTEP_RETURN_IF_ERROR(Enqueue(call, progress));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(done_.get(), stream_.get()), "cudaEventRecord"));
  return progress.WaitUntil([this] { return Done(); });
}

absl::StatusOr<bool> NcclCommunicator::Done() const {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, handle_.Ready());
  if (!ready) return false;
  const cudaError_t error = cudaEventQuery(done_.get());
  if (error == cudaErrorNotReady) return false;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
  return true;
}

bool NcclCommunicator::UsesRing(const Collective& call) const {
  if (!Reduces(call.operation) || world_size() == 1) return false;
  if (options_.group.algorithm == Algorithm::kRing) return true;
  return !options_.nccl_arithmetic &&
         !NcclKeepsMeaning(call.input.type, call.op);
}

absl::Status NcclCommunicator::Enqueue(const Collective& call,
                                       CallProgress& progress) {
  if (!UsesRing(call)) {
    return EnqueueNative(call, rank(), world_size(), handle_, stream_.get(),
                         progress);
  }
  if (!ring_.has_value()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        ring_, GpuRing::Create(rank(), world_size(), options_.chunk_bytes,
                               handle_, stream_.get()));
  }
  return ring_->Reduce(call, progress);
}

absl::StatusOr<GroupBuffer> NcclCommunicator::Allocate(int64_t bytes,
                                                       CallSite site) {
  const Call call = CallOf(Operation::kAllocate, bytes, site);
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable(call));
  absl::Status own;
  if (bytes < 0) own = absl::InvalidArgumentError("that is negative");
  LOCKSTEP_RETURN_IF_ERROR(Fail(peers_.Agree(call, own, site)));
  DeviceMemory memory;
  const auto allocate = [&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(options_.device), "cudaSetDevice"));
    LOCKSTEP_ASSIGN_OR_RETURN(memory, AllocateDeviceMemory(bytes));
    if (bytes > 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          CudaStatus(cudaMemsetAsync(memory.get(), 0,
                                     static_cast<size_t>(bytes), stream_.get()),
                     "cudaMemsetAsync"));
    }
    return CudaStatus(cudaStreamSynchronize(stream_.get()),
                      "cudaStreamSynchronize");
  };
  CallProgress progress = Begin(call);
  LOCKSTEP_RETURN_IF_ERROR(Fail(progress.Finish(allocate())));
  std::byte* const begin = memory.get();
  return GroupBuffer(std::shared_ptr<std::byte>(std::move(memory)),
                     std::span(begin, static_cast<size_t>(bytes)));
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckUsable(CallOf(Operation::kSplit, /*count=*/0, site)));
  auto control = peers_.control().Split(color, key, site);
  LOCKSTEP_RETURN_IF_ERROR(Fail(control.status()));
  if (*control == nullptr) return nullptr;
  return Create(*std::move(control), options_);
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  // First, so that the others miss a rank without a GPU at once.
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
