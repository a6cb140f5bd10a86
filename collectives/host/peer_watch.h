// Waiting for ranks that share memory: sleeping until one writes, and noticing
// that one has died.
#ifndef LOCKSTEP_COLLECTIVES_HOST_PEER_WATCH_H_
#define LOCKSTEP_COLLECTIVES_HOST_PEER_WATCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/process.h"

namespace lockstep {

// Sleeps while `word` holds `expected`, until FutexWake or `timeout`. May
// return early: the caller looks again.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               std::chrono::nanoseconds timeout);

// Wakes all that sleep on `word`, in any process that maps it.
void FutexWake(std::atomic<uint32_t>& word);

// Watches one process for each rank. Not thread safe.
class PeerWatch {
 public:
  // processes: in rank order; `rank` is the one not to watch: oneself. One that
  // ended before now counts as dead.
  PeerWatch(const std::vector<ProcessIdentity>& processes, int rank);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // The ranks whose process has ended, one bit each. Cost: a system call, and
  // on a kernel without pidfd_open (before 5.3) one file read for each rank.
  uint64_t Dead();

 private:
  struct Peer {
    ProcessIdentity process;
    int pidfd;  // -1: none; IsAlive decides.
    bool dead;
  };
  std::vector<Peer> peers_;
  int rank_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_PEER_WATCH_H_
