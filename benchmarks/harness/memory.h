// How much memory a run may take, and how much something takes.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// Bytes that can be had without swapping: what the machine has available, and
// no more than this process's control group has left. The most there can be if
// the kernel does not say.
int64_t AvailableMemory();

// The share of it that a benchmark may take.
int64_t MemoryForRun();

// Refuses, before it starts, what will not fit. Error: kInvalidArgument: `what`
// (which begins with the flag to change), "need ", and both in MiB.
absl::Status CheckMemory(absl::string_view what, int64_t needed, int64_t room);

// MemAvailable in the text of /proc/meminfo.
std::optional<int64_t> MemAvailable(absl::string_view meminfo);

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

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_MEMORY_H_
