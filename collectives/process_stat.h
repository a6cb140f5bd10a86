// What the kernel says about a process in /proc/<pid>/stat.
#ifndef LOCKSTEP_COLLECTIVES_PROCESS_STAT_H_
#define LOCKSTEP_COLLECTIVES_PROCESS_STAT_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

struct ProcessStat {
  char state = 0;            // As in proc(5): 'R', 'S', 'Z', ...
  pid_t parent = 0;          // 0 if it has none.
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.
};

// nullopt if there is no such process. Cost: reads one file of /proc.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

// The same from the text of the file; nullopt if it is not understood. The name
// of the process, which stands in it, may hold anything.
std::optional<ProcessStat> ParseProcessStat(absl::string_view text);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_PROCESS_STAT_H_
