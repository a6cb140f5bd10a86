// What every rendezvous asks of its arguments.
#include "collectives/rendezvous/rendezvous.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

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

absl::Status CheckBlob(int rank, absl::string_view blob) {
  if (blob.size() <= kMaxBlobBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " publishes ", blob.size(),
                   " bytes: more than ", kMaxBlobBytes));
}

}  // namespace lockstep
