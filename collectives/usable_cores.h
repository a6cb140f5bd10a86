// How many cores a process may compute on.
#ifndef LOCKSTEP_COLLECTIVES_USABLE_CORES_H_
#define LOCKSTEP_COLLECTIVES_USABLE_CORES_H_

#include "absl/strings/string_view.h"

namespace lockstep {

// The cores that this thread may use: those of its CPU affinity, and no more
// than its control group's CPU quota, rounded up. At least 1.
int UsableCores();

// The quota in the text of a cgroup's cpu.max ("200000 100000" allows two
// cores), rounded up to whole cores; 0 if there is none or the text is not
// understood.
int CoresOfQuota(absl::string_view cpu_max);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_USABLE_CORES_H_
