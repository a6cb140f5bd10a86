// The launchers of one run, one on each of several nodes: how they find each
// other, share out the ranks, and learn of each other's failures.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_NODE_GROUP_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_NODE_GROUP_H_

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/files.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"

namespace lockstep {

// What this node's ranks are of the whole run.
struct NodePlace {
  int node = 0;   // GROUP_RANK.
  int nodes = 1;  // GROUP_WORLD_SIZE.
  int first_rank = 0;
  int world_size = 0;  // Over all nodes; 0: the ranks of this one are all.
  std::string master_address = {};
  int master_port = 0;  // Free on node 0.
};

// How a node's ranks ended badly.
struct NodeFailure {
  int node = 0;
  int exit_status = 0;    // For every launcher to exit with.
  std::string text = {};  // "node 1 (hostb): rank 3 (pid 7) was killed by ...".
};

// This launcher's membership. Made and used by a process of one thread, so that
// it can fork, up to Watch, which starts one.
class NodeGroup {
 public:
  using Clock = std::chrono::steady_clock;

  // Meets the launchers of all nodes at `place`, where node 0's listens.
  // Returns once all have come, which `meeting` limits; its lines and the
  // errors, those of JoinTcpGroupAt, name nodes in place of ranks.
  static absl::StatusOr<std::unique_ptr<NodeGroup>> Join(
      const MeetingPlace& place, int node, int nodes, int ranks_here,
      const MeetingOptions& meeting);

  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;
  ~NodeGroup();

  const NodePlace& place() const { return place_; }

  // From here on a thread tells the other nodes, several times a second, how
  // this one's ranks do, and hears how theirs do. It handles no signals.
  void Watch();

  // Readable as soon as another node's ranks have failed, or its launcher has
  // died or cannot be reached.
  int failure_fd() const { return failed_.get(); }

  // Tells the others that ranks of this node have failed, and when: the first
  // call counts. text: as DescribeFailure() has it.
  void Fail(int exit_status, absl::string_view text,
            Clock::time_point when = Clock::now());

  // Tells the others that this node's ranks have ended, and waits until those
  // of all nodes have. Returns the failure that came first in the whole run,
  // if any rank failed. Later calls return the same.
  std::optional<NodeFailure> AwaitEnd();

  // In a fork, which is no launcher: closes the connections there, which so end
  // with the launcher.
  void CloseInFork();

 private:
  // Plain old data: it travels as bytes.
  struct State {
    bool ended = false;
    bool failed = false;
    int exit_status = 0;
    int ranks = 0;
    int port = 0;                    // Free, of node 0.
    double seconds = 0;              // When it failed, since all had met.
    std::array<char, 64> host = {};  // Its name.
    std::array<char, 400> text = {};
  };

  NodeGroup(std::unique_ptr<Communicator> launchers, OwnedFd port)
      : launchers_(std::move(launchers)), port_(std::move(port)) {}

  absl::StatusOr<std::vector<State>> Exchange(const State& mine);
  void Run();
  // Keeps the earliest; makes failure_fd() readable if it is another node's.
  void Note(const NodeFailure& failure, double seconds);

  std::unique_ptr<Communicator> launchers_;
  OwnedFd port_;  // Holds the ranks' port, on node 0.
  NodePlace place_;
  Clock::time_point start_;
  OwnedFd failed_;
  OwnedFd news_;  // Readable: state_ has changed.
  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::optional<NodeFailure> first_ ABSL_GUARDED_BY(mutex_);
  double first_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
  bool over_ = false;  // Run() has returned.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_NODE_GROUP_H_
