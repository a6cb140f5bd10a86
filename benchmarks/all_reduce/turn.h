// What the command `allreduce` is asked to measure, and what a rank does: it
// runs a collective of whatever library is measured, in turns that its driver
// asks for, and on inputs whose exact result is known for every element.
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
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// What the ranks of a team are, and whose collectives they run. A team's
// processes are its own, and do nothing while another team has its turn.
enum class TeamKind : int32_t {
  kThreads,  // The backends of Communicator.
  kProcesses,
  kTcp,  // Processes on several hosts.
  kMpi,
  kNccl,       // In GPU memory.
  kOpenMpi,    // Peers: MPI_Allreduce and its siblings,
  kGloo,       // gloo::allreduce over TCP,
  kOneCcl,     // ccl::allreduce over shared memory,
  kPlainNccl,  // ncclAllReduce, called directly.
  kUpdate,     // No collective: updates in place, for the memory's bandwidth.
};

const char* Name(TeamKind kind);
bool IsPeer(TeamKind kind);
bool OnGpu(TeamKind kind);

// Where the buffers of a call lie.
enum class BufferKind : int32_t {
  kOrdinary,  // Memory of the process, aligned to 64 bytes.
  kGroup,     // From Communicator::Allocate.
};

const char* Name(BufferKind kind);

struct Team {
  TeamKind kind = TeamKind::kProcesses;
  // Of Communicator's backends. Of kPlainNccl: kAuto is what NCCL chooses, and
  // kRing is NCCL_ALGO=Ring. Others have one.
  Algorithm algorithm = Algorithm::kAuto;

  friend bool operator==(const Team&, const Team&) = default;
};

// "processes auto", "Open MPI", "NCCL", "NCCL_ALGO=Ring".
std::string Name(const Team& team);

// A team, the memory that it uses, and a peer's algorithm: each is measured at
// every size.
struct Subject {
  Team team;
  BufferKind buffers = BufferKind::kOrdinary;
  int32_t peer_algorithm = 0;  // Of PeerAlgorithms.

  friend bool operator==(const Subject&, const Subject&) = default;
};

// "processes auto group", "Open MPI", "Open MPI ring".
std::string Name(const Subject& subject);

// The all-reduces that a peer can be asked for, by name; the first is empty:
// what it chooses itself.
std::span<const char* const> PeerAlgorithms(TeamKind kind);
// Whether the ranks read the algorithm when they start, so that each algorithm
// has ranks of its own.
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
  // Bytes of a message, ascending: what an all-reduce has at its input, an
  // all-gather at its output. SizesOf says what that means for others.
  std::vector<int64_t> sizes = {};
  int rounds = 0;       // Turns of each subject; 0: as `seconds` allows.
  int iterations = 0;   // Timed calls of a turn; 0: TimedIterations' choice.
  int warmup = -1;      // Calls before them; -1: WarmupIterations' choice.
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
// true, false.
absl::StatusOr<std::vector<bool>> ParsePlaces(absl::string_view text);
// Numbers of ranks, which Validate checks.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text);

// One operation. Errors: as above.
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

// Whether the buffers lie in GPU memory: all of them do, or none.
bool OnGpu(const AllReduceSettings& settings);

// settings.sizes, cut to whole elements, of which all but all-reduce and
// broadcast have as many for each rank, at least one; none twice.
std::vector<int64_t> SizesOf(const AllReduceSettings& settings,
                             Operation operation);

// Whether these ranks' calls are in place. settings.in_place, but a broadcast
// always is, an all-to-all never, nor what Open MPI's reduce-scatter is given,
// whose result would lie elsewhere.
bool InPlace(const AllReduceSettings& settings, Operation operation,
             TeamKind kind);

// One for each backend and algorithm, then the peers, then the updates,
// which are of host memory; and what is measured: every team of a backend with
// every kind of buffer, a peer with every algorithm, the updates once. On GPUs
// kDirect alone tells kinds apart, and other algorithms have the first.
std::vector<Team> TeamsOf(const AllReduceSettings& settings);
std::vector<Subject> SubjectsOf(const AllReduceSettings& settings);

// Timed calls of one turn at a message of `bytes`. Each has buffers of its own,
// filled beforehand and checked afterwards, so by default no more than stay in
// a core's cache: one for large messages, 400 for the smallest. On a GPU 20, as
// nccl-tests has, but fewer where their buffers would take over 256 MiB; and no
// more than 120, since the ring keeps the graphs of 128 calls (gpu_ring.h).
int TimedIterations(const AllReduceSettings& settings, int64_t bytes);

// Calls before the timed ones of a turn. By default 5, but from 4 MiB on one,
// and that only in the first round: such calls leave nothing in a cache. On a
// GPU 3 for each of the turn's buffers in every round, or as many more as the
// settings say: the second reduction of the same buffers is captured in a graph
// (gpu_ring.h), and the third is the first that is only launched.
int WarmupIterations(const AllReduceSettings& settings, int64_t bytes,
                     int round);

// What all teams together may come to use at messages of `bytes`. On a GPU as
// much again of its memory.
int64_t MemoryNeeded(const AllReduceSettings& settings, int64_t bytes);

