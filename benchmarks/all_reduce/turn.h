// What a rank does: it reduces with whatever library is measured, in turns
// that its driver asks for, and on inputs whose exact result is known for every
// element.
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
#include "base/data_types.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// One rank's side of somebody else's library, for as much of a Communicator as
// is measured: all-reduces, of the types and operations that the library has,
// and barriers. Not thread safe.
class PeerCommunicator : public Communicator {
 public:
  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) return PeerBarrier();
    return PeerAllReduce(call.input, call.output, call.op);
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a peer's ranks use ordinary memory");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a peer's ranks stay together");
  }

 protected:
  // As Communicator's. Errors: kUnimplemented for what the library does not
  // have; the library's own.
  virtual absl::Status PeerAllReduce(ConstBuffer input, Buffer output,
                                     ReduceOp op) = 0;
  virtual absl::Status PeerBarrier() = 0;
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
