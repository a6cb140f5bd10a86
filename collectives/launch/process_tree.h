// Finding and ending the children of this process.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_TREE_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_TREE_H_

#include <sys/types.h>

#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep {

// The processes, zombies included, whose parent is `parent`, in no order. Reads
// the state of every process of the host from /proc, so takes about 10
// microseconds for each. Errors: the file system's if there is no /proc.
absl::StatusOr<std::vector<pid_t>> ListChildren(pid_t parent);

// Kills, with SIGKILL, and reaps every child of this process except those in
// `spared`, until there is none. In a child subreaper (PR_SET_CHILD_SUBREAPER)
// that ends all descendants, in whatever group or session: the children of a
// killed child become children of this process, and are found in turn. Only own
// children are ever signalled, and their numbers cannot be reused before they
// are reaped, so no stranger is hit.
//
// SIGCHLD must be blocked and not ignored. on_exit is called for every child
// that is reaped, with its wait status.
// Errors: kDeadlineExceeded names the processes that have survived SIGKILL for
// `timeout` (the kernel cannot end a process that waits for a device);
// the file system's if there is no /proc.
absl::Status KillChildren(
    std::span<const pid_t> spared, absl::Duration timeout,
    absl::FunctionRef<void(pid_t pid, int wait_status)> on_exit);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_PROCESS_TREE_H_
