#include "collectives/launch/node_group.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/signals_blocked.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rendezvous_location.h"
#include "collectives/launch/launcher.h"

namespace lockstep {
namespace {

// A launcher that sends nothing for this time is taken to have lost its host.
constexpr absl::Duration kTimeout = absl::Seconds(30);
// How often launchers exchange their states if nothing has happened.
constexpr int kTellEveryMilliseconds = 200;

void Copy(absl::string_view text, std::span<char> to) {
  const size_t size = std::min(text.size(), to.size() - 1);
  std::copy_n(text.begin(), size, to.begin());
}

// Replaces "rank" by "node" in messages of the group of launchers.
std::string ReplaceRanksByNodes(absl::string_view text) {
  return absl::StrReplaceAll(
      text,
      {{"every rank", "every node"}, {"ranks ", "nodes "}, {"rank ", "node "}});
}

void Signal(const OwnedFd& event) {
  const uint64_t one = 1;
  // The event is readable already.
  if (write(event.get(), &one, sizeof(one)) < 0) return;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeGroup>> NodeGroup::Join(
    const RendezvousLocation& place, int node, int nodes, int ranks_here,
    const MeetingOptions& meeting) {
  const auto tell = [&](const std::string& line) {
    if (meeting.tell != nullptr) meeting.tell(ReplaceRanksByNodes(line));
  };
  absl::StatusOr<std::unique_ptr<Communicator>> launchers = JoinTcpGroupAt(
      place, node, nodes, {.timeout = meeting.timeout, .tell = tell},
      {.timeout = kTimeout});
  if (!launchers.ok()) {
    return absl::Status(launchers.status().code(),
                        ReplaceRanksByNodes(launchers.status().message()));
  }
  ReservedPort port;
  if (node == 0) port = ReservePort(/*of_all_addresses=*/true);
  std::unique_ptr<NodeGroup> group(
      new NodeGroup(*std::move(launchers), std::move(port.socket)));
  State mine;
  mine.ranks = ranks_here;
  mine.port = port.port;
  gethostname(mine.host.data(), mine.host.size() - 1);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<State> all,
                            group->Exchange(mine));
  group->start_ = Clock::now();
  NodeAssignment& here = group->place_;
  here.node = node;
  here.nodes = nodes;
  for (int other = 0; other < nodes; ++other) {
    const int ranks = all[static_cast<size_t>(other)].ranks;
    if (other < node) here.first_rank += ranks;
    here.world_size += ranks;
  }
  here.master_address = place.address;
  here.master_port = all[0].port;
  group->failed_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  group->news_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!group->failed_.open() || !group->news_.open()) {
    return absl::ErrnoToStatus(errno, "cannot watch the other nodes");
  }
  const absl::MutexLock lock(&group->mutex_);
  group->state_ = mine;
  return group;
}

NodeGroup::~NodeGroup() {
  if (thread_.joinable()) AwaitEnd();
}

absl::StatusOr<std::vector<NodeGroup::State>> NodeGroup::Exchange(
    const State& mine) {
  std::vector<State> all(static_cast<size_t>(launchers_->world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      launchers_->AllGather(std::as_bytes(std::span(&mine, 1)),
                            std::as_writable_bytes(std::span(all))));
  return all;
}

void NodeGroup::Watch() {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Run(); });
}

// Every node sees the same states in each round, so all nodes end in the same
// round.
void NodeGroup::Run() {
  while (true) {
    State mine;
    {
      const absl::MutexLock lock(&mutex_);
      mine = state_;
    }
    const absl::StatusOr<std::vector<State>> all = Exchange(mine);
    if (!all.ok()) {
      // The group's message says which node failed.
      const std::string message(all.status().message());
      const std::string what = message.substr(0, message.find(" (seen by"));
      return RecordFailure(
          {.node = -1,
           .exit_status = 1,
           .text =
               absl::StrReplaceAll(what, {{"rank ", "the launcher of node "}})},
          absl::ToDoubleSeconds(absl::FromChrono(Clock::now() - start_)));
    }
    for (size_t node = 0; node < all->size(); ++node) {
      const State& state = (*all)[node];
      if (!state.failed) continue;
      RecordFailure(
          {.node = static_cast<int>(node),
           .exit_status = state.exit_status,
           .text = absl::StrCat("node ", node, " (", state.host.data(),
                                "): ", state.text.data())},
          state.seconds);
    }
    if (std::all_of(all->begin(), all->end(),
                    [](const State& state) { return state.ended; })) {
      return;
    }
    pollfd news = {news_.get(), POLLIN, 0};
    poll(&news, 1, kTellEveryMilliseconds);
    uint64_t count;
    if (read(news_.get(), &count, sizeof(count)) < 0) continue;  // No news.
  }
}

void NodeGroup::RecordFailure(const NodeFailure& failure, double seconds) {
  const absl::MutexLock lock(&mutex_);
  if (failure.node != place_.node) Signal(failed_);
  if (first_.has_value() && first_seconds_ <= seconds) return;
  first_ = failure;
  first_seconds_ = seconds;
}

void NodeGroup::CloseInFork() {
  launchers_.reset();
  port_.Close();
}

void NodeGroup::Fail(int exit_status, absl::string_view text,
                     Clock::time_point when) {
  const absl::MutexLock lock(&mutex_);
  if (state_.failed) return;
  state_.failed = true;
  state_.exit_status = exit_status;
  state_.seconds = absl::ToDoubleSeconds(absl::FromChrono(when - start_));
  Copy(text, state_.text);
  Signal(news_);
}

std::optional<NodeFailure> NodeGroup::AwaitEnd() {
  {
    const absl::MutexLock lock(&mutex_);
    state_.ended = true;
  }
  Signal(news_);
  // The ranks may never have been started.
  if (!thread_.joinable() && !over_) Run();
  if (thread_.joinable()) thread_.join();
  over_ = true;
  const absl::MutexLock lock(&mutex_);
  return first_;
}

}  // namespace lockstep
