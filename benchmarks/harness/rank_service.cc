// Sequenced-packet sockets with names of the kernel's choice.
#include "benchmarks/harness/rank_service.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kBacklog = 128;

absl::Status SystemError(absl::string_view what) {
  return absl::ErrnoToStatus(errno, what);
}

OwnedFd NewSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

// Whether the other end is a process of this user.
bool IsOurs(const OwnedFd& fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

absl::Status Gone() {
  return absl::UnavailableError("the other end of the connection is gone");
}

}  // namespace

absl::StatusOr<TurnListener> TurnListener::Create() {
  OwnedFd fd = NewSocket();
  if (!fd.open()) return SystemError("socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  // Bound to no name, it gets a free one in the abstract name space.
  if (bind(fd.get(), any, sizeof(address.sun_family)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return SystemError("binding a local socket");
  }
  socklen_t size = sizeof(address);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) !=
      0) {
    return SystemError("getsockname");
  }
  const absl::string_view name(address.sun_path,
                               size - offsetof(sockaddr_un, sun_path));
  return TurnListener(std::move(fd), absl::BytesToHexString(name));
}

absl::StatusOr<TurnChannel> TurnListener::Accept() {
  OwnedFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.open() || !IsOurs(fd)) {
    return absl::UnavailableError("nobody who may has connected");
  }
  return TurnChannel(std::move(fd));
}

absl::StatusOr<TurnChannel> TurnChannel::Connect(const std::string& name) {
  const std::string path = absl::HexStringToBytes(name);
  sockaddr_un address = {};
  if (path.size() > sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not the name of a listener"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  TurnChannel channel(NewSocket());
  if (!channel.fd_.open()) return SystemError("socket");
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (connect(channel.fd(), reinterpret_cast<const sockaddr*>(&address),
              size) != 0) {
    return SystemError("connecting to the driver of the benchmark");
  }
  return channel;
}

absl::Status TurnChannel::Send(absl::string_view message) {
  if (static_cast<int64_t>(message.size()) > kLargestTurnMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", message.size(), " bytes"));
  }
  ssize_t sent;
  do {
    sent = send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? Gone() : absl::OkStatus();
}

absl::StatusOr<std::string> TurnChannel::Receive(absl::Time deadline) {
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int64_t ms = std::clamp<int64_t>(left, -1, 24 * 3600 * 1000) + 1;
    pollfd readable = {fd_.get(), POLLIN, 0};
    const int ready = poll(&readable, 1, static_cast<int>(ms));
    if (ready > 0) break;
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("no answer came in time");
    }
  }
  std::string message(kLargestTurnMessage, '\0');
  ssize_t size;
  do {
    size = recv(fd_.get(), message.data(), message.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return Gone();
  message.resize(static_cast<size_t>(size));
  return message;
}

// Receive, answer.
namespace {

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::string Serialize(const RankHello& hello) { return BytesOf(hello); }

absl::StatusOr<RankHello> ParseHello(absl::string_view bytes) {
  RankHello hello;
  if (bytes.size() != sizeof(hello)) {
    return absl::DataLossError("a message of another size than expected");
  }
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  return hello;
}

std::string EncodeAnswer(const absl::StatusOr<std::string>& answer) {
  const std::string code =
      BytesOf(static_cast<int32_t>(answer.status().code()));
  return answer.ok() ? absl::StrCat(code, *answer)
                     : absl::StrCat(code, answer.status().message());
}

absl::StatusOr<std::string> DecodeAnswer(absl::string_view bytes) {
  int32_t code = 0;
  if (bytes.size() < sizeof(code)) {
    return absl::DataLossError("a rank's answer is cut short");
  }
  std::memcpy(&code, bytes.data(), sizeof(code));
  bytes.remove_prefix(sizeof(code));
  if (code == 0) return std::string(bytes);
  return absl::Status(static_cast<absl::StatusCode>(code), bytes);
}

absl::Status ServeMessages(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<std::string>(absl::string_view)>&
        answer) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnChannel driver, TurnChannel::Connect(listener));
  LOCKSTEP_RETURN_IF_ERROR(driver.Send(Serialize(hello)));
  while (true) {
    const absl::StatusOr<std::string> message =
        driver.Receive(absl::InfiniteFuture());
    if (!message.ok()) return absl::OkStatus();
    const absl::StatusOr<std::string> reply = answer(*message);
    LOCKSTEP_RETURN_IF_ERROR(driver.Send(EncodeAnswer(reply)));
    LOCKSTEP_RETURN_IF_ERROR(reply.status());
  }
}

}  // namespace lockstep::benchmarks
