// How fast all cores together copy memory.
#ifndef LOCKSTEP_BENCHMARKS_COPY_BANDWIDTH_H_
#define LOCKSTEP_BENCHMARKS_COPY_BANDWIDTH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce_turn.h"

namespace lockstep {

// Copies with `threads` threads at once, which together own `bytes` of memory:
// each copies the first half of its part to the second, which reads bytes / 2
// and writes bytes / 2 in all. `warmup` copies do not count; each of the
// `iterations` others takes as long as in its slowest thread. result.wrong is
// the number of bytes that were not copied. bytes: at least 2 a thread. Error:
// kResourceExhausted without memory.
absl::StatusOr<TurnResult> TimeCopies(int threads, int64_t bytes, int warmup,
                                      int iterations);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_COPY_BANDWIDTH_H_
