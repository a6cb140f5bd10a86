#include "collectives/nccl/native_calls.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"

namespace lockstep {
namespace {

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
            if (result != ncclSuccess && result != ncclInProgress) {
              return result;
            }
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

}  // namespace

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

}  // namespace lockstep
