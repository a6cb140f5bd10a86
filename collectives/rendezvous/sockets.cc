#include "collectives/rendezvous/sockets.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/signals_blocked.h"

namespace lockstep {
namespace {

absl::Status SystemError(int error) {
  return absl::Status(absl::ErrnoToStatusCode(error), std::strerror(error));
}

const sockaddr* Generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

bool IsSame(const SocketAddress& a, const SocketAddress& b) {
  return a.size == b.size && std::memcmp(&a.storage, &b.storage, a.size) == 0;
}

absl::StatusOr<OwnedFd> NewSocket(const SocketAddress& address) {
  OwnedFd fd(socket(address.storage.ss_family,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.open()) return SystemError(errno);
  return fd;
}

void TurnOn(const OwnedFd& socket, int level, int option) {
  const int on = 1;
  setsockopt(socket.get(), level, option, &on, sizeof(on));
}

// Turns on TCP_NODELAY, since messages are short and the receiver waits for
// them.
void SendAtOnce(const OwnedFd& socket) {
  TurnOn(socket, IPPROTO_TCP, TCP_NODELAY);
}

// Returns the socket's own address, of size 0 if the system does not know it.
SocketAddress OwnAddressOf(const OwnedFd& socket) {
  SocketAddress own;
  own.size = sizeof(own.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage),
                  &own.size) != 0) {
    own.size = 0;
  }
  return own;
}

// Returns whether the socket is connected to itself. This can happen while
// nobody listens at a port in the range of automatic ports: the system may give
// the socket that very port.
bool IsConnectedToItself(const OwnedFd& socket) {
  const SocketAddress self = OwnAddressOf(socket);
  SocketAddress peer;
  peer.size = sizeof(sockaddr_storage);
  return self.size > 0 &&
         getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer.storage),
                     &peer.size) == 0 &&
         IsSame(self, peer);
}

