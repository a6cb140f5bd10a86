// How much memory something takes.
#ifndef LOCKSTEP_BENCHMARKS_RESIDENT_GROWTH_H_
#define LOCKSTEP_BENCHMARKS_RESIDENT_GROWTH_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Runs `warm_up` and then `work` in a copy of this process and returns by how
// many bytes the peak of the copy's resident memory grows in the second: what
// the work takes at its most. The first runs the same code, so that its pages
// do not count, on something small. The kernel counts in pages, and may be a
// few dozen of them off.
//
// Only for a process of one thread. Errors: kInternal with the message of the
// one that fails; kAborted if the copy does not finish within a minute.
absl::StatusOr<int64_t> ResidentGrowth(
    const std::function<absl::Status()>& warm_up,
    const std::function<absl::Status()>& work);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_RESIDENT_GROWTH_H_
