// Starts the ranks of a run on this host, sees them to their end, and says how
// they ended.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/subprocess.h"
#include "collectives/launch/node_group.h"
#include "collectives/launch/rank_placement.h"
#include "collectives/launch/supervisor.h"

namespace lockstep {

// A free port: a socket that is bound to `port` and does not listen.
struct ReservedPort {
  OwnedFd socket;
  int port = 0;  // 0 if the host has no such address or no port left.
};

// Takes a free port of 127.0.0.1, or of all of the host's addresses. While
// `socket` is open the kernel gives the port to no program that asks for any,
// but to who asks for this one with SO_REUSEADDR, as servers do: PyTorch's
// store, Gloo, ours.
ReservedPort ReservePort(bool of_all_addresses = false);

struct LaunchOptions {
  int nproc = 1;  // Ranks to start: 1 to kMostRanksOnHost.
  // The command of every rank, as for execvp().
  std::vector<std::string> argv = {};
  Environment environment = {};  // Set for every rank.
  // Each complete line of a rank's output gets "[rank] " in front. Without it
  // the ranks write to the launcher's output themselves, unless there are logs.
  bool prefix_output = true;
  // A folder, created if it is missing, for a file rank-<r>.log for each rank,
  // which gets what the rank writes to either stream; "" for none.
  std::string log_dir = {};
  // If not 0, nothing of the ranks' output is passed on: the last so many bytes
  // of each rank's are in LaunchSummary::kept_output instead. Logs get all.
  size_t keep_output_bytes = 0;
  // By rank, from PlaceRanks(); empty: what PlaceRanks() does by default.
  std::vector<RankPlacement> placements = {};
  LaunchGrace grace = {};
  // How long the ranks may take. Then they get grace.terminate to end.
  absl::Duration timeout = absl::InfiniteDuration();
  // Null: this host is the only one. Else what these ranks are of a run on
  // several nodes: it is told of the first failure here, and a failure
  // elsewhere ends the ranks as one here does. Borrowed; its Watch is called.
  NodeGroup* nodes = nullptr;
};

struct LaunchSummary {
  std::vector<RankOutcome> ranks = {};  // In the order in which they ended.
  // The first signal to the launcher that asks a program to end (SIGHUP,
  // SIGINT, SIGQUIT, SIGTERM); 0 if there was none.
  int received_signal = 0;
  // LaunchOptions::timeout, if that was over before the ranks had ended.
  std::optional<absl::Duration> timed_out = std::nullopt;
  // By rank, as LaunchOptions::keep_output_bytes asks for; else empty.
  std::vector<std::string> kept_output = {};
  // Why a rank's log is not complete; "" if nothing was lost.
  std::string log_error = {};
};

// The first rank that failed by itself: not stopped, and not exit status 0.
std::optional<RankOutcome> FirstFailure(const LaunchSummary& summary);

// What the launcher should exit with: 0 if every rank did; else the exit status
// of the first failure, or 128 + signal for one killed by a signal; else 124 if
// their time was up; else, if ranks only failed because the launcher was told
// to end, 128 + that signal.
int ExitStatus(const LaunchSummary& summary);

// One line, without a line end, that names the first rank to fail, how, when
// (since the start of the run), and what became of the others; "" if the exit
// status is 0. For example:
//
//   rank 1 (pid 4242) was killed by signal 9 (SIGKILL) after 12.3 s; rank 0
//   failed after it; ranks 2-4, 6 were stopped; 2 ranks ended well
std::string DescribeFailure(const LaunchSummary& summary);

// The same to print: "lockstep: ....", broken into lines of at most 100
// characters, each with that in front; without the last line end. elsewhere:
// the failure of another node, if that came first in the run: it then begins
// the text, and what ended here after it follows.
std::string FormatSummary(const LaunchSummary& summary,
                          const std::string& elsewhere = {});

// "rank 3", or "ranks 0, 2-5, 9": in ascending order, runs of three or more
// shortened; and past six numbers and runs, how many more there are.
// ranks: at least one.
std::string FormatRanks(std::vector<int> ranks);

// "12.3 s"; from two minutes on as absl has it, to the second: "2h13m5s".
std::string FormatElapsed(absl::Duration time);

// "9 (SIGKILL)".
std::string FormatSignal(int signal);

// Runs options.argv as options.nproc ranks and waits for their end.
//
// Every rank finds what torchrun would set in its environment: RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; GROUP_RANK and GROUP_WORLD_SIZE, of
// the node, 0 and 1 if there is one; MASTER_ADDR, 127.0.0.1 if there is one,
// and MASTER_PORT, a free port there for rank 0 to listen on; and
// OMP_NUM_THREADS=1 unless it is set already or the rank has cores of its own.
// Besides, on one node, LOCKSTEP_RENDEZVOUS is the path of an empty file that
// all ranks can open, on no disk and gone after the run. A rank reads
// /dev/null, writes to this process's standard output and error, inherits no
// other descriptor, and leads a process group of its own.
//
// When a rank fails, the others get options.grace to end; when options.timeout
// is over, all do. SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 to
// this process go to every rank's process group, unless this process ignored
// them before; after the first four the ranks get options.grace.after_signal; a
// second SIGINT kills at once.
//
// No process that a rank started, in whatever session, outlives the run: also
// when a rank, or this process, or the supervisor process between them (see
// supervisor.h) is killed with SIGKILL. Limits: if this process and the
// supervisor are killed in the same instant, the ranks die but programs that
// they started may not; and a process that waits in the kernel for a device is
// given up, with an error, after kSurvivalLimit.
//
// Only for single-threaded processes, since it forks. Opens /dev/null in place
// of a closed standard descriptor of this process, and leaves it so. Signal
// handling, the signal mask and the subreaper setting are as before when it
// returns; other children of the caller are left alone.
//
// A rank that fails is not an error: see the summary. Errors: kInvalidArgument
// if nproc is out of range, argv is empty, the timeout is not above zero, there
// are placements but not nproc, or a log cannot be written; kNotFound or
// kPermissionDenied if the command cannot be run; kAborted if the supervisor
// died; kDeadlineExceeded if a process could not be killed; the system's for
// lack of descriptors or memory.
absl::StatusOr<LaunchSummary> Launch(const LaunchOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_
