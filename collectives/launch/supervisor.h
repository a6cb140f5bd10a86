// The process between the launcher and the ranks. It starts the ranks, watches
// them, and ends every process that they leave.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "collectives/launch/output_forwarder.h"

namespace lockstep {

// Returns the processes, zombies included, whose parent is `parent`, in no
// order. Reads the state of every process of the host from /proc, so takes
// about 10 microseconds for each. Errors: the file system's if there is no
// /proc.
absl::StatusOr<std::vector<pid_t>> ListChildren(pid_t parent);

// Kills with SIGKILL, and reaps, every child of this process except those in
// `spared`, until there is none. In a child subreaper (PR_SET_CHILD_SUBREAPER)
// this ends all descendants, in whatever group or session: the children of a
// killed child become children of this process and are found in turn. Only own
// children are ever signalled, and their process numbers cannot be reused
// before they are reaped, so no unrelated process is killed.
//
// SIGCHLD must be blocked and not ignored. on_exit is called for every child
// that is reaped, with its wait status. Errors: kDeadlineExceeded, naming the
// processes, if processes have survived SIGKILL for `timeout` (the kernel
// cannot end a process that waits for a device); the file system's if there is
// no /proc.
absl::Status KillChildren(
    std::span<const pid_t> spared, absl::Duration timeout,
    absl::FunctionRef<void(pid_t pid, int wait_status)> on_exit);

// How much time ranks get to end.
struct LaunchGrace {
  // After the first failure, before SIGTERM: time for the other ranks to notice
  // and report the failure themselves. They take milliseconds, but many times
  // that where ranks outnumber cores.
  absl::Duration report = absl::Seconds(1);
  // After SIGTERM, before SIGKILL.
  absl::Duration terminate = absl::Milliseconds(500);
  // After passing on a signal that asks the launcher to end, before SIGKILL:
  // time for a checkpoint.
  absl::Duration after_signal = absl::Seconds(5);
};

// How long to wait for a process that survives SIGKILL. Such a process hangs in
// the kernel, and waiting longer would hang the launcher too.
inline constexpr absl::Duration kSurvivalLimit = absl::Seconds(10);

// How one rank ended.
struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  int wait_status = 0;   // As waitpid() gives it.
  bool stopped = false;  // Whether it was told to stop before it ended.
  absl::Duration after = absl::ZeroDuration();  // Since the ranks started.
};

// Messages from the supervisor to the launcher, one SOCK_SEQPACKET message
// each. The launcher sends single bytes: the number of a signal to pass on, or
// kFailedElsewhere. On kFailedElsewhere the supervisor ends the ranks as if one
// of them had failed.
inline constexpr unsigned char kFailedElsewhere = 0;
struct SupervisorEvent {
  enum Kind : int32_t {
    kRankEnded,       // See `ended`.
    kRankNotStarted,  // See ended.rank; value: the errno.
    kSignalReceived,  // value: the first signal that asks to end.
    kTimedOut,        // The plan's timeout has passed.
    kSurvivors,       // A process has survived kSurvivalLimit.
  };
  Kind kind = kRankEnded;
  RankOutcome ended = {};
  int32_t value = 0;
};
static_assert(std::is_trivially_copyable_v<SupervisorEvent>);

struct SupervisorPlan {
  OwnedFd channel;                                     // To the launcher.
  std::vector<std::string> argv;                       // Of every rank.
  std::vector<std::vector<std::string>> environments;  // By rank: "NAME=value".
  std::vector<RankStreams> outputs;  // By rank; empty: inherit the launcher's.
  std::vector<std::vector<int>> cpus;  // By rank, CPUs to bind to; or empty.
  sigset_t passed_on = {};             // Signals to pass on; blocked now.
  sigset_t rank_mask = {};             // The signal mask that ranks start with.
  LaunchGrace grace;
  absl::Duration timeout = absl::InfiniteDuration();  // From the start.
};

// Runs the supervisor process; returns when no descendant of this process is
// left. SIGCHLD must be blocked and not ignored. Ends every descendant when a
// rank fails, when all ranks have ended, when the timeout has passed, or when a
// signal asks for it. Ends them at once when the launcher dies, which closes
// the channel.
void RunSupervisor(SupervisorPlan plan);

// Returns whether a signal asks a program to end, rather than informs it.
bool IsTerminationSignal(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_
