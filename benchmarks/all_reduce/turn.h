// The settings of the command `allreduce`, and the work of one rank. A rank
// runs a collective of the measured library, in turns that the driver requests.
// The inputs have an exact result that is known for every element.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/rank_service.h"
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
  kUpdate,     // No collective: updates in place measure memory bandwidth.
};

const char* Name(TeamKind kind);
bool IsPeer(TeamKind kind);
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
  int rounds = 0;       // Turns of each subject; 0: as `seconds` allows.
  int iterations = 0;   // Timed calls of a turn; 0: TimedIterations chooses.
  int warmup = -1;      // Calls before them; -1: WarmupIterations chooses.
  double seconds = 20;  // For all sizes together, if rounds is 0.
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
// the updates. There are no updates on GPUs or with kTcp, whose ranks share no
// memory.
std::vector<Team> TeamsOf(const AllReduceSettings& settings);
// Returns the subjects: each team of a backend with every kind of buffer, each
// peer with every algorithm, and the updates once. On GPUs the kinds of buffers
// differ for kDirect only; other algorithms use the first kind.
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

// One rank of a peer library. It implements the part of Communicator that is
// measured: barriers, and the collectives, types and operations that the
// library supports. Not thread safe. Errors of Run: also the library's own, and
// kUnimplemented for a call that the library does not support. All ranks then
// return kUnimplemented before they exchange any data.
class PeerCommunicator : public Communicator {
 public:
  // Sets the algorithm of later all-reduces, an index of PeerAlgorithms.
  // Collective. Error: kUnimplemented, on every rank, if the library has no
  // such algorithm.
  virtual absl::Status SetAlgorithm(int /*algorithm*/) {
    return absl::OkStatus();
  }

  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a peer's ranks use ordinary memory");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a peer's ranks stay together");
  }
};

// The turn that every rank of a team takes next. It is sent between processes
// of one machine as raw bytes.
struct TurnRequest {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  BufferKind buffers = BufferKind::kOrdinary;
  int32_t peer_algorithm = 0;
  int32_t in_place = 1;
  // Whether the turn is one call that is neither filled, timed nor checked. The
  // call makes the library log what it chooses.
  int32_t probe = 0;
  // The number of elements of a message, at least 1. If each rank has a part of
  // the message, a multiple of the world size.
  int64_t count = 0;
  int32_t warmup = 0;
  int32_t iterations = 1;  // At least 1.
  int64_t first = 0;  // The first iteration's number, which selects the inputs.
};

// A rank's answer to a TurnRequest.
struct AllReduceTurn {
  TimedCalls calls;
  std::string missing;  // Why the library does not support the request. If not
                        // empty, nothing else is set.

  // The rest is set on a GPU only. A GPU's calls are timed together, by an
  // event before the first and one after the last. calls.seconds then has only
  // their mean.
  double host_seconds = 0;  // The mean time until a call returned.
  std::string gpu;          // The GPU's name.
  int32_t shared_gpu = 0;   // Whether ranks share a GPU.
  std::vector<std::string> nccl_environment;  // "NCCL_ALGO=Ring", sorted.

  static auto Members(auto& self) {
    return std::tie(self.calls, self.missing, self.host_seconds, self.gpu,
                    self.shared_gpu, self.nccl_environment);
  }
};

// Takes the turns of one rank. Every timed call of a turn has its own buffers,
// with its own inputs (ExactPattern). They are filled before the first call and
// checked after the last. So calls follow one another as they would in a
// program, and every answer is checked.
class TurnTaker {
 public:
  // group: the ranks whose calls are timed. barrier_group: the same ranks,
  // whose barrier precedes the timed calls. Both are borrowed.
  explicit TurnTaker(Communicator& group) : TurnTaker(group, group) {}
  TurnTaker(Communicator& group, Communicator& barrier_group)
      : group_(group), barrier_group_(barrier_group) {}
  virtual ~TurnTaker() = default;

  // Allocates buffers (collectively), fills them, warms up, fills them again,
  // waits for all ranks, times the calls, and checks the answers. Errors: the
  // group's; kResourceExhausted without memory. No turn may follow an error.
  absl::StatusOr<AllReduceTurn> Take(const TurnRequest& request);

  Communicator& barrier_group() const { return barrier_group_; }

 protected:
  using CallFunction = absl::FunctionRef<absl::Status(int i)>;

  // Prepares a turn; called first in every turn. Errors: as Take;
  // kUnimplemented if the library does not support the request.
  virtual absl::Status Prepare(const TurnRequest&) { return absl::OkStatus(); }

  // The functions below are for host memory. A taker on a GPU overrides them.

  // Allocates `bytes` of ordinary memory. Collective. The memory is freed after
  // the members of the derived class are destroyed.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateOrdinary(
      int64_t bytes);
  // Returns the host memory in which the buffers at `calls` are filled and
  // checked: `calls` itself, or a copy of as many bytes. Collective.
  virtual absl::StatusOr<std::byte*> HostMemoryFor(std::byte* calls, int64_t) {
    return calls;
  }
  // Copies all buffers from the host memory (Upload) or to it (Download).
  virtual absl::Status Upload(std::byte*, const std::byte*, int64_t) {
    return absl::OkStatus();
  }
  virtual absl::Status Download(std::byte*, const std::byte*, int64_t) {
    return absl::OkStatus();
  }
  // The number of buffers beyond those of the timed calls. Call number
  // request.iterations uses the first of them.
  virtual int extra_buffers() const { return 0; }
  // Times calls 0, 1, ..., request.iterations - 1.
  virtual absl::StatusOr<AllReduceTurn> Time(const TurnRequest& request,
                                             CallFunction call);
  // Sets the turn's fields about the GPU.
  virtual void Describe(AllReduceTurn&) const {}

  Communicator& group() const { return group_; }

 private:
  // Returns memory of that kind of at least `bytes`. The memory is reused until
  // a call needs more. Collective.
  absl::StatusOr<std::byte*> Allocate(BufferKind kind, int64_t bytes);
  absl::StatusOr<AllReduceTurn> TakeSupportedTurn(const TurnRequest& request);

  Communicator& group_;
  Communicator& barrier_group_;
  GroupBuffer memory_[2];  // By BufferKind.
};

// Takes turns until the driver that listens at `listener` closes the
// connection. Errors: those of the connection and of a turn.
absl::Status ServeTaker(const std::string& listener, TurnTaker& taker);
absl::Status ServeGroup(const std::string& listener, Communicator& group);
absl::Status ServePeer(const std::string& listener, PeerCommunicator& group);

// Runs `run` as the main program of a rank whose argv has `wanted` words.
// Returns the exit status: 0 on success; 1 if `run` fails, with its error on
// stderr; 2 if argc is not `wanted`, with a line on stderr.
int RankMain(int argc, char** argv, int wanted,
             absl::FunctionRef<absl::Status()> run);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
