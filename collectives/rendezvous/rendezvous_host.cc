// The loop between the sockets and the RendezvousServer.
#include "collectives/rendezvous/rendezvous_host.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/owned_fd.h"
#include "collectives/rendezvous/deadline.h"
#include "collectives/rendezvous/rendezvous_server.h"
#include "collectives/rendezvous/tcp_socket.h"

namespace lockstep {
namespace {

constexpr size_t kBufferBytes = 64 << 10;

}  // namespace

RendezvousHost::RendezvousHost(RendezvousServer server,
                               std::vector<OwnedFd> listeners,
                               OwnedFd rank_zero)
    : server_(std::move(server)),
      listeners_(std::move(listeners)),
      rank_zero_(server_.AddRankZero()),
      buffer_(kBufferBytes) {
  sockets_[rank_zero_] = std::move(rank_zero);
  // The thread inherits what is blocked: signals are for the program's own.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RendezvousHost::~RendezvousHost() { thread_.join(); }

absl::Duration RendezvousHost::Now() const {
  return absl::FromChrono(std::chrono::steady_clock::now() - start_);
}

void RendezvousHost::Run() {
  while (sockets_.contains(rank_zero_)) Turn(absl::InfiniteDuration());
  accepts_ = false;
  listeners_.clear();
  const Deadline hand_over(kHandOverTimeout);
  while (!AllSent() && !hand_over.passed()) Turn(hand_over.remaining());
}

void RendezvousHost::Turn(absl::Duration limit) {
  std::vector<pollfd> waiting;
  std::vector<SessionId> ids;
  for (const auto& [id, socket] : sockets_) {
    const bool sends = !server_.Output(id).empty();
    waiting.push_back({socket.get(),
                       static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN),
                       0});
    ids.push_back(id);
  }
  for (const OwnedFd& listener : listeners_) {
    if (accepts_) waiting.push_back({listener.get(), POLLIN, 0});
  }
  const absl::Duration until_tick = server_.NextTick() - Now();
  if (poll(waiting.data(), waiting.size(),
           PollMilliseconds(std::min(limit, until_tick))) > 0) {
    // Who is there before who comes, which may send the oldest away.
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((waiting[i].revents & ~POLLOUT) != 0) {
        ReceiveFrom(ids[i], sockets_.at(ids[i]));
      }
    }
    for (size_t i = ids.size(); i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) AcceptFrom(listeners_[i - ids.size()]);
    }
  }
  server_.Tick(Now());
  FlushAll();
}

void RendezvousHost::AcceptFrom(const OwnedFd& listener) {
  absl::StatusOr<std::optional<OwnedFd>> socket = Accept(listener);
  if (!socket.ok()) {
    // No descriptors are left: who has not joined gives one back.
    if (!server_.SendOldestStrangerAway()) {
      accepts_ = false;
      server_.Fail(absl::ResourceExhaustedError(absl::StrCat(
          "rank 0 cannot take more connections: ", socket.status().message())));
    }
    return;
  }
  if (!socket->has_value()) return;
  sockets_[server_.AddStranger(Now())] = *std::move(*socket);
}

void RendezvousHost::ReceiveFrom(SessionId id, const OwnedFd& socket) {
  const std::optional<size_t> size = ReceiveSome(socket, buffer_);
  if (!size.has_value()) return End(id);
  server_.Receive(id, absl::string_view(buffer_.data(), *size));
}

bool RendezvousHost::Flush(SessionId id, const OwnedFd& socket) {
  while (true) {
    const absl::string_view output = server_.Output(id);
    if (output.empty()) return !server_.ShouldClose(id);
    const std::optional<size_t> size = SendSome(socket, output);
    if (!size.has_value()) return false;
    if (*size == 0) return true;
    server_.Sent(id, *size);
  }
}

void RendezvousHost::FlushAll() {
  std::vector<SessionId> ended;
  for (const auto& [id, socket] : sockets_) {
    if (!Flush(id, socket)) ended.push_back(id);
  }
  for (const SessionId id : ended) End(id);
}

bool RendezvousHost::AllSent() const {
  return std::all_of(sockets_.begin(), sockets_.end(), [this](const auto& s) {
    return server_.Output(s.first).empty();
  });
}

void RendezvousHost::End(SessionId id) {
  server_.Disconnect(id);
  sockets_.erase(id);
}

}  // namespace lockstep
