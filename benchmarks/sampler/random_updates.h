// What a table costs that is accessed at random, whatever for.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_RANDOM_UPDATES_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_RANDOM_UPDATES_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace lockstep::benchmarks {

// Seconds that `size` updates (read, change, write) at random places of a table
// of as many int32 take. No update waits for another, and a place costs next to
// nothing to draw, so it is all the memory's time: what any algorithm takes at
// least that goes once to a random place of such a table for each element.
// Allocating and clearing the table is not timed. Errors: kResourceExhausted
// without memory; kDataLoss if an update was lost. size: at least 1, at most
// 2^32.
absl::StatusOr<double> TimeRandomUpdates(int64_t size);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_RANDOM_UPDATES_H_
