// What a rank does: it reduces with whatever library is measured, in turns
// that its driver asks for.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {

// One rank's side of a library that reduces. Calls are collective: all ranks
// make the same ones in the same order. Not thread safe.
class AllReduceSubject {
 public:
  virtual ~AllReduceSubject() = default;

  // As the library itself says.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // output = input reduced over all ranks; in place where they are the same
  // memory. Errors: kUnimplemented for types and operations that the library
  // does not have; the library's own.
  virtual absl::Status AllReduce(ConstBuffer input, Buffer output,
                                 ReduceOp op) = 0;

  virtual absl::Status Barrier() = 0;

  // Memory that the group allocates, `bytes` for this rank. It lasts until the
  // next call of this, or the end. Error: kUnimplemented where there is no such
  // thing.
  virtual absl::StatusOr<std::span<std::byte>> GroupMemory(int64_t bytes) = 0;
};

// One rank of a group of any backend. The communicator is borrowed.
class CommunicatorSubject : public AllReduceSubject {
 public:
  explicit CommunicatorSubject(Communicator& communicator)
      : communicator_(communicator) {}

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }

  absl::Status AllReduce(ConstBuffer input, Buffer output,
                         ReduceOp op) override {
    return communicator_.AllReduce(input, output, op);
  }

  absl::Status Barrier() override { return communicator_.Barrier(); }

  absl::StatusOr<std::span<std::byte>> GroupMemory(int64_t bytes) override {
    memory_ = GroupBuffer();  // Gives back what there was before.
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, communicator_.Allocate(bytes));
    return memory_.bytes();
  }

 private:
  Communicator& communicator_;
  GroupBuffer memory_;
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
// own, with inputs of their own (exact_pattern.h), filled before the first
// call and checked after the last: calls follow one another as they would in a
// program, and no answer goes unchecked.
class TurnTaker {
 public:
  // The subject is borrowed.
  explicit TurnTaker(AllReduceSubject& subject) : subject_(subject) {}

  // Allocates (collectively), fills, warms up, fills again, meets the other
  // ranks, times, checks. Errors: the subject's; kResourceExhausted without
  // memory. After an error no other turn may follow.
  absl::StatusOr<TimedCalls> Take(const TurnRequest& request);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  absl::StatusOr<std::span<std::byte>> Memory(BufferKind kind, int64_t bytes);

  AllReduceSubject& subject_;
  std::unique_ptr<std::byte, Free> ordinary_;
  std::span<std::byte> memory_[2];  // By BufferKind.
};

// Takes turns until the driver that listens at `listener` closes the
// connection. Errors: of the connection, of a turn.
absl::Status ServeSubject(const std::string& listener,
                          AllReduceSubject& subject);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
