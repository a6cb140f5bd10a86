// The process between the launcher and the ranks: how it starts a rank's
// process, watches the ranks, and ends all that is left of them.
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

// How long ranks get to end when they must.
struct LaunchGrace {
  // After the first failure, for the others to notice and say so themselves.
  absl::Duration report = absl::Milliseconds(300);
  // After that and a SIGTERM, before SIGKILL.
  absl::Duration terminate = absl::Milliseconds(500);
  // After a signal to the launcher that asks a program to end was passed on,
  // before SIGKILL: time for a checkpoint.
  absl::Duration after_signal = absl::Seconds(5);
};

// A process that survives SIGKILL this long hangs in the kernel; waiting on for
// it would hang the launcher too.
inline constexpr absl::Duration kSurvivalLimit = absl::Seconds(10);

// The end of one rank.
struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  int wait_status = 0;   // As waitpid() gives it.
  bool stopped = false;  // The launcher had told it to stop before it ended.
  absl::Duration after = absl::ZeroDuration();  // Since the ranks started.
};

// What the supervisor tells the launcher, one message of a SOCK_SEQPACKET each.
// The launcher sends single bytes: numbers of signals to pass on, or
// kFailedElsewhere, upon which the ranks end as if one of them had failed.
inline constexpr unsigned char kFailedElsewhere = 0;
struct SupervisorEvent {
  enum Kind : int32_t {
    kRankEnded,       // ended.
    kRankNotStarted,  // ended.rank; value: the errno.
    kSignalReceived,  // value: the first signal that asks to end.
    kTimedOut,        // The plan's timeout was over.
    kSurvivors,       // Some process has survived kSurvivalLimit.
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
  std::vector<std::vector<int>> cpus;  // By rank, to be bound to; or empty.
  sigset_t passed_on = {};  // Signals to pass on to ranks; blocked now.
  sigset_t rank_mask = {};  // The signal mask that ranks start with.
  LaunchGrace grace;
  absl::Duration timeout = absl::InfiniteDuration();  // From the start.
};

// The whole life of the supervisor process; returns when no descendant of it
// is left. SIGCHLD must be blocked and not ignored. Ends every descendant when
// a rank fails, when all ranks have ended, when their time is up, when told to
// by a signal, and, at once, when the launcher dies (seen as the end of the
// channel).
void RunSupervisor(SupervisorPlan plan);

// Signals that ask a program to end, as opposed to those that tell it news.
bool AsksToEnd(int signal);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_
