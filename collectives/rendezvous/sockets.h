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

  // Whether only processes of this host can reach it, or be reached from it.
  bool IsLoopback() const;
};

// "host:port", or "[host]:port" if the host has colons.
std::string HostAndPort(absl::string_view host, int port);

// The addresses of a host name, or of a number ("127.0.0.1", "::1"), without
// repetitions. Waits for the resolver, as long as its configuration says.
// Errors: kNotFound if the host has none; kUnavailable if the resolver could
// not find out now, and may be asked again.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port);

// Resolve, or what stands in for it in a test.
using Resolver = std::function<absl::StatusOr<std::vector<SocketAddress>>(
    const std::string& host, int port)>;

// A question to the resolver, which nothing can interrupt. A thread of its own
// asks. If the resolver has not answered when this is destroyed, the thread
// ends after this. An address needs no thread: the answer is there at once.
class HostLookup {
 public:
  HostLookup(const Resolver& resolver, const std::string& host, int port);
  HostLookup(const HostLookup&) = delete;
  HostLookup& operator=(const HostLookup&) = delete;
  ~HostLookup();

  // The answer; null if there is none within `limit`. Valid while this lives.
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

// A socket that listens there. Port 0 is one that is free. Errors:
// kAlreadyExists if the port is taken; else the system's.
absl::StatusOr<OwnedFd> Listen(const SocketAddress& address);
// The address, as a number, and the port of a socket that listens.
std::string HostOf(const OwnedFd& listener);
int PortOf(const OwnedFd& listener);

// The next connection, or none if none is waiting. Errors: the system's.
absl::StatusOr<std::optional<OwnedFd>> Accept(const OwnedFd& listener);

// Connects within the timeout. Errors: the system's, kDeadlineExceeded.
absl::StatusOr<OwnedFd> Connect(const SocketAddress& address,
                                absl::Duration timeout);
// The same in two steps: begins, and, once the socket can be written to, says
// whether it is connected.
absl::StatusOr<OwnedFd> BeginConnect(const SocketAddress& address);
absl::Status EndConnect(const OwnedFd& socket);

// This host's own address, as a number, from which it reaches `address`. Sends
// nothing. Errors: the system's where there is no way.
absl::StatusOr<std::string> OwnAddressTowards(const SocketAddress& address);
// An address of this host that is neither loopback nor of one link, as a
// number; IPv4 before IPv6.
// Error: kUnavailable if there is none.
absl::StatusOr<std::string> OwnAddress();

// How many bytes went, 0 if none can go now, nullopt if the connection has
// ended, in whatever way.
std::optional<size_t> SendSome(const OwnedFd& socket, absl::string_view bytes);
// The same of bytes that came, at most as many as `buffer` holds.
std::optional<size_t> ReceiveSome(const OwnedFd& socket,
                                  std::span<char> buffer);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_SOCKETS_H_
