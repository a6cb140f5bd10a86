// The work of one rank of the command `allreduce`. A rank runs a collective of
// the measured library, in turns that the driver requests. The inputs have an
// exact result that is known for every element.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

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

// Returns the request for one call of that subject.
TurnRequest RequestOf(const AllReduceSettings& settings, Operation operation,
                      int64_t bytes, const Subject& subject);

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
  int32_t direct = 0;       // Whether ranks read each other's group memory.
  std::vector<std::string> nccl_environment;  // "NCCL_ALGO=Ring", sorted.

  static auto Members(auto& self) {
    return std::tie(self.calls, self.missing, self.host_seconds, self.gpu,
                    self.shared_gpu, self.direct, self.nccl_environment);
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
