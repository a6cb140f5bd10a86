// Processes of this host, as the kernel shows them in /proc, and the cores that
// they may use.
#ifndef LOCKSTEP_BASE_PROCESS_H_
#define LOCKSTEP_BASE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

struct ProcessStat {
  char state = 0;            // As in proc(5): 'R', 'S', 'Z', ...
  pid_t parent = 0;          // 0 if it has none.
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.
  // Clock ticks on a CPU, of all its threads and of the children that it has
  // waited for.
  int64_t cpu_ticks = 0;
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

// This program's path, to start it again.
std::string OwnProgram();

// False once it has ended, zombies included. A stopped process is alive.
// Cost: reads one file of /proc.
bool IsAlive(const ProcessIdentity& process);

// Now, on the clock of ProcessIdentity::start_ticks.
uint64_t TicksSinceHostStart();

// Whether the process's environment has the variable ("RANK=1"). A process
// shows the environment that it was started with; none if it is another user's.
bool HasVariable(pid_t process, absl::string_view variable);

// The clock ticks that these processes and all their descendants have had on a
// CPU; a process that stands under another is counted once. Those of an ended
// process count if its parent has waited for it. Cost: reads a file of every
// process of the host.
int64_t CpuTicksOfTrees(std::span<const pid_t> roots);

// The live processes that have the variable, in no order. Cost: reads a file of
// every process of the host.
std::vector<pid_t> ProcessesWithVariable(absl::string_view variable);

// Whether the process is `ancestor`, or a descendant of it.
bool DescendsFrom(pid_t process, pid_t ancestor);

// Sends a signal to one process. If `pid` is 1 or below, sends nothing, since
// the kernel takes 0 for the caller's group, -1 for every process that the user
// may signal, and 1 for init. Returns whether the signal was sent; otherwise
// errno is EINVAL for such a pid, or the kernel's error (ESRCH: no such
// process). Safe after a fork and in a signal handler.
//
// This function and the next are the only ones of the project that signal other
// processes; //base:signal_calls_test rejects direct calls of the kernel's.
bool SendSignal(pid_t pid, int signal);

// Sends a signal to every process of the group that `leader` leads or led. The
// same rules hold.
bool SendSignalToGroup(pid_t leader, int signal);

// Waits until the process, which may be anybody's, has ended; it may still be a
// zombie then, or be gone, as one of an unused number is. False if it has not
// ended within the time.
bool AwaitProcessEnd(pid_t process, absl::Duration timeout);

// The cores that this thread may use: those of its CPU affinity, and no more
// than the CPU quota of the control group at the root of /sys/fs/cgroup, which
// in a container is the container's, rounded up. At least 1.
int UsableCores();

// The same for several processes of this host together, given their numbers:
// each may be bound to cores of its own, as mpirun binds ranks. Those that are
// gone or not this user's count for none.
int UsableCores(std::span<const pid_t> processes);

// The numbers of the CPUs in the affinity of a process's first thread, or of
// the calling thread for 0, ascending: what the kernel schedules on, so
// hardware threads, of which a core may have several. Empty if the kernel does
// not say.
std::vector<int> AffinityCpus(pid_t process = 0);

// Binds the calling thread, and the threads and processes that it starts later,
// to the CPUs of these numbers. False, with errno set, if the kernel refuses:
// EINVAL for CPUs that this process may not use. Safe after a fork.
bool SetAffinity(std::span<const int> cpus);

// The quota in the text of a cgroup's cpu.max ("200000 100000" allows two
// cores), rounded up to whole cores; 0 if there is none or the text is not
// understood.
int CoresOfQuota(absl::string_view cpu_max);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_PROCESS_H_
