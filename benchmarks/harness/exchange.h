// Threads that exchange small messages: the time that the processor needs to
// move the data of a small all-reduce.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_EXCHANGE_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_EXCHANGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// The largest message of TimeExchange. A larger one is faster if its lines are
// fetched ahead, which TimeExchange does not do.
inline constexpr int64_t kMostExchanged = 256;

// Times `calls` all-reduces by `threads` threads that only move the data. Each
// thread writes its message and then the number of the call to memory of its
// own, waits for the numbers of all other threads, and adds their messages to
// its own. A message of at most 56 bytes lies in the line of the
// number. No call is checked, no wait has a deadline, and no thread sleeps.
//
// The threads are bound to the CPUs that this process may use, in turn. Every
// call has its own message, in place, as in a rank's turn. A call takes as long
// as in its slowest thread.
//
// result.wrong: the number of float32 that are not the sum. bytes: 4 to
// kMostExchanged. threads: 2 to UsableCores(): a thread that waits does not
// yield its core. Error: kResourceExhausted without memory.
absl::StatusOr<TimedCalls> TimeExchange(int threads, int64_t bytes, int calls);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_EXCHANGE_H_
