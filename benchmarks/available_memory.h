// How much memory a program may take now.
#ifndef LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_
#define LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

// Bytes that can be had without swapping: what the machine has available, and
// no more than this process's control group has left. The most there can be if
// the kernel does not say.
int64_t AvailableMemory();

// MemAvailable in the text of /proc/meminfo.
std::optional<int64_t> MemAvailable(absl::string_view meminfo);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_AVAILABLE_MEMORY_H_
