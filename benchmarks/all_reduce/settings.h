// The settings of the command `allreduce`: its flags as checked values, and the
// teams, subjects, sizes, calls and memory that follow from them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_SETTINGS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_SETTINGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// How the ranks of a team run, and which library's collectives they call. Each
// team has its own processes. They are idle while another team takes a turn.
enum class TeamKind : int32_t {
  kThreads,  // The backends of Communicator.
  kProcesses,
  kTcp,  // Processes on several hosts.
  kMpi,
  kNccl,       // In GPU memory.
  kOpenMpi,    // A peer: MPI_Allreduce and the like.
  kGloo,       // A peer: gloo::allreduce over TCP.
  kOneCcl,     // A peer: ccl::allreduce over shared memory.
  kPlainNccl,  // A peer: ncclAllReduce, called directly.
  kUpdate,     // A control: updates in place measure memory bandwidth.
  kExchange,   // A control: threads exchange small messages (TimeExchange).
};

const char* Name(TeamKind kind);
bool IsPeer(TeamKind kind);
bool IsControl(TeamKind kind);
bool OnGpu(TeamKind kind);

// The memory that the buffers of a call are in.
enum class BufferKind : int32_t {
  kOrdinary,  // Memory of the process, aligned to 64 bytes.
  kGroup,     // From Communicator::Allocate.
};

const char* Name(BufferKind kind);

struct Team {
  TeamKind kind = TeamKind::kProcesses;
  // The algorithm of a backend of Communicator. With kPlainNccl, kAuto leaves
  // the choice to NCCL, and kRing sets NCCL_ALGO=Ring. Other kinds have only
  // kAuto.
  Algorithm algorithm = Algorithm::kAuto;

  friend bool operator==(const Team&, const Team&) = default;
};

// "processes auto", "Open MPI", "NCCL", "NCCL_ALGO=Ring".
std::string Name(const Team& team);

// A team with the memory that it uses and, for a peer, the peer's algorithm.
// Each subject is measured at every size.
struct Subject {
  Team team;
  BufferKind buffers = BufferKind::kOrdinary;
  int32_t peer_algorithm = 0;  // An index of PeerAlgorithms.

  friend bool operator==(const Subject&, const Subject&) = default;
};

// "processes auto group", "Open MPI", "Open MPI ring".
std::string Name(const Subject& subject);

// Returns the names of the all-reduce algorithms that a peer can be told to
// use. The first name is empty: the peer chooses.
std::span<const char* const> PeerAlgorithms(TeamKind kind);
// Returns whether the ranks read the algorithm when they start. If so, each
// algorithm has its own ranks.
bool StartsPerAlgorithm(TeamKind kind);
absl::string_view PeerAlgorithm(const Subject& subject);

struct MissingPeer {
  Team peer = {TeamKind::kOpenMpi};
  std::string why;
};

struct AllReduceSettings {
  int world_size = 2;
  std::vector<TeamKind> backends = {TeamKind::kProcesses};
  std::vector<Algorithm> algorithms = {Algorithm::kAuto};
  std::vector<BufferKind> buffers = {BufferKind::kOrdinary, BufferKind::kGroup};
  std::vector<TeamKind> peers = {};
  std::vector<Operation> collectives = {Operation::kAllReduce};
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = true;
  // The bytes of a message, ascending: the input of an all-reduce, or the
  // output of an all-gather. SizesOf returns the sizes for each collective.
  std::vector<int64_t> sizes = {};
  int rounds = 0;          // Turns of each subject; 0: as `seconds` allows.
  int iterations = 0;      // Timed calls of a turn; 0: TimedIterations chooses.
  int warmup = -1;         // Calls before them; -1: WarmupIterations chooses.
  double seconds = 20;     // For all sizes together, if rounds is 0.
  bool has_cores = false;  // Each rank has a core of this host to itself.
};

// "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all".
const char* CollectiveName(Operation operation);