std::string Number(const sockaddr& address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  getnameinfo(&address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

absl::Status ResolverError(int error) {
  switch (error) {
    case EAI_SYSTEM:
      return absl::UnavailableError(std::strerror(errno));
    case EAI_AGAIN:
    case EAI_MEMORY:
      return absl::UnavailableError(gai_strerror(error));
    default:
      return absl::NotFoundError(gai_strerror(error));
  }
}

// Returns whether the host is an address, which needs no resolver.
bool IsNumeric(const std::string& host) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

bool WouldWait(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

bool SocketAddress::IsLoopback() const {
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& v6 =
      reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

std::string HostAndPort(absl::string_view host, int port) {
  const bool colons = host.find(':') != absl::string_view::npos;
  return colons ? absl::StrCat("[", host, "]:", port)
                : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return ResolverError(error);
  const absl::Cleanup free = [found] { freeaddrinfo(found); };
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress address;
    address.size = info->ai_addrlen;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    const bool known = std::any_of(
        addresses.begin(), addresses.end(),
        [&](const SocketAddress& other) { return IsSame(other, address); });
    if (!known) addresses.push_back(address);
  }
  if (addresses.empty()) return absl::NotFoundError("no such address");
  return addresses;
}

HostLookup::HostLookup(const Resolver& resolver, const std::string& host,
                       int port) {
  if (IsNumeric(host)) {
    answer_->addresses = resolver(host, port);
    answer_->is_there = true;
    return;
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([resolver, host, port, answer = answer_] {
    absl::StatusOr<std::vector<SocketAddress>> addresses = resolver(host, port);
    const std::lock_guard<std::mutex> lock(answer->mutex);
    answer->addresses = std::move(addresses);
    answer->is_there = true;
    answer->comes.notify_all();
  });
}

HostLookup::~HostLookup() {
  if (!thread_.joinable()) return;
  if (Await(absl::ZeroDuration()) != nullptr) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

const absl::StatusOr<std::vector<SocketAddress>>* HostLookup::Await(
    absl::Duration limit) {
  const Deadline deadline(limit);
  std::unique_lock<std::mutex> lock(answer_->mutex);
  while (!answer_->is_there && !deadline.passed()) {
    answer_->comes.wait_for(
        lock, std::chrono::milliseconds(PollMilliseconds(deadline)));
  }
  return answer_->is_there ? &answer_->addresses : nullptr;
}

absl::StatusOr<OwnedFd> Listen(const SocketAddress& address) {
  absl::StatusOr<OwnedFd> socket = NewSocket(address);
  if (!socket.ok()) return socket;
  // Connections of a run that has ended do not block the port for the next run.
  TurnOn(*socket, SOL_SOCKET, SO_REUSEADDR);
  // "::" leaves IPv4 to a socket of its own.
  if (address.storage.ss_family == AF_INET6) {
    TurnOn(*socket, IPPROTO_IPV6, IPV6_V6ONLY);
  }
  if (bind(socket->get(), Generic(address), address.size) == 0 &&
      listen(socket->get(), SOMAXCONN) == 0) {
    return socket;
  }
  switch (errno) {
    case EADDRINUSE:
      return absl::AlreadyExistsError("the port is taken");
    case EADDRNOTAVAIL:
      return absl::UnavailableError("not an address of this host");
    default:
      return SystemError(errno);
  }
}

std::string HostOf(const OwnedFd& listener) {
  const SocketAddress own = OwnAddressOf(listener);
  return Number(*Generic(own), own.size);
}

int PortOf(const OwnedFd& listener) {
  const SocketAddress own = OwnAddressOf(listener);
  if (own.size == 0) return 0;
  return ntohs(
      own.storage.ss_family == AF_INET
          ? reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_port
          : reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_port);
}

absl::StatusOr<std::optional<OwnedFd>> Accept(const OwnedFd& listener) {
  OwnedFd socket(
      accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.open()) {
    SendAtOnce(socket);
    return std::optional<OwnedFd>(std::move(socket));
  }
  // Errors of a single connection, as accept(2) lists them, do not affect the
  // next connection.
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM, EBADF, EINVAL}) {
    if (errno == error) return SystemError(error);
  }
  return std::nullopt;
}

absl::StatusOr<OwnedFd> BeginConnect(const SocketAddress& address) {
  absl::StatusOr<OwnedFd> socket = NewSocket(address);
  if (!socket.ok()) return socket;
  SendAtOnce(*socket);
  if (connect(socket->get(), Generic(address), address.size) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    return SystemError(errno);
  }
  return socket;
}

absl::Status EndConnect(const OwnedFd& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == ECONNREFUSED) {
    return absl::AbortedError(std::strerror(error));
  }
  if (error != 0) return SystemError(error);
  if (IsConnectedToItself(socket)) {
    return absl::UnavailableError("nobody listens there");
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> Connect(const SocketAddress& address,
                                absl::Duration timeout) {
  absl::StatusOr<OwnedFd> socket = BeginConnect(address);
  if (!socket.ok()) return socket;
  pollfd waiting = {socket->get(), POLLOUT, 0};
  const int ready = poll(&waiting, 1, PollMilliseconds(Deadline(timeout)));
  if (ready < 0) return SystemError(errno);
  if (ready == 0) return absl::DeadlineExceededError("no answer");
  const absl::Status connected = EndConnect(*socket);
  if (!connected.ok()) return connected;
  return socket;
}

// Connecting a datagram socket only chooses the route.
absl::StatusOr<std::string> OwnAddressTowards(const SocketAddress& address) {
  const OwnedFd chosen(
      socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!chosen.open() ||
      connect(chosen.get(), Generic(address), address.size) != 0) {
    return SystemError(errno);
  }
  return HostOf(chosen);
}

absl::StatusOr<std::string> OwnAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SystemError(errno);
  const absl::Cleanup free = [all] { freeifaddrs(all); };
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family ||
          (one->ifa_flags & IFF_UP) == 0 ||
          (one->ifa_flags & IFF_LOOPBACK) != 0) {
        continue;
      }
      const std::string number =
          Number(*one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in)
                                                   : sizeof(sockaddr_in6));
      // On other links, a link-local address leads nowhere, or to another host.
      if (!absl::StartsWith(number, "169.254.") &&
          !absl::StartsWith(number, "fe80:")) {
        return number;
      }
    }
  }
  return absl::UnavailableError("this host has no address but loopback");
}

std::optional<size_t> SendSome(const OwnedFd& socket, absl::string_view bytes) {
  const ssize_t size =
      send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (size >= 0) return static_cast<size_t>(size);
  if (WouldWait(errno)) return 0;
  return std::nullopt;
}

std::optional<size_t> ReceiveSome(const OwnedFd& socket,
                                  std::span<char> buffer) {
  const ssize_t size = recv(socket.get(), buffer.data(), buffer.size(), 0);
  if (size > 0) return static_cast<size_t>(size);
  if (size < 0 && WouldWait(errno)) return 0;
  return std::nullopt;
}

}  // namespace lockstep
