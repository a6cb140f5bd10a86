#include "collectives/call.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// FNV-1a. 0 for none, so that it stands for "no counts".
uint64_t Hash(std::span<const int64_t> counts) {
  if (counts.empty()) return 0;
  uint64_t hash = 14695981039346656037u;
  for (const int64_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((static_cast<uint64_t>(count) >> shift) & 0xff)) *
             1099511628211u;
    }
  }
  return hash;
}

std::string Arguments(const Call& call) {
  const std::string data = absl::StrCat(Name(call.type), "[", call.count, "]");
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return absl::StrCat(data, ", ", Name(call.op),
                          call.uniform ? ", uniform" : "");
    case Operation::kReduce:
      return absl::StrCat(data, ", ", Name(call.op), ", root ", call.peer);
    case Operation::kAllGather:
      return call.counts_hash == 0
                 ? data
                 : absl::StrCat(data, ", counts #",
                                absl::Hex(call.counts_hash & 0xffffff));
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

// Where the call was made.
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
         a.counts_hash == b.counts_hash;
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
  call.counts_hash = Hash(collective.counts);
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
