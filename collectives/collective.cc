#include "collectives/collective.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"

namespace lockstep {

const char* Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProduct:
      return "prod";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAverage:
      return "avg";
  }
  return "unknown operation";
}

std::optional<ReduceOp> ParseReduceOp(absl::string_view name) {
  for (const ReduceOp op : kAllReduceOps) {
    if (name == Name(op)) return op;
  }
  return std::nullopt;
}

namespace {

absl::Status Wrong(absl::string_view why) {
  return absl::InvalidArgumentError(why);
}

// std::less orders pointers into different objects, which < need not.
bool Overlap(const ConstBuffer& a, const ConstBuffer& b) {
  const std::less<const std::byte*> before;
  return a.count > 0 && b.count > 0 &&
         before(a.bytes(), b.bytes() + b.size_bytes()) &&
         before(b.bytes(), a.bytes() + a.size_bytes());
}

// `in_place`: where input may begin if it overlaps output; null: nowhere.
absl::Status CheckPlaces(const Collective& call, const std::byte* in_place) {
  if (!Overlap(call.input, call.output) || call.input.bytes() == in_place) {
    return absl::OkStatus();
  }
  return Wrong(in_place == nullptr
                   ? "its input and output overlap"
                   : "its input and output overlap elsewhere than in place");
}

absl::Status CheckTypes(const Collective& call) {
  if (call.input.type == call.output.type) return absl::OkStatus();
  return Wrong(absl::StrCat("its input is ", Name(call.input.type),
                            " and its output ", Name(call.output.type)));
}

// One of the two has `parts` times the count of the other.
absl::Status CheckParts(const char* name, int64_t whole, int64_t parts,
                        int64_t part) {
  if (part <= INT64_MAX / parts && whole == parts * part) {
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat("its ", name, " has ", whole,
                            " elements in place of ", parts, " * ", part));
}

absl::Status CheckSameCount(const Collective& call) {
  if (call.input.count == call.output.count) return absl::OkStatus();
  return Wrong(absl::StrCat("its input has ", call.input.count,
                            " elements and its output ", call.output.count));
}

absl::Status CheckCounts(const Collective& call, int rank, int world_size) {
  if (static_cast<int64_t>(call.counts.size()) != world_size) {
    return Wrong(absl::StrCat("it has ", call.counts.size(), " counts for ",
                              world_size, " ranks"));
  }
  int64_t sum = 0;
  for (const int64_t count : call.counts) {
    if (count < 0 || count > INT64_MAX - sum) {
      return Wrong(absl::StrCat("a count is ", count));
    }
    sum += count;
  }
  if (call.input.count != call.counts[rank]) {
    return Wrong(absl::StrCat("its input has ", call.input.count,
                              " elements, and its own count is ",
                              call.counts[rank]));
  }
  if (call.output.count == sum) return absl::OkStatus();
  return Wrong(absl::StrCat("its output has ", call.output.count,
                            " elements, and the counts are ", sum));
}

absl::Status ValidateAllGather(const Collective& call, int rank,
                               int world_size) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTypes(call));
  int64_t begin = rank * call.input.count;
  if (call.counts.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(
        CheckParts("output", call.output.count, world_size, call.input.count));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(CheckCounts(call, rank, world_size));
    begin = 0;
    for (int peer = 0; peer < rank; ++peer) begin += call.counts[peer];
  }
  return CheckPlaces(call, call.output.Part(begin, 0).bytes());
}

// Input is the whole and output one of `world_size` parts.
absl::Status ValidateToParts(const Collective& call, int rank, int world_size) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTypes(call));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckParts("input", call.input.count, world_size, call.output.count));
  return CheckPlaces(call,
                     call.output.bytes() - rank * call.output.size_bytes());
}

absl::Status ValidateAllToAll(const Collective& call, int world_size) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTypes(call));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameCount(call));
  LOCKSTEP_RETURN_IF_ERROR(CheckParts("input", call.input.count, world_size,
                                      call.input.count / world_size));
  return CheckPlaces(call, nullptr);
}

absl::Status ValidateSameCount(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTypes(call));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameCount(call));
  return CheckPlaces(call, call.output.bytes());
}

absl::Status CheckPeer(const Collective& call, int rank, int world_size) {
  const bool between_two = call.operation == Operation::kSend ||
                           call.operation == Operation::kReceive;
  if (between_two && call.peer == rank) return Wrong("that is itself");
  if (call.peer >= 0 && call.peer < world_size) return absl::OkStatus();
  return Wrong(absl::StrCat(between_two ? "the other rank" : "the root",
                            " is outside [0, ", world_size, ")"));
}

