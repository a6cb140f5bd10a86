#include "collectives/collective.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"

namespace lockstep {

const char* Name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "prod", "min", "max", "avg"};
  static_assert(std::size(kNames) == std::size(kAllReduceOps));
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown operation";
}

namespace {

absl::Status Wrong(absl::string_view why) {
  return absl::InvalidArgumentError(why);
}

// Returns whether two buffers overlap. Uses std::less, which orders pointers
// into different objects; operator< need not.
bool Overlap(const ConstBuffer& a, const ConstBuffer& b) {
  const std::less<const std::byte*> before;
  return a.count > 0 && b.count > 0 &&
         before(a.bytes(), b.bytes() + b.size_bytes()) &&
         before(b.bytes(), a.bytes() + a.size_bytes());
}

// Checks that input and output do not overlap, unless input begins at
// `in_place`. If `in_place` is null, they must not overlap at all.
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

// Checks that `whole` is `parts` times `part`.
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

// Validates a call whose input is the whole and whose output is one of
// `world_size` parts.
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
  const bool between_two = IsBetweenTwo(call.operation);
  if (between_two && call.peer == rank)
    return Wrong("the other rank is the same rank");
  if (call.peer >= 0 && call.peer < world_size) return absl::OkStatus();
  return Wrong(absl::StrCat(between_two ? "the other rank" : "the root",
                            " is outside [0, ", world_size, ")"));
}

// Checks that the buffers of all ranks together have at most 2^63 - 1 bytes.
absl::Status CheckSizes(const Collective& call, int world_size) {
  for (const ConstBuffer& buffer : {call.input, ConstBuffer(call.output)}) {
    if (buffer.count < 0 ||
        buffer.count > INT64_MAX / SizeOf(buffer.type) / world_size) {
      return Wrong(absl::StrCat("a count is ", buffer.count));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Replays (replay.h) follow Operation's enumerators.
constexpr auto kReplay =
    static_cast<Operation>(static_cast<int8_t>(Operation::kSplit) + 1);

const char* Name(Operation operation) {
  constexpr const char* kNames[] = {
      "AllReduce", "Reduce",   "ReduceScatter", "AllGather", "Broadcast",
      "Scatter",   "Gather",   "AllToAll",      "Send",      "Receive",
      "Barrier",   "Allocate", "Split",         "Replay"};
  static_assert(std::size(kNames) == static_cast<size_t>(kReplay) + 1);
  const auto index = static_cast<size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "an unknown operation";
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
    case Operation::kAllocate:
      return call.counts.empty() ? 0 : call.counts[0];
    case Operation::kBarrier:
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

namespace {

// Returns a hash, or 0 for no counts, because 0 stands for "no counts".
uint64_t Hash(std::span<const int64_t> counts) {
  return counts.empty() ? 0 : Fnv1a(std::as_bytes(counts));
}

std::string Arguments(const Call& call) {
  if (call.operation == kReplay) return absl::StrCat(call.count, " calls");
  const std::string data = absl::StrCat(Name(call.type), "[", call.count, "]");
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return absl::StrCat(data, ", ", Name(call.op),
                          call.uniform ? ", uniform" : "");
    case Operation::kReduce:
      return absl::StrCat(data, ", ", Name(call.op), ", root ", call.peer);
    case Operation::kAllGather:
      return !call.hashed ? data
                          : absl::StrCat(data, ", counts #",
                                         absl::Hex(call.hash & 0xffffff));
    case Operation::kAllToAll:
      return data;
    case Operation::kBroadcast:
    case Operation::kScatter:
    case Operation::kGather:
      return absl::StrCat(data, ", root ", call.peer);
    case Operation::kSend:
      return absl::StrCat(data, ", to rank ", call.peer);
    case Operation::kReceive:
      return absl::StrCat(data, ", from rank ", call.peer);
    case Operation::kAllocate:
      return absl::StrCat(call.count, " bytes");
    case Operation::kBarrier:
    case Operation::kSplit:
      break;
  }
  return "";
}

std::string Said(int rank, const Call& call) {
  return absl::StrCat("rank ", rank, " called ", ToString(call));
}

// Stores the position of the call in the source.
void SetSite(Call& call, const CallSite& site) {
  const absl::string_view file(site.file);
  const size_t size = std::min(file.size(), sizeof(call.file) - 1);
  std::memcpy(call.file, file.data() + file.size() - size, size);
  call.line = site.line;
}

}  // namespace

bool Agree(const Call& a, const Call& b) {
  return a.operation == b.operation && a.type == b.type && a.op == b.op &&
         a.peer == b.peer && a.uniform == b.uniform && a.count == b.count &&
         a.hashed == b.hashed && (!a.hashed || a.hash == b.hash);
}

Call CallOf(const Collective& collective, int world_size) {
  Call call;
  call.operation = collective.operation;
  call.type = collective.operation == Operation::kScatter ||
                      collective.operation == Operation::kReceive
                  ? collective.output.type
                  : collective.input.type;
  if (Reduces(call.operation)) call.op = collective.op;
  call.peer = collective.peer;
  call.uniform = collective.uniform;
  call.count = AgreedCount(collective, world_size);
  call.AddToHash(Hash(collective.counts));
  SetSite(call, collective.site);
  return call;
}

Call CallOf(Operation operation, int64_t count, const CallSite& site) {
  Call call;
  call.operation = operation;
  call.count = count;
  SetSite(call, site);
  return call;
}

std::string ToString(const Call& call) {
  return absl::StrCat(Name(call.operation), "(", Arguments(call), ") at ",
                      call.file, ":", call.line);
}

absl::Status CallsDiffer(absl::string_view what, int rank, const Call& call,
                         int other_rank, const Call& other) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", Said(rank, call), ", ", Said(other_rank, other)));
}

absl::Status CallRefused(int rank, const Call& call, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Said(rank, call), " but ", why));
}

absl::Status CallAfterFailure(int rank, const Call& call,
                              const absl::Status& cause) {
  return absl::FailedPreconditionError(absl::StrCat(
      Said(rank, call), " after the group had failed: ", cause.message()));
}

}  // namespace lockstep
