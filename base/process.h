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
  pid_t parent = 0;          // 0 if the process has no parent.
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.
  // The CPU time, in clock ticks, of all threads of the process and of the
  // children that it has waited for.
  int64_t cpu_ticks = 0;
};

// Returns nullopt if there is no such process. Cost: reads one file of /proc.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

// Parses the text of /proc/<pid>/stat; returns nullopt if the text is
// malformed. The name of the process in the text may contain any character.
std::optional<ProcessStat> ParseProcessStat(absl::string_view text);

// Identifies a process of this host for as long as the host is up. The start
// time distinguishes it from a later process that gets the same number.
struct ProcessIdentity {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // The same as ProcessStat::start_ticks.

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

ProcessIdentity ThisProcess();

// Returns this program's path, with which it can start itself again.
std::string OwnProgramPath();

// Returns false once the process has ended; a zombie has ended. A stopped
// process is alive. Cost: reads one file of /proc.
bool IsAlive(const ProcessIdentity& process);

// Returns the current time on the clock of ProcessIdentity::start_ticks.
uint64_t TicksSinceHostStart();

// Returns whether the process's environment has the variable ("RANK=1"). The
// kernel shows the environment that the process was started with, and shows
// none for a process of another user.
bool HasVariable(pid_t process, absl::string_view variable);

// Returns the CPU time, in clock ticks, of these processes and all their
// descendants. A root that descends from another root is counted once. The time
// of an ended process counts if its parent has waited for it. Cost: reads one
// file of every process of the host.
int64_t CpuTicksOfTrees(std::span<const pid_t> roots);

// Returns the live processes that have the variable, in no particular order.
// Cost: reads one file of every process of the host.
std::vector<pid_t> ProcessesWithVariable(absl::string_view variable);

// Returns whether the process is `ancestor` or one of its descendants.
bool DescendsFrom(pid_t process, pid_t ancestor);

// Sends a signal to one process. If `pid` is 1 or below, sends nothing: the
// kernel takes 0 for the caller's group, -1 for every process that the user may
// signal, and 1 for init. Returns whether the signal was sent. If it was not
// sent, errno is EINVAL for such a pid, or the kernel's error (ESRCH: no such
// process). Safe after a fork and in a signal handler.
//
// Only this function and SendSignalToGroup may signal other processes in this
// project. //base:signal_calls_test rejects direct calls of the kernel's
// functions.
bool SendSignal(pid_t pid, int signal);

// Sends a signal to every process of the group that `leader` leads or led. The
// rules of SendSignal apply.
bool SendSignalToGroup(pid_t leader, int signal);

// Waits until the process, which may be any process, has ended. Returns true if
// it has ended, even if it is still a zombie, and true if no process has this
// number. Returns false if the timeout passes first.
bool AwaitProcessEnd(pid_t process, absl::Duration timeout);

// Returns the number of cores that this thread may use: the size of its CPU
// affinity, limited by the CPU quota of the control group at the root of
// /sys/fs/cgroup, rounded up. In a container that group is the container's. The
// result is at least 1.
int UsableCores();

// Returns the number of cores that several processes of this host may use
// together, given their numbers. Each process may be bound to its own cores, as
// mpirun binds ranks. A process adds no cores if the kernel does not tell its
// affinity, for example because it has ended or is another user's.
int UsableCores(std::span<const pid_t> processes);

// Returns the numbers of the CPUs in the affinity of a process's first thread,
// or of the calling thread for 0, in ascending order. A CPU here is a hardware
// thread, which the kernel schedules on; a core may have several. The result is
// empty if the kernel gives no affinity.
std::vector<int> AffinityCpus(pid_t process = 0);

// Binds the calling thread to the CPUs of these numbers, together with the
// threads and processes that it starts later. Returns false, with errno set, if
// the kernel refuses: EINVAL for CPUs that this process may not use. Safe after
// a fork.
bool SetAffinity(std::span<const int> cpus);

// Returns the quota in the text of a cgroup's cpu.max, rounded up to whole
// cores: "200000 100000" allows two cores. Returns 0 if the text has no quota
// or is malformed.
int CoresOfQuota(absl::string_view cpu_max);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_PROCESS_H_
