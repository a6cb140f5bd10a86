#include "collectives/communicator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/pending_collective.h"

namespace lockstep {
namespace {

// Returns "loss: float32[1]", a line for each name. A newline in a name only
// makes two lines, which are the same on all ranks.
std::string Listing(const std::map<std::string, Buffer>& tensors) {
  std::string listing;
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&listing, name, ": ", Name(tensor.type), "[", tensor.count,
                    "]\n");
  }
  return listing;
}

// Returns an error that names the first line in which two listings differ.
absl::Status Differ(const std::string& first, int rank,
                    const std::string& other) {
  const std::vector<std::string> a = absl::StrSplit(first, '\n');
  const std::vector<std::string> b = absl::StrSplit(other, '\n');
  size_t i = 0;
  while (i + 1 < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  const auto quote = [](const std::string& line) {
    return line.empty() ? "nothing more" : absl::StrCat("'", line, "'");
  };
  return absl::InvalidArgumentError(
      absl::StrCat("ranks have different tensors: rank 0 has ", quote(a[i]),
                   ", rank ", rank, " has ", quote(b[i])));
}

}  // namespace

PendingCollective Communicator::Start(const Collective& call) {
  absl::Status status = Run(call);
  if (status.ok()) status = Wait();
  return PendingCollective(std::move(status));
}

absl::StatusOr<std::vector<std::string>> AllGatherObject(
    Communicator& communicator, absl::string_view bytes, CallSite site) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> sizes(static_cast<size_t>(communicator.world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllGather(std::span(&size, 1), sizes, site));
  std::vector<uint8_t> all(static_cast<size_t>(
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGather(
      ConstBuffer(bytes.data(), size, DataType::kUInt8), all, sizes, site));
  std::vector<std::string> objects;
  auto begin = all.begin();
  for (const int64_t each : sizes) {
    objects.emplace_back(begin, begin + each);
    begin += each;
  }
  return objects;
}

absl::Status ReduceDict(Communicator& communicator,
                        const std::map<std::string, Buffer>& tensors,
                        bool average, CallSite site) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> listings,
      AllGatherObject(communicator, Listing(tensors), site));
  for (size_t rank = 1; rank < listings.size(); ++rank) {
    if (listings[rank] != listings[0]) {
      return Differ(listings[0], static_cast<int>(rank), listings[rank]);
    }
  }
  const ReduceOp op = average ? ReduceOp::kAverage : ReduceOp::kSum;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(tensor, op, site));
  }
  return absl::OkStatus();
}

absl::Status OnRank(const Communicator& communicator,
                    std::optional<int> dst_rank,
                    absl::FunctionRef<absl::Status()> fn) {
  if (!dst_rank.has_value()) return fn();
  if (*dst_rank < 0 || *dst_rank >= communicator.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", *dst_rank, " is outside [0, ",
                     communicator.world_size(), ")"));
  }
  return communicator.rank() == *dst_rank ? fn() : absl::OkStatus();
}

}  // namespace lockstep
