// Threads that make the same calls at the same time.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_TIMED_THREADS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_TIMED_THREADS_H_

#include <barrier>
#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// Runs `time` in each of `threads` threads, which meet at the barrier, and
// combines their results (SlowestOf). threads: at least 1. Error: SlowestOf's.
absl::StatusOr<TimedCalls> TimeTogether(
    size_t threads,
    absl::FunctionRef<TimedCalls(size_t thread, std::barrier<>& start)> time);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TIMED_THREADS_H_
