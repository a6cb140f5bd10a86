// Processes of this host, as the kernel shows them in /proc.
#ifndef LOCKSTEP_BASE_PROCESS_H_
#define LOCKSTEP_BASE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

struct ProcessStat {
  char state = 0;            // As in proc(5): 'R', 'S', 'Z', ...
  pid_t parent = 0;          // 0 if it has none.
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.
};

// nullopt if there is no such process. Cost: reads one file of /proc.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

// The same from the text of /proc/<pid>/stat; nullopt if it is not understood.
// The name of the process, which stands in it, may hold anything.
std::optional<ProcessStat> ParseProcessStat(absl::string_view text);

// A process of this host, for as long as the host is up: its start tells it
// from a later process that is given the same number.
struct ProcessIdentity {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // As of ProcessStat.

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

ProcessIdentity ThisProcess();

// False once it has ended, zombies included. A stopped process is alive.
// Cost: reads one file of /proc.
bool IsAlive(const ProcessIdentity& process);

// Now, on the clock of ProcessIdentity::start_ticks.
uint64_t TicksSinceHostStart();

// The live processes whose environment has the variable ("RANK=1"), in no
// order. A process shows the environment that it was started with. Cost: reads
// a file of every process of the host.
std::vector<pid_t> ProcessesWithVariable(absl::string_view variable);

// Whether the process is `ancestor`, or a descendant of it.
bool DescendsFrom(pid_t process, pid_t ancestor);

// Waits until the process, which may be anybody's, has ended; it may still be a
// zombie then. False if it has not ended within the time, or there is none.
bool AwaitProcessEnd(pid_t process, absl::Duration timeout);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_PROCESS_H_
