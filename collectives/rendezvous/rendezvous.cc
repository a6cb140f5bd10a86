#include "collectives/rendezvous/rendezvous.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {

absl::Status CheckRank(int rank, int world_size) {
  if (world_size < 1 || world_size > kLargestWorldSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world size ", world_size, " is outside [1, ", kLargestWorldSize, "]"));
  }
  if (rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is outside [0, ", world_size, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ExchangeResults(
    Rendezvous& rendezvous, const absl::StatusOr<std::string>& mine) {
  const int code = static_cast<int>(mine.status().code());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> blobs,
      rendezvous.Exchange(absl::StrCat(
          code, " ",
          mine.ok() ? absl::string_view(*mine) : mine.status().message())));
  std::vector<std::string> results;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(blobs[rank], absl::MaxSplits(' ', 1));
    int code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " did not come to form this group"));
    }
    if (code != 0) {
      return absl::Status(
          static_cast<absl::StatusCode>(code),
          absl::StrCat("rank ", rank, " cannot join: ", parts.second));
    }
    results.push_back(parts.second);
  }
  return results;
}

absl::Status CheckBlob(int rank, absl::string_view blob) {
  if (blob.size() <= kMaxBlobBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " publishes ", blob.size(),
                   " bytes: more than ", kMaxBlobBytes));
}

}  // namespace lockstep
