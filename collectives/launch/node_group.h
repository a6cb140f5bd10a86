// Connects the launchers of one run, one on each of several nodes. They find
// each other, assign rank numbers to nodes, and report failures to each other.
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
#include "collectives/groups/create_group.h"
#include "collectives/groups/rendezvous_location.h"

namespace lockstep {

// The position of this node's ranks in the whole run.
struct NodeAssignment {
  int node = 0;   // GROUP_RANK.
  int nodes = 1;  // GROUP_WORLD_SIZE.
  int first_rank = 0;
  int world_size = 0;  // Over all nodes. 0: this node's ranks are all.
  std::string master_address = {};
  int master_port = 0;  // A free port of node 0.
};

// How the ranks of a node failed.
struct NodeFailure {
  int node = 0;
  int exit_status = 0;    // The exit status of every launcher.
  std::string text = {};  // "node 1 (hostb): rank 3 (pid 7) was killed by ...".
};

// This launcher's membership in the group of launchers. Until Watch is called,
// the process must have one thread, so that it can fork. Watch starts a second
// one.
class NodeGroup {
 public:
  using Clock = std::chrono::steady_clock;

  // Meets the launchers of all nodes at `place`, where node 0's launcher
  // listens. Returns once all launchers have arrived, or at the timeout of
  // `meeting`. The lines passed to meeting.tell and the errors, which are those
  // of JoinTcpGroupAt, say "node" in place of "rank".
  static absl::StatusOr<std::unique_ptr<NodeGroup>> Join(
      const RendezvousLocation& place, int node, int nodes, int ranks_here,
      const MeetingOptions& meeting);

  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;
  ~NodeGroup();

  const NodeAssignment& place() const { return place_; }

  // Starts a thread that sends this node's state to the other nodes several
  // times a second, and receives theirs. The thread blocks all signals.
  void Watch();

  // A descriptor that becomes readable when the ranks of another node fail, or
  // when its launcher dies or cannot be reached.
  int failure_fd() const { return failed_.get(); }

  // Tells the other nodes that ranks of this node have failed, and when. Only
  // the first call has an effect. text: as DescribeFailure() returns it.
  void Fail(int exit_status, absl::string_view text,
            Clock::time_point when = Clock::now());

  // Tells the other nodes that this node's ranks have ended, and waits until
  // the ranks of all nodes have ended. Returns the failure that came first in
  // the whole run, if any rank failed. Later calls return the same failure.
  std::optional<NodeFailure> AwaitEnd();

  // Closes the connections in a forked child, which is no launcher. The
  // connections then end when the launcher ends.
  void CloseInFork();

 private:
  // One node's state. Plain old data, since it is sent as bytes.
  struct State {
    bool ended = false;
    bool failed = false;
    int exit_status = 0;
    int ranks = 0;
    int port = 0;        // A free port of node 0.
    double seconds = 0;  // When the failure came, since all had met.
    std::array<char, 64> host = {};  // The node's host name.
    std::array<char, 400> text = {};
  };

  NodeGroup(std::unique_ptr<Communicator> launchers, OwnedFd port)
      : launchers_(std::move(launchers)), port_(std::move(port)) {}

  absl::StatusOr<std::vector<State>> Exchange(const State& mine);
  void Run();
  // Keeps the earliest failure. Makes failure_fd() readable if the failure is
  // another node's.
  void RecordFailure(const NodeFailure& failure, double seconds);

  std::unique_ptr<Communicator> launchers_;
  OwnedFd port_;  // Reserves the ranks' port, on node 0.
  NodeAssignment place_;
  Clock::time_point start_;
  OwnedFd failed_;
  OwnedFd news_;  // Readable if state_ has changed.
  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::optional<NodeFailure> first_ ABSL_GUARDED_BY(mutex_);
  double first_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
  bool over_ = false;  // Whether Run() has returned.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_NODE_GROUP_H_
