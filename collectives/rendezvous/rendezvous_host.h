// The sockets and the thread of the TCP rendezvous' server.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_HOST_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_HOST_H_

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "collectives/launch/owned_fd.h"
#include "collectives/rendezvous/rendezvous_server.h"

namespace lockstep {

inline constexpr absl::Duration kHandOverTimeout = absl::Seconds(1);

// Serves one run from a thread of its own, so that the ranks hear of each
// other whatever rank 0 is doing. The thread handles no signals.
class RendezvousHost {
 public:
  // `rank_zero` is the server's end of rank 0's own connection. When that ends,
  // the thread hands over what is still to be sent, for kHandOverTimeout at
  // most, and ends, too.
  RendezvousHost(RendezvousServer server, std::vector<OwnedFd> listeners,
                 OwnedFd rank_zero);
  RendezvousHost(const RendezvousHost&) = delete;
  RendezvousHost& operator=(const RendezvousHost&) = delete;
  // Waits for the thread: end rank 0's connection before.
  ~RendezvousHost();

 private:
  using SessionId = RendezvousServer::SessionId;

  void Run();
  absl::Duration Now() const;  // Since the start.
  // Waits until there is something to do, at most `limit`, and does it.
  void Turn(absl::Duration limit);
  void AcceptFrom(const OwnedFd& listener);
  void ReceiveFrom(SessionId id, const OwnedFd& socket);
  // Sends what can be sent now; false if the session has ended.
  bool Flush(SessionId id, const OwnedFd& socket);
  void FlushAll();
  bool AllSent() const;
  void End(SessionId id);

  RendezvousServer server_;
  std::vector<OwnedFd> listeners_;
  std::map<SessionId, OwnedFd> sockets_;
  const SessionId rank_zero_;
  bool accepts_ = true;
  const std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
  std::vector<char> buffer_;  // For what is received.
  std::thread thread_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_HOST_H_
