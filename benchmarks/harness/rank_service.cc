// Messages use sequenced-packet sockets, whose names the kernel chooses. A
// message is one packet or several. Its first packet begins with the length of
// the message.
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
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "benchmarks/harness/interrupt.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kPacket = 64 << 10;  // The largest packet in bytes.

absl::Status SystemError(absl::string_view what) {
  return absl::ErrnoToStatus(errno, what);
}

OwnedFd NewSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

// Returns whether the other end is a process of this user.
bool IsSameUser(const OwnedFd& fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == geteuid();
}

absl::Status ConnectionClosedError() {
  return absl::UnavailableError("the other end has closed the connection");
}

absl::Status SendPacket(int fd, absl::string_view packet) {
  ssize_t sent;
  do {
    sent = send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? ConnectionClosedError() : absl::OkStatus();
}

}  // namespace

absl::StatusOr<TurnListener> TurnListener::Create() {
  OwnedFd fd = NewSocket();
  if (!fd.open()) return SystemError("socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  // A socket bound without a name gets a free name in the abstract name space.
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
  if (!fd.open() || !IsSameUser(fd)) {
    return absl::UnavailableError("no process of this user has connected");
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
  const auto size = static_cast<int64_t>(message.size());
  if (size > kLargestTurnMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", size, " bytes is too long"));
  }
  std::string packet = Encode(size);
  do {
    const size_t part = std::min(kPacket - packet.size(), message.size());
    packet.append(message.data(), part);
    message.remove_prefix(part);
    LOCKSTEP_RETURN_IF_ERROR(SendPacket(fd_.get(), packet));
    packet.clear();
  } while (!message.empty());
  return absl::OkStatus();
}

absl::StatusOr<std::string> TurnChannel::ReceivePacket(
    const Deadline& deadline) {
  while (true) {
    pollfd readable = {fd_.get(), POLLIN, 0};
    const int ready = poll(&readable, 1, PollMilliseconds(deadline));
    if (ready > 0) break;
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    if (deadline.passed()) {
      return absl::DeadlineExceededError("no answer came in time");
    }
  }
  std::string packet(kPacket, '\0');
  ssize_t size;
  do {
    size = recv(fd_.get(), packet.data(), packet.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return ConnectionClosedError();
  packet.resize(static_cast<size_t>(size));
  return packet;
}

absl::StatusOr<std::string> TurnChannel::Receive(const Deadline& deadline) {
  const absl::StatusOr<std::string> first = ReceivePacket(deadline);
  if (!first.ok()) return first.status();
  int64_t size = -1;
  absl::string_view begin = *first;
  if (!TakeBytes(begin, size) || size < 0 || size > kLargestTurnMessage) {
    return absl::DataLossError("the received bytes are not a message");
  }
  std::string message = first->substr(sizeof(size));
  while (static_cast<int64_t>(message.size()) < size) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string packet,
                              ReceivePacket(deadline));
    message += packet;
  }
  if (static_cast<int64_t>(message.size()) == size) return message;
  return absl::DataLossError("the received bytes are not a message");
}

namespace {

struct Answer {
  int32_t code = 0;  // An absl::StatusCode.
  std::string text;  // The answer, or the error's message.

  static auto Members(auto& self) { return std::tie(self.code, self.text); }
};

}  // namespace

std::string EncodeAnswer(const absl::StatusOr<std::string>& answer) {
  return Encode(
      Answer{static_cast<int32_t>(answer.status().code()),
             answer.ok() ? *answer : std::string(answer.status().message())});
}

absl::StatusOr<std::string> DecodeAnswer(absl::string_view bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Answer answer, Decode<Answer>(bytes));
  if (answer.code == 0) return answer.text;
  return absl::Status(static_cast<absl::StatusCode>(answer.code), answer.text);
}

absl::Status ServeMessages(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<std::string>(absl::string_view)>&
        answer) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnChannel driver, TurnChannel::Connect(listener));
  LOCKSTEP_RETURN_IF_ERROR(driver.Send(Encode(hello)));
  while (true) {
    const absl::StatusOr<std::string> message =
        driver.Receive(Deadline(absl::InfiniteDuration()));
    if (!message.ok()) return absl::OkStatus();
    const absl::StatusOr<std::string> reply = answer(*message);
    LOCKSTEP_RETURN_IF_ERROR(driver.Send(EncodeAnswer(reply)));
    LOCKSTEP_RETURN_IF_ERROR(reply.status());
  }
}

absl::StatusOr<TimedCalls> SlowestOf(std::span<const TimedCalls> ranks) {
  TimedCalls all = ranks[0];
  for (const TimedCalls& rank : ranks.subspan(1)) {
    if (rank.seconds.size() != all.seconds.size()) {
      return absl::DataLossError(
          absl::StrCat("one rank timed ", all.seconds.size(),
                       " calls, another ", rank.seconds.size()));
    }
    all.wrong += rank.wrong;
    for (size_t i = 0; i < all.seconds.size(); ++i) {
      all.seconds[i] = std::max(all.seconds[i], rank.seconds[i]);
    }
  }
  return all;
}

}  // namespace lockstep::benchmarks
