// What the command `allreduce` is asked to measure, and what a rank does: it
// reduces with whatever library is measured, in turns that its driver asks for,
// and on inputs whose exact result is known for every element.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/rank_service.h"
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
  std::vector<TeamKind> peers = {};
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = true;
  std::vector<int64_t> sizes = {};  // Bytes of a message, ascending.
  int rounds = 0;       // Turns of each subject; 0: as `seconds` allows.
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

// One rank's side of somebody else's library, for as much of a Communicator as
// is measured: all-reduces, of the types and operations that the library has,
// and barriers. Not thread safe. Errors of Run: also kUnimplemented for what
// the library does not have; the library's own.
class PeerCommunicator : public Communicator {
 public:
  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a peer's ranks use ordinary memory");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a peer's ranks stay together");
  }
};

// What one rank gives in iteration t, and what every rank must get.
//
// Element i has a phase g in [0, M), pseudo-random in i and without a period,
// which moves by a fixed step from one iteration to the next. The rank's input
// is a function of its number and of g, the result a function of g alone, so
// both are looked up. That makes swapped, shifted or lost pieces show, and a
// result left from one or two iterations ago is wrong in every element.
//
// All inputs are small integers, and whatever the order of a reduction, its
// intermediate results are exact in every type, bfloat16 included, even if it
// rounds after every step; only the quotient of an average is rounded. uint8
// sums of many ranks wrap.
//
// Not thread safe.
class ExactPattern {
 public:
  // Errors: kInvalidArgument for a world size outside [1, kMaxWorldSize] or a
  // rank outside of it.
  static absl::StatusOr<ExactPattern> Create(DataType type, ReduceOp op,
                                             int rank, int world_size);

  // Overwrites `data`, of this type and of any alignment, with this rank's
  // input in iteration `iteration` >= 0.
  void Fill(int64_t iteration, Buffer data);

  // The number of elements of `data` that are not, bit for bit, what an
  // all-reduce of that iteration's inputs gives.
  int64_t CountWrong(int64_t iteration, ConstBuffer data);

 private:
  ExactPattern(DataType type, ReduceOp op, int rank, int world_size);

  // Values of all elements from `phases_`, as bytes in `tile_`.
  void Expand(const std::vector<uint64_t>& table, int64_t iteration,
              int64_t count);
  bool FindStep();

  DataType type_;
  int64_t step_ = 0;               // Phases by which an iteration moves.
  std::vector<uint64_t> inputs_;   // By phase, the bits of this rank's input.
  std::vector<uint64_t> results_;  // By phase, the bits of the result.
  std::vector<uint16_t> phases_;
  std::vector<std::byte> tile_;
};

// What every rank of a team is to do next. Travels between processes of one
// machine as it is.
struct TurnRequest {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  BufferKind buffers = BufferKind::kOrdinary;
  int32_t in_place = 1;
  int64_t count = 0;  // Elements of a message; at least 1.
  int32_t warmup = 0;
  int32_t iterations = 1;  // At least 1.
  int64_t first = 0;       // Number of the first iteration: chooses the inputs.
};

// Takes a rank through its turns. Every timed call of a turn has buffers of its
// own, with inputs of their own (ExactPattern), filled before the first
// call and checked after the last: calls follow one another as they would in a
// program, and no answer goes unchecked.
class TurnTaker {
 public:
  // The rank's group is borrowed.
  explicit TurnTaker(Communicator& group) : group_(group) {}

  // Allocates (collectively), fills, warms up, fills again, meets the other
  // ranks, times, checks. Errors: the group's; kResourceExhausted without
  // memory. After an error no other turn may follow.
  absl::StatusOr<TimedCalls> Take(const TurnRequest& request);

 private:
  absl::StatusOr<std::span<std::byte>> Memory(BufferKind kind, int64_t bytes);

  Communicator& group_;
  GroupBuffer group_memory_;
  AlignedMemory ordinary_;
  std::span<std::byte> memory_[2];  // By BufferKind.
};

// Takes turns until the driver that listens at `listener` closes the
// connection. Errors: of the connection, of a turn.
absl::Status ServeGroup(const std::string& listener, Communicator& group);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