// Reads a comma-separated list of backends (threads, processes, tcp, mpi,
// nccl), peers (mpi, gloo, oneccl, nccl; may be empty), collectives,
// algorithms, or kinds of buffers. Errors: kInvalidArgument, beginning with the
// flag.
absl::StatusOr<std::vector<TeamKind>> ParseBackends(absl::string_view text);
absl::StatusOr<std::vector<TeamKind>> ParsePeers(absl::string_view text);
absl::StatusOr<std::vector<Operation>> ParseCollectives(absl::string_view text);
absl::StatusOr<std::vector<Algorithm>> ParseAlgorithms(absl::string_view text);
absl::StatusOr<std::vector<BufferKind>> ParseBuffers(absl::string_view text);

absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text);
// Reads a list of "true" and "false": whether calls are in place.
absl::StatusOr<std::vector<bool>> ParsePlacements(absl::string_view text);
// Reads a list of world sizes. Validate checks their range.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text);

// Reads one operation. Errors: as above.
absl::StatusOr<ReduceOp> ParseOperation(absl::string_view text);

// Reads a number of bytes. "4096", "4K", "4KiB" and "4KB" are the same; M and G
// work alike. Errors: kInvalidArgument, beginning with `flag`.
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag,
                                   absl::string_view text);

// Returns min_bytes, min_bytes * factor, min_bytes * factor^2, ..., up to
// max_bytes. Each size is cut to whole elements of `element_bytes`, and listed
// once. Errors: kInvalidArgument, beginning with the flag, for less than one
// element, a factor below 2, or a maximum below the minimum or over 1 TiB.
absl::StatusOr<std::vector<int64_t>> MessageSizes(int64_t min_bytes,
                                                  int64_t max_bytes,
                                                  int64_t factor,
                                                  int64_t element_bytes);

// Checks the settings, except the sizes, which come from MessageSizes. Errors:
// kInvalidArgument, beginning with the flag that is wrong.
absl::Status Validate(const AllReduceSettings& settings);

// Returns whether the buffers are in GPU memory. Either all are, or none.
bool OnGpu(const AllReduceSettings& settings);

// Returns settings.sizes, each cut to whole elements and listed once. A size
// has at least one element; for collectives other than all-reduce and
// broadcast, it has the same number of elements for each rank, at least one.
std::vector<int64_t> SizesOf(const AllReduceSettings& settings,
                             Operation operation);

// Returns whether the calls of these ranks are in place. A broadcast always is,
// and an all-to-all never. Open MPI's reduce-scatter is not, because its result
// would lie elsewhere in the buffer. All other calls follow settings.in_place.
bool InPlace(const AllReduceSettings& settings, Operation operation,
             TeamKind kind);

// Returns the teams: one for each backend and algorithm, then the peers, then
// the controls. There are no controls on GPUs or with kTcp, whose ranks share
// no memory. kExchange needs settings.has_cores.
std::vector<Team> TeamsOf(const AllReduceSettings& settings);
// Returns the subjects: each team of a backend with every kind of buffer, each
// peer with every algorithm, and each control once. On GPUs the kinds of
// buffers differ for kDirect only; other algorithms use the first kind.
std::vector<Subject> SubjectsOf(const AllReduceSettings& settings);

// Returns the number of timed calls of a turn at messages of `bytes`. Each call
// has its own buffers, which are filled before the turn and checked after it.
// By default there are only as many as a core's cache holds: one for large
// messages, 400 for the smallest. On a GPU there are 20, as in nccl-tests, but
// fewer if their buffers would take over 256 MiB. On a GPU the settings allow
// at most 120, because the ring keeps the graphs of 128 calls (gpu_ring.h).
int TimedIterations(const AllReduceSettings& settings, int64_t bytes);

// Returns the number of calls before the timed calls of a turn. The default is
// 5. From 4 MiB on, it is one, in the first round only, because such calls
// leave nothing in a cache. On a GPU, it is 3 (or the settings' larger number)
// for each of the turn's buffers, in every round. There, the second reduction
// of the same buffers is captured in a graph (gpu_ring.h), and the third is the
// first that is only launched.
int WarmupIterations(const AllReduceSettings& settings, int64_t bytes,
                     int round);

// Returns the bytes of host memory that all teams together may use at messages
// of `bytes`. Teams on GPUs use the same number of bytes of GPU memory too.
int64_t MemoryNeeded(const AllReduceSettings& settings, int64_t bytes);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_SETTINGS_H_