// Bytes of all ranks together are at most 2^63 - 1.
absl::Status CheckSizes(const Collective& call, int world_size) {
  const auto is_size = [&](int64_t count, DataType type) {
    return count >= 0 && count <= INT64_MAX / SizeOf(type) / world_size;
  };
  if (!is_size(call.input.count, call.input.type)) {
    return Wrong(absl::StrCat("a count is ", call.input.count));
  }
  if (!is_size(call.output.count, call.output.type)) {
    return Wrong(absl::StrCat("a count is ", call.output.count));
  }
  return absl::OkStatus();
}

}  // namespace

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "AllReduce";
    case Operation::kReduce:
      return "Reduce";
    case Operation::kReduceScatter:
      return "ReduceScatter";
    case Operation::kAllGather:
      return "AllGather";
    case Operation::kBroadcast:
      return "Broadcast";
    case Operation::kScatter:
      return "Scatter";
    case Operation::kGather:
      return "Gather";
    case Operation::kAllToAll:
      return "AllToAll";
    case Operation::kSend:
      return "Send";
    case Operation::kReceive:
      return "Receive";
    case Operation::kBarrier:
      return "Barrier";
    case Operation::kAllocate:
      return "Allocate";
    case Operation::kSplit:
      return "Split";
  }
  return "an unknown operation";
}

Collective Collective::AllReduce(ConstBuffer input, Buffer output, ReduceOp op,
                                 CallSite site) {
  return {Operation::kAllReduce, input, output, op, 0, {}, site};
}

Collective Collective::AllReduce(Buffer data, ReduceOp op, CallSite site) {
  return AllReduce(data, data, op, site);
}

Collective Collective::UniformAllReduce(Buffer data, ReduceOp op,
                                        CallSite site) {
  Collective call = AllReduce(data, op, site);
  call.uniform = true;
  return call;
}

Collective Collective::Reduce(ConstBuffer input, Buffer output, ReduceOp op,
                              int root, CallSite site) {
  return {Operation::kReduce, input, output, op, root, {}, site};
}

Collective Collective::ReduceScatter(ConstBuffer input, Buffer output,
                                     ReduceOp op, CallSite site) {
  return {Operation::kReduceScatter, input, output, op, 0, {}, site};
}

Collective Collective::AllGather(ConstBuffer input, Buffer output,
                                 CallSite site) {
  return AllGather(input, output, {}, site);
}

Collective Collective::AllGather(ConstBuffer input, Buffer output,
                                 std::span<const int64_t> counts,
                                 CallSite site) {
  return {Operation::kAllGather, input, output, {}, 0, counts, site};
}

Collective Collective::Broadcast(Buffer data, int root, CallSite site) {
  return {Operation::kBroadcast, data, data, {}, root, {}, site};
}

Collective Collective::Scatter(ConstBuffer input, Buffer output, int root,
                               CallSite site) {
  return {Operation::kScatter, input, output, {}, root, {}, site};
}

Collective Collective::Gather(ConstBuffer input, Buffer output, int root,
                              CallSite site) {
  return {Operation::kGather, input, output, {}, root, {}, site};
}

Collective Collective::AllToAll(ConstBuffer input, Buffer output,
                                CallSite site) {
  return {Operation::kAllToAll, input, output, {}, 0, {}, site};
}

Collective Collective::Send(ConstBuffer data, int destination, CallSite site) {
  return {Operation::kSend, data, {}, {}, destination, {}, site};
}

Collective Collective::Receive(Buffer data, int source, CallSite site) {
  return {Operation::kReceive, {}, data, {}, source, {}, site};
}

Collective Collective::Barrier(CallSite site) {
  return {Operation::kBarrier, {}, {}, {}, 0, {}, site};
}

Collective Collective::Refused(Operation operation, const absl::Status& cause,
                               CallSite site) {
  Collective call;
  call.operation = operation;
  call.site = site;
  call.refusal = cause;
  return call;
}

int64_t AgreedCount(const Collective& call, int world_size) {
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
    case Operation::kBroadcast:
    case Operation::kGather:
    case Operation::kSend:
      return call.input.count;
    case Operation::kReduceScatter:
    case Operation::kScatter:
    case Operation::kReceive:
      return call.output.count;
    case Operation::kAllGather:
      return call.counts.empty() ? call.input.count : call.output.count;
    case Operation::kAllToAll:
      return call.input.count / world_size;
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      break;
  }
  return 0;
}

absl::Status Validate(const Collective& call, int rank, int world_size) {
  LOCKSTEP_RETURN_IF_ERROR(call.refusal);
  LOCKSTEP_RETURN_IF_ERROR(CheckSizes(call, world_size));
  LOCKSTEP_RETURN_IF_ERROR(CheckPeer(call, rank, world_size));
  switch (call.operation) {
    case Operation::kAllReduce:
      return ValidateSameCount(call);
    case Operation::kReduce:
      return rank == call.peer ? ValidateSameCount(call) : absl::OkStatus();
    case Operation::kReduceScatter:
      return ValidateToParts(call, rank, world_size);
    case Operation::kScatter:
      return rank == call.peer ? ValidateToParts(call, rank, world_size)
                               : absl::OkStatus();
    case Operation::kAllGather:
      return ValidateAllGather(call, rank, world_size);
    case Operation::kGather:
      return rank == call.peer ? ValidateAllGather(call, rank, world_size)
                               : absl::OkStatus();
    case Operation::kAllToAll:
      return ValidateAllToAll(call, world_size);
    case Operation::kBroadcast:
    case Operation::kSend:
    case Operation::kReceive:
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      break;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
