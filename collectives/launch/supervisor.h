// The process between the launcher and the ranks: it starts them, watches
// them, and ends all that is left of them.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_SUPERVISOR_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/files.h"
#include "collectives/launch/output_forwarder.h"

namespace lockstep {

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

// What the supervisor tells the launcher, one message of a SOCK_SEQPACKET each.
// The launcher sends single bytes: numbers of signals to pass on.
struct SupervisorEvent {
  enum Kind : int32_t {
    kRankEnded,       // rank, pid, value: its wait status, stopped, after_ns.
    kRankNotStarted,  // rank, value: the errno.
    kSignalReceived,  // value: the first signal that asks to end.
    kTimedOut,        // The plan's timeout was over.
    kSurvivors,       // Some process has survived kSurvivalLimit.
  };
  Kind kind = kRankEnded;
  int32_t rank = 0;
  pid_t pid = 0;
  int32_t value = 0;
  bool stopped = false;
  int64_t after_ns = 0;  // Since the first rank was started.
};

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
