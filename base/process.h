// What the kernel says about a process in /proc/<pid>/stat.
#ifndef LOCKSTEP_BASE_PROCESS_H_
#define LOCKSTEP_BASE_PROCESS_H_

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

// Telling a process from a later one that was given the same number.

// A process of this host, for as long as the host is up.
struct ProcessIdentity {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

ProcessIdentity ThisProcess();

// False once it has ended, zombies included. A stopped process is alive.
// Cost: reads one file of /proc.
bool IsAlive(const ProcessIdentity& process);

// Now, on the clock of ProcessIdentity::start_ticks.
uint64_t TicksSinceHostStart();

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_PROCESS_H_
