// Addresses and sockets of the TCP rendezvous and of TCP groups.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_SOCKETS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_SOCKETS_H_

#include <sys/socket.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"

namespace lockstep {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  // Returns whether the address is reachable only from this host.
  bool IsLoopback() const;
};

// Returns "host:port", or "[host]:port" if the host has colons.
std::string HostAndPort(absl::string_view host, int port);

// Returns the addresses of a host name, or of a number ("127.0.0.1", "::1"),
// without repetitions. Waits for the resolver, as long as its configuration
// says. Errors: kNotFound if the host has none; kUnavailable if the resolver
// cannot answer now, in which case the call may be repeated.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port);

// Resolve, or its replacement in a test.
using Resolver = std::function<absl::StatusOr<std::vector<SocketAddress>>(
    const std::string& host, int port)>;

// A query to the resolver. Nothing can interrupt a query, so a thread of its
// own makes it. If the resolver has not answered when this object is destroyed,
// the thread ends later. A numeric address needs no thread: the answer is there
// at once.
class HostLookup {
 public:
  HostLookup(const Resolver& resolver, const std::string& host, int port);
  HostLookup(const HostLookup&) = delete;
  HostLookup& operator=(const HostLookup&) = delete;
  ~HostLookup();

  // Returns the answer; null if there is none within `limit`. The answer is
  // valid while this object lives.
  const absl::StatusOr<std::vector<SocketAddress>>* Await(absl::Duration limit);

 private:
  // Not absl::Mutex: ThreadSanitizer does not see into the distribution's
  // abseil.
  struct Answer {
    std::mutex mutex;
    std::condition_variable comes;
    bool is_there = false;
    absl::StatusOr<std::vector<SocketAddress>> addresses;
  };

  const std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
  std::thread thread_;
};

// Returns a socket that listens at `address`. Port 0 picks a free port. Errors:
// kAlreadyExists if the port is taken; else the system's.
absl::StatusOr<OwnedFd> Listen(const SocketAddress& address);
// Return the address, as a number, and the port of a socket that listens.
std::string HostOf(const OwnedFd& listener);
int PortOf(const OwnedFd& listener);

// Returns the next connection, or nullopt if none is waiting. Errors: the
// system's.
absl::StatusOr<std::optional<OwnedFd>> Accept(const OwnedFd& listener);

// Connects within the timeout. Errors: kAborted if the host refuses the
// connection, because nobody listens there; the system's; kDeadlineExceeded.
absl::StatusOr<OwnedFd> Connect(const SocketAddress& address,
                                absl::Duration timeout);
// Connect in two steps: BeginConnect starts. Once the socket is writable,
// EndConnect returns whether it is connected. Errors: those of Connect.
absl::StatusOr<OwnedFd> BeginConnect(const SocketAddress& address);
absl::Status EndConnect(const OwnedFd& socket);

// Returns this host's own address, as a number, from which it reaches
// `address`. Sends nothing. Errors: the system's if there is no route.
absl::StatusOr<std::string> OwnAddressTowards(const SocketAddress& address);
// Returns an address of this host, as a number, that is neither loopback nor
// link-local; IPv4 before IPv6. Error: kUnavailable if there is none.
absl::StatusOr<std::string> OwnAddress();

// Sends bytes. Returns how many were sent, 0 if none can be sent now, or
// nullopt if the connection has ended, in whatever way.
std::optional<size_t> SendSome(const OwnedFd& socket, absl::string_view bytes);
// Receives at most as many bytes as `buffer` holds. Returns as SendSome does.
std::optional<size_t> ReceiveSome(const OwnedFd& socket,
                                  std::span<char> buffer);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_SOCKETS_H_
