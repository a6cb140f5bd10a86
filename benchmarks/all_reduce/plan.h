// What the command `allreduce` is asked to measure.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_PLAN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// What the ranks of a team are, and whose all-reduce they run. A team's
// processes are its own, and do nothing while another team has its turn.
enum class TeamKind : int32_t {
  kThreads,  // The backends of Communicator.
  kProcesses,
  kMpi,
  kOpenMpi,  // Peers: MPI_Allreduce, and
  kGloo,     // gloo::allreduce over TCP.
  kCopy,     // Not an all-reduce: copies, for the bandwidth of memory.
};

const char* Name(TeamKind kind);
bool IsPeer(TeamKind kind);

// Where the buffers of a call lie.
enum class BufferKind : int32_t {
  kOrdinary,  // Memory of the process, aligned to 64 bytes.
  kGroup,     // From Communicator::Allocate.
};

const char* Name(BufferKind kind);

struct Team {
  TeamKind kind = TeamKind::kProcesses;
  Algorithm algorithm = Algorithm::kAuto;  // Of Communicator's backends.

  friend bool operator==(const Team&, const Team&) = default;
};

// One line of the table for each size: a team, and the memory that it uses.
struct Subject {
  Team team;
  BufferKind buffers = BufferKind::kOrdinary;

  friend bool operator==(const Subject&, const Subject&) = default;
};

// "processes auto group", "Open MPI".
std::string Name(const Subject& subject);

struct MissingPeer {
  TeamKind peer = TeamKind::kOpenMpi;
  std::string why;
};

struct AllReduceSettings {
  int world_size = 2;
  std::vector<TeamKind> backends = {TeamKind::kProcesses};
  std::vector<Algorithm> algorithms = {Algorithm::kAuto};
  std::vector<BufferKind> buffers = {BufferKind::kOrdinary, BufferKind::kGroup};
  std::vector<TeamKind> peers;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = true;
  std::vector<int64_t> sizes;  // Bytes of a message, ascending.
  int rounds = 0;              // Turns of each subject; 0: as `seconds` allows.
  int iterations = 0;   // Timed calls of a turn; 0: TimedIterations' choice.
  int warmup = -1;      // Calls before them; -1: WarmupIterations' choice.
  double seconds = 20;  // For all sizes together, if rounds is 0.
};

// Reads a comma-separated list of backends (threads, processes, mpi), peers
// (mpi, gloo; may be empty), algorithms, or kinds of buffers. Errors:
// kInvalidArgument, beginning with the flag.
absl::StatusOr<std::vector<TeamKind>> ParseBackends(absl::string_view text);
absl::StatusOr<std::vector<TeamKind>> ParsePeers(absl::string_view text);
absl::StatusOr<std::vector<Algorithm>> ParseAlgorithms(absl::string_view text);
absl::StatusOr<std::vector<BufferKind>> ParseBuffers(absl::string_view text);

// One data type, one operation. Errors: as above.
absl::StatusOr<DataType> ParseType(absl::string_view text);
absl::StatusOr<ReduceOp> ParseOperation(absl::string_view text);

// Bytes as "4096", "4K", "4KiB" or "4KB" (all the same), M, G. Errors:
// kInvalidArgument, beginning with `flag`.
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag,
                                   absl::string_view text);

// min_bytes, times factor, times factor, ..., up to max_bytes; each cut to
// whole elements of `element_bytes`, none twice. Errors: kInvalidArgument,
// beginning with the flag, for less than one element, a factor below 2, or a
// maximum below the minimum or over 1 TiB.
absl::StatusOr<std::vector<int64_t>> MessageSizes(int64_t min_bytes,
                                                  int64_t max_bytes,
                                                  int64_t factor,
                                                  int64_t element_bytes);

// Errors: kInvalidArgument, beginning with the flag that is wrong. Sizes are
// MessageSizes'.
absl::Status Validate(const AllReduceSettings& settings);

// One for each backend and algorithm, then the peers, then the copy; and what
// is measured: every team of a backend with every kind of buffer, the others
// once.
std::vector<Team> TeamsOf(const AllReduceSettings& settings);
std::vector<Subject> SubjectsOf(const AllReduceSettings& settings);

// Timed calls of one turn at a message of `bytes`. Each has buffers of its own,
// filled beforehand and checked afterwards, so by default no more than stay in
// a core's cache: one for large messages, 400 for the smallest.
int TimedIterations(const AllReduceSettings& settings, int64_t bytes);

// Calls before the timed ones of a turn. By default 5, but from 4 MiB on one,
// and that only in the first round: such calls leave nothing in a cache.
int WarmupIterations(const AllReduceSettings& settings, int64_t bytes,
                     int round);

// What all teams together may come to use at messages of `bytes`.
int64_t MemoryNeeded(const AllReduceSettings& settings, int64_t bytes);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_PLAN_H_
