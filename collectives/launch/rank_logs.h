// A file for the output of each rank.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_RANK_LOGS_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_RANK_LOGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {

// "<folder>/rank-<rank>.log".
std::string RankLogPath(const std::string& folder, int rank);

// Opens the log of each rank, empty, for appending; creates the folder, and
// those above it, where they are missing. Errors: kInvalidArgument, naming the
// path, if that cannot be done; files that were opened before it stay.
absl::StatusOr<std::vector<OwnedFd>> OpenRankLogs(const std::string& folder,
                                                  int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_RANK_LOGS_H_
