// How many cores a process may compute on.
#ifndef LOCKSTEP_BASE_CORES_H_
#define LOCKSTEP_BASE_CORES_H_

#include <sys/types.h>

#include <span>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

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

#endif  // LOCKSTEP_BASE_CORES_H_
