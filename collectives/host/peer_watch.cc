#include "collectives/host/peer_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/rendezvous/process_identity.h"

namespace lockstep {

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
