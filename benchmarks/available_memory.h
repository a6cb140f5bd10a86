// How much memory a program may take now.
#ifndef LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_
#define LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_
