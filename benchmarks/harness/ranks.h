// The ranks of a benchmark, which are its own program again.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "collectives/group_options.h"

namespace lockstep {
class Communicator;
}  // namespace lockstep

namespace lockstep::benchmarks {

enum class RankKind : int32_t { kProcesses, kThreads };

// "processes", "threads".
const char* Name(RankKind kind);

// This program's path, to start it again.
std::string OwnProgram();

// Calls `body` as a rank of a group: of this one if ranks are processes, which
// the launcher then has started; in a thread for each of `world_size` ranks if
// they are threads. Errors: kFailedPrecondition without a launcher; the
// group's; the first of `body`.
absl::Status RunAsRanks(RankKind kind, int world_size,
                        const GroupOptions& options,
                        const std::function<absl::Status(Communicator&)>& body);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_RANKS_H_
