// One turn of a rank: calls that are timed, and checked.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/all_reduce_plan.h"
#include "benchmarks/all_reduce_subject.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"

namespace lockstep {

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

// What came of it.
struct TurnResult {
  std::vector<double> seconds;  // Of each timed call.
  int64_t wrong = 0;  // Elements of all timed calls that are not the exact sum.
};

// Takes a rank through its turns. Every timed call of a turn has buffers of its
// own, with inputs of their own (all_reduce_pattern.h), filled before the first
// call and checked after the last: calls follow one another as they would in a
// program, and no answer goes unchecked.
class TurnTaker {
 public:
  // The subject is borrowed.
  explicit TurnTaker(AllReduceSubject& subject) : subject_(subject) {}

  // Allocates (collectively), fills, warms up, fills again, meets the other
  // ranks, times, checks. Errors: the subject's; kResourceExhausted without
  // memory. After an error no other turn may follow.
  absl::StatusOr<TurnResult> Take(const TurnRequest& request);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  absl::StatusOr<std::span<std::byte>> Memory(BufferKind kind, int64_t bytes);

  AllReduceSubject& subject_;
  std::unique_ptr<std::byte, Free> ordinary_;
  std::span<std::byte> memory_[2];  // By BufferKind.
};

// The result of a team from those of its ranks: an iteration takes as long as
// on its slowest rank, and all wrong elements count. results: at least one.
// Error: kDataLoss if the ranks timed different numbers of calls.
absl::StatusOr<TurnResult> CombineRanks(std::span<const TurnResult> results);

// A rank's result as bytes, and back. Error: kDataLoss for bytes that are none.
std::string Serialize(const TurnResult& result);
absl::StatusOr<TurnResult> ParseResult(absl::string_view bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_TURN_H_
