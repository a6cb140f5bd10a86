#include "collectives/host/peer_watch.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/process.h"

namespace lockstep {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0) return;
  timespec relative;
  relative.tv_sec = timeout.count() / 1'000'000'000;
  relative.tv_nsec = timeout.count() % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
          &relative, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
}

PeerWatch::PeerWatch(const std::vector<ProcessIdentity>& processes, int rank)
    : rank_(rank) {
  for (size_t i = 0; i < processes.size(); ++i) {
    Peer peer{processes[i], -1, false};
    if (static_cast<int>(i) != rank) {
      // The kernel closes it on exec.
      peer.pidfd =
          static_cast<int>(syscall(SYS_pidfd_open, processes[i].pid, 0));
      // Asked after the handle was taken, so it is a handle of this process
      // and not of a later one with its number.
      peer.dead = !IsAlive(processes[i]);
    }
    peers_.push_back(peer);
  }
}

PeerWatch::~PeerWatch() {
  for (const Peer& peer : peers_) {
    if (peer.pidfd >= 0) close(peer.pidfd);
  }
}

uint64_t PeerWatch::Dead() {
  std::vector<pollfd> handles;
  for (const Peer& peer : peers_) handles.push_back({peer.pidfd, POLLIN, 0});
  poll(handles.data(), handles.size(), 0);
  uint64_t dead = 0;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (static_cast<int>(i) == rank_) continue;
    const bool ended = peer.pidfd >= 0 ? handles[i].revents != 0
                                       : !peer.dead && !IsAlive(peer.process);
    peer.dead = peer.dead || ended;
    if (peer.dead) dead |= uint64_t{1} << i;
  }
  return dead;
}

}  // namespace lockstep
