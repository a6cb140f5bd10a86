// A fault in one rank of a group, the error that every other rank must report,
// and the calls during which the fault strikes.
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
  // The delay from the start of the call, for kKilled and kStopped.
  int delay_us;
  int difference;  // The kind of difference, for kDisagrees.
};

// Returns a fault at a random call of a random rank, in a group of two to five.
FaultPlan PlanOf(uint32_t seed);

std::string ToString(const FaultPlan& plan);

// The time when the fault struck, in memory that all ranks share.
class SharedTime {
 public:
  SharedTime();
  ~SharedTime();
  SharedTime(const SharedTime&) = delete;
  SharedTime& operator=(const SharedTime&) = delete;

  // Stores the current time. A signal handler may call this function.
  void Set();
  absl::Duration Since() const;

 private:
  std::atomic<int64_t>* const nanos_;
};

// Kills or stops this process, at once or after `plan.delay_us`.
void Strike(const FaultPlan& plan, SharedTime& struck);

// Returns `status`, the error that a fault caused, if it came in time and every
// later call fails with it. Otherwise returns kInternal.
absl::Status CheckReport(Communicator& communicator, const FaultPlan& plan,
                         const SharedTime& struck, const absl::Status& status);

// Matches the error that a rank must report. files: a regular expression for
// the source files of the calls on which ranks disagree.
testing::Matcher<const absl::Status&> IsCause(
    const FaultPlan& plan,
    const std::string& files = "(fault_injection_test.cc|injected_fault.h)");

// Returns the names of everything that a group could leave: files, shared
// memory and open files.
std::vector<std::multiset<std::string>> Traces();

// Runs one rank of a group in which a fault strikes. The rank that strikes sets
// `struck`.
using RunFaulty =
    std::function<absl::Status(Communicator&, SharedTime& struck)>;

// Expects that every rank that can report reports the fault as `is_cause`, and
// that nothing is left.
void ExpectReports(Backend backend, const FaultPlan& plan, const RunFaulty& run,
                   const testing::Matcher<const absl::Status&>& is_cause);

// The maximum number of elements of a call.
inline constexpr int64_t kMaxCount = 100000;

// A collective of all ranks.
struct CallPlan {
  int operation;  // In [0, 8): MakeCall's cases.
  int64_t count;
  ReduceOp op;
  int root;
};

// One rank's buffers for a call that it makes repeatedly.
class CallMemory {
 public:
  // Empty: each call allocates ordinary memory.
  CallMemory() = default;

  // Allocates the buffers in memory of this kind. Errors: the communicator's.
  static absl::StatusOr<CallMemory> Create(Communicator& communicator,
                                           Memory memory);

  // Returns buffer `index`, with `count` elements of float's size. In ordinary
  // memory, `own` holds the elements.
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
  int64_t largest_ = 0;  // The number of elements of each buffer.
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
