// The sockets and the thread of the TCP rendezvous' server.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_HOST_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_HOST_H_

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "collectives/rendezvous/rendezvous_server.h"

namespace lockstep {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  // Whether only processes of this host can reach it, or be reached from it.
  bool IsLoopback() const;
};

// "host:port", or "[host]:port" if the host has colons.
std::string HostAndPort(absl::string_view host, int port);

// The addresses of a host name, or of a number ("127.0.0.1", "::1"), without
// repetitions. Waits for the resolver, as long as its configuration says.
// Error: kUnavailable if there are none.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port);

// A socket that listens there. Port 0 is one that is free. Errors:
// kAlreadyExists if the port is taken; else the system's.
absl::StatusOr<OwnedFd> Listen(const SocketAddress& address);
// The port of a socket that listens.
int PortOf(const OwnedFd& listener);

// The next connection, or none if none is waiting. Errors: the system's.
absl::StatusOr<std::optional<OwnedFd>> Accept(const OwnedFd& listener);

// Connects within the timeout. Errors: the system's, kDeadlineExceeded.
absl::StatusOr<OwnedFd> Connect(const SocketAddress& address,
                                absl::Duration timeout);

// How many bytes went, 0 if none can go now, nullopt if the connection has
// ended, in whatever way.
std::optional<size_t> SendSome(const OwnedFd& socket, absl::string_view bytes);
// The same of bytes that came, at most as many as `buffer` holds.
std::optional<size_t> ReceiveSome(const OwnedFd& socket,
                                  std::span<char> buffer);

// For poll: milliseconds, rounded up, at most an hour; 0 or more.
int PollMilliseconds(absl::Duration timeout);

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