// One rank's side of somebody else's library, for as much of a Communicator as
// is measured: the collectives, types and operations that the library has, and
// barriers. Not thread safe. Errors of Run: also kUnimplemented, on every rank
// and before anything is done, for what the library does not have; the
// library's own.
class PeerCommunicator : public Communicator {
 public:
  // How later all-reduces go: an index of PeerAlgorithms. Collective. Error:
  // kUnimplemented, on every rank, if the library has no such algorithm.
  virtual absl::Status Choose(int /*algorithm*/) { return absl::OkStatus(); }

  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a peer's ranks use ordinary memory");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a peer's ranks stay together");
  }
};

// What every rank of a team is to do next. Travels between processes of one
// machine as it is.
struct TurnRequest {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  BufferKind buffers = BufferKind::kOrdinary;
  int32_t peer_algorithm = 0;
  int32_t in_place = 1;
  // One call, which is neither filled, timed nor checked: for what the library
  // says of it.
  int32_t probe = 0;
  // Elements of a message, at least 1. Where each rank has a part of it, a
  // multiple of their number.
  int64_t count = 0;
  int32_t warmup = 0;
  int32_t iterations = 1;  // At least 1.
  int64_t first = 0;       // Number of the first iteration: chooses the inputs.
};

// What a rank gives for it.
struct AllReduceTurn {
  TimedCalls calls;
  std::string
      missing;  // If the library lacks this: why. There is no more then.

  // On a GPU. There a turn's calls are timed together, by events before the
  // first and behind the last, and calls.seconds has their mean alone.
  double host_seconds = 0;  // Mean time that a call took to return.
  std::string gpu;          // Its name.
  int32_t shared_gpu = 0;   // Whether ranks share one.
  std::vector<std::string> nccl_environment;  // "NCCL_ALGO=Ring", sorted.

  static auto Members(auto& self) {
    return std::tie(self.calls, self.missing, self.host_seconds, self.gpu,
                    self.shared_gpu, self.nccl_environment);
  }
};

// Takes a rank through its turns. Every timed call of a turn has buffers of its
// own, with inputs of their own (ExactPattern), filled before the first
// call and checked after the last: calls follow one another as they would in a
// program, and no answer goes unchecked.
class TurnTaker {
 public:
  // group: whose calls are timed. meeting: in which its ranks meet before that.
  // Both are borrowed.
  explicit TurnTaker(Communicator& group) : TurnTaker(group, group) {}
  TurnTaker(Communicator& group, Communicator& meeting)
      : group_(group), meeting_(meeting) {}
  virtual ~TurnTaker() = default;

  // Allocates (collectively), fills, warms up, fills again, meets the other
  // ranks, times, checks. Errors: the group's; kResourceExhausted without
  // memory. After an error no other turn may follow.
  absl::StatusOr<AllReduceTurn> Take(const TurnRequest& request);

  Communicator& meeting() const { return meeting_; }

 protected:
  using CallFunction = absl::FunctionRef<absl::Status(int i)>;

  // Called first in every turn. Errors: as of Take; kUnimplemented if the
  // library lacks what the request asks for.
  virtual absl::Status Prepare(const TurnRequest&) { return absl::OkStatus(); }

  // What follows is a host's; a GPU has its own.

  // Collective. The memory goes after what the derived class has.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateOrdinary(
      int64_t bytes);
  // Where the host fills and checks what the calls have at `calls`: `bytes`
  // there, or elsewhere. Collective.
  virtual absl::StatusOr<std::byte*> HostSide(std::byte* calls, int64_t) {
    return calls;
  }
  // Copies all that the host has written there, or that calls have.
  virtual absl::Status Upload(std::byte*, const std::byte*, int64_t) {
    return absl::OkStatus();
  }
  virtual absl::Status Download(std::byte*, const std::byte*, int64_t) {
    return absl::OkStatus();
  }
  // Buffers beyond those of timed calls, for call number request.iterations.
  virtual int extra_buffers() const { return 0; }
  // Times calls 0, 1, ..., request.iterations - 1.
  virtual absl::StatusOr<AllReduceTurn> Time(const TurnRequest& request,
                                             CallFunction call);
  // Fills in what a turn says of the GPU.
  virtual void Describe(AllReduceTurn&) const {}

  Communicator& group() const { return group_; }

 private:
  // Of at least `bytes`, each of its kind until more is asked for.
  absl::StatusOr<std::byte*> Allocate(BufferKind kind, int64_t bytes);
  absl::StatusOr<AllReduceTurn> TakeWhatThereIs(const TurnRequest& request);

  Communicator& group_;
  Communicator& meeting_;
  GroupBuffer memory_[2];  // By BufferKind.
};

// Takes turns until the driver that listens at `listener` closes the
// connection. Errors: of the connection, of a turn.
absl::Status ServeTaker(const std::string& listener, TurnTaker& taker);
absl::Status ServeGroup(const std::string& listener, Communicator& group);
absl::Status ServePeer(const std::string& listener, PeerCommunicator& group);

// The exit status of a program that is a rank, whose argv has `wanted` words,
// after `run`: 0; 1, and its error on stderr; 2, and a line, for another argc.
int RankMain(int argc, char** argv, int wanted,
             absl::FunctionRef<absl::Status()> run);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
