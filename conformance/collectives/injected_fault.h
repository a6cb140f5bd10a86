// A fault in one rank of a group, what every other rank must report of it, and
// calls for the fault to strike in.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_INJECTED_FAULT_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_INJECTED_FAULT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_checker.h"
#include "gmock/gmock.h"

namespace lockstep::conformance {

// The bounds that collectives/README.md promises.
inline constexpr absl::Duration kSoon = absl::Seconds(1);
inline constexpr absl::Duration kDeadline = absl::Seconds(1);

enum class Fault { kKilled, kStopped, kDisagrees };

// One fault in one rank of a group.
struct FaultPlan {
  uint32_t seed;
  int world_size;
  int victim;
  int call;  // Counted from 0.
  Fault fault;
  int delay_us;    // From the start of the call, of kKilled and kStopped.
  int difference;  // Of kDisagrees: what differs.
};

// A fault at a random call of a random rank of two to five.
FaultPlan PlanOf(uint32_t seed);

std::string ToString(const FaultPlan& plan);

// When the fault struck, in memory that all ranks share.
class SharedTime {
 public:
  SharedTime();
  ~SharedTime();
  SharedTime(const SharedTime&) = delete;
  SharedTime& operator=(const SharedTime&) = delete;

  // Takes the time that it is. A signal handler may call it.
  void Set();
  absl::Duration Since() const;

 private:
  std::atomic<int64_t>* const nanos_;
};

// Kills or stops this process, at once or after `plan.delay_us`.
void Strike(const FaultPlan& plan, SharedTime& struck);

// Returns `status`, the error that a fault gave, if it came in time and every
// later call fails with it; else kInternal.
absl::Status CheckReport(Communicator& communicator, const FaultPlan& plan,
                         const SharedTime& struck, const absl::Status& status);

// Matches what a rank must report. files: those of the calls on which ranks
// disagree, as a regular expression.
testing::Matcher<const absl::Status&> IsCause(
    const FaultPlan& plan,
    const std::string& files = "(fault_injection_test.cc|injected_fault.h)");

// The names of all that a group could leave: files, shared memory, open files.
std::vector<std::multiset<std::string>> Traces();

// Runs one rank of a group in which a fault strikes at the time that the rank
// notes.
using RunFaulty =
    std::function<absl::Status(Communicator&, SharedTime& struck)>;

// Expects that every rank that can report reports the fault as `is_cause`, and
// that nothing is left.
void ExpectReports(Backend backend, const FaultPlan& plan, const RunFaulty& run,
                   const testing::Matcher<const absl::Status&>& is_cause);

// Elements, at most, of a call.
inline constexpr int64_t kMaxCount = 100000;

// A collective of all ranks.
struct CallPlan {
  int operation;  // In [0, 8): MakeCall's cases.
  int64_t count;
  ReduceOp op;
  int root;
};

// One rank's buffers of a call that it makes again and again.
class CallMemory {
 public:
  // Empty: each call gets ordinary memory of its own.
  CallMemory() = default;

  // Errors: the communicator's.
  static absl::StatusOr<CallMemory> Create(Communicator& communicator,
                                           Memory memory);

  // Elements of float's size. `own` has the memory of a call on ordinary
  // memory.
  template <typename T>
  std::span<T> Take(size_t index, size_t count, std::vector<T>& own) const {
    static_assert(sizeof(T) == sizeof(float));
    if (largest_ > 0) {
      return buffer_.as<T>().subspan(index * static_cast<size_t>(largest_),
                                     count);
    }
    own.resize(count);
    return own;
  }

 private:
  static constexpr int64_t kBuffers = 4;

  GroupBuffer buffer_;
  int64_t largest_ = 0;  // Elements of each buffer.
};

// The buffers of a call, in the order of `CallMemory::Take`.
template <typename T>
struct CallBuffers {
  CallBuffers(const CallMemory& memory, int64_t elements, int world_size)
      : count(static_cast<size_t>(elements)),
        all(count * static_cast<size_t>(world_size)),
        one(memory.Take(0, count, own[0])),
        other(memory.Take(1, count, own[1])),
        many(memory.Take(2, all, own[2])),
        others(memory.Take(3, all, own[3])) {}

  std::vector<T> own[4];
  size_t count, all;
  std::span<T> one, other, many, others;
};

// Makes the call on float32 or int32 elements. Errors: the communicator's.
template <typename T>
absl::Status MakeCall(Communicator& communicator, const CallPlan& call,
                      const CallMemory& memory) {
  const CallBuffers<T> b(memory, call.count, communicator.world_size());
  switch (call.operation) {
    case 0:
      return communicator.AllReduce(b.one, call.op);
    case 1:
      return communicator.Broadcast(b.one, call.root);
    case 2:
      return communicator.AllGather(b.one, b.many);
    case 3:
      return communicator.ReduceScatter(b.many, b.one, call.op);
    case 4:
      return communicator.Reduce(b.other, b.one, call.op, call.root);
    case 5:
      return communicator.Gather(b.one, b.many, call.root);
    case 6:
      return communicator.Scatter(b.many, b.one, call.root);
    default:
      return communicator.AllToAll(b.others, b.many);
  }
}

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_INJECTED_FAULT_H_
