// Starts the ranks of a run on this host, waits until they have ended, and
// reports how they ended.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/subprocess.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/node_group.h"
#include "collectives/launch/rank_placement.h"
#include "collectives/launch/supervisor.h"

namespace lockstep {

// A free port: a socket that is bound to `port` and does not listen.
struct ReservedPort {
  OwnedFd socket;
  int port = 0;  // 0 if the host has no such address or no port left.
};

// Reserves a free port of 127.0.0.1, or of all of the host's addresses. While
// `socket` is open, the kernel assigns the port to no program that asks for any
// free port. A program that asks for this port with SO_REUSEADDR still gets it,
// as servers do: PyTorch's store, Gloo, ours.
ReservedPort ReservePort(bool of_all_addresses = false);

struct LaunchOptions {
  int nproc = 1;  // The number of ranks to start: 1 to kMostRanksOnHost.
  // The command of every rank, as for execvp().
  std::vector<std::string> argv = {};
  Environment environment = {};  // Set for every rank.
  // Prepends "[rank] " to each complete line of a rank's output. If false, the
  // ranks write directly to the launcher's output, unless there are logs.
  bool prefix_output = true;
  // A folder for the logs, created if it is missing; "" for none. The file
  // rank-<r>.log gets what rank r writes to either stream.
  std::string log_dir = {};
  // If not 0, no output of the ranks is passed on. LaunchSummary::kept_output
  // instead gets the last keep_output_bytes bytes of each rank's output. Logs
  // still get all output.
  size_t keep_output_bytes = 0;
  // By rank, from PlaceRanks(). If empty, the default placement of PlaceRanks()
  // is used.
  std::vector<RankPlacement> placements = {};
  LaunchGrace grace = {};
  // How long the ranks may run. After this time they get grace.terminate to
  // end.
  absl::Duration timeout = absl::InfiniteDuration();
  // Null if this host is the only one. Otherwise the group of the launchers of
  // all nodes. Launch() reports this node's first failure to it, and ends the
  // ranks here when another node fails. Borrowed; Launch() calls its Watch().
  NodeGroup* nodes = nullptr;
};

// Runs options.argv as options.nproc ranks and waits until they have ended.
//
// Every rank's environment holds the variables that torchrun would set: RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; GROUP_RANK and GROUP_WORLD_SIZE, of
// the node, which are 0 and 1 if there is one node; MASTER_ADDR, which is
// 127.0.0.1 if there is one node; MASTER_PORT, a free port there for rank 0 to
// listen on; and OMP_NUM_THREADS=1, unless it is set already or the rank has
// cores of its own. On one node, LOCKSTEP_RENDEZVOUS is the path of an empty
// file that all ranks can open. The file is on no disk and is gone after the
// run. A rank reads /dev/null, writes to this process's standard output and
// error, inherits no other descriptor, and leads a process group of its own.
//
// When a rank fails, the other ranks get options.grace to end; when
// options.timeout has passed, all ranks do. SIGHUP, SIGINT, SIGQUIT, SIGTERM,
// SIGUSR1 and SIGUSR2 to this process go to every rank's process group, unless
// this process ignored them before. After any of the first four, the ranks get
// options.grace.after_signal; a second SIGINT kills them at once.
//
// No process that a rank started, in whatever session, outlives the run. This
// is so even if SIGKILL kills a rank, this process, or the supervisor process
// between them (see supervisor.h). Limits: if this process and the supervisor
// are killed in the same instant, the ranks die, but programs that they started
// may not. A process that waits in the kernel for a device is abandoned, with
// an error, after kSurvivalLimit.
//
// The calling process must be single-threaded, since Launch() forks. Launch()
// opens /dev/null in place of a closed standard descriptor of this process, and
// leaves it open. Signal handling, the signal mask and the subreaper setting
// are restored before it returns. Other children of the caller are left alone.
//
// A rank that fails is not an error: see the summary. Errors: kInvalidArgument
// if nproc is out of range, argv is empty, the timeout is not above zero, the
// number of placements is neither 0 nor nproc, or a log cannot be written;
// kNotFound or kPermissionDenied if the command cannot be run; kAborted if the
// supervisor died; kDeadlineExceeded if a process could not be killed; the
// system's error if descriptors or memory run out.
absl::StatusOr<LaunchSummary> Launch(const LaunchOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LAUNCHER_H_
