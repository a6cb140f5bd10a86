#include "collectives/rendezvous/tcp_rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/handshake.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_client.h"
#include "collectives/rendezvous/rendezvous_host.h"
#include "collectives/rendezvous/rendezvous_server.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
// For one address of a name that has several.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);

uint32_t ThisPid() { return static_cast<uint32_t>(getpid()); }

absl::Status CheckOptions(const TcpRendezvousOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRank(options.rank, options.world_size));
  const int lowest_port = options.rank == 0 ? 0 : 1;
  if (options.port < lowest_port || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous port ", options.port, " is outside [",
                     lowest_port, ", 65535]"));
  }
  if (options.address.empty()) {
    return absl::InvalidArgumentError("the rendezvous address is empty");
  }
  return absl::OkStatus();
}

// Anybody on the network could join, or pose as rank 0.
absl::Status CheckToken(const TcpRendezvousOptions& options,
                        const std::vector<SocketAddress>& addresses) {
  const bool loopback =
      std::all_of(addresses.begin(), addresses.end(),
                  [](const SocketAddress& a) { return a.IsLoopback(); });
  if (loopback || !options.token.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "an address that is not loopback needs a token (LOCKSTEP_TOKEN)");
}

absl::StatusOr<std::vector<OwnedFd>> ListenAtAll(
    const std::vector<SocketAddress>& addresses) {
  std::vector<OwnedFd> listeners;
  absl::Status failure;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<OwnedFd> listener = Listen(address);
    if (listener.ok()) {
      listeners.push_back(*std::move(listener));
      continue;
    }
    failure = listener.status();
    // A name may have addresses that this host does not (IPv6, say), but who
    // has the port at one of them would be taken for rank 0.
    if (absl::IsAlreadyExists(failure)) return failure;
  }
  if (listeners.empty()) return failure;
  return listeners;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpRendezvous>> TcpRendezvous::Open(
    const TcpRendezvousOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options));
  if (!CanProve()) {
    return absl::UnimplementedError(
        "TCP rendezvous needs OpenSSL, which was not there when this was built "
        "(tools/setup.sh installs it)");
  }
  std::unique_ptr<TcpRendezvous> rendezvous(new TcpRendezvous(options));
  if (options.rank == 0) LOCKSTEP_RETURN_IF_ERROR(rendezvous->StartHost());
  return rendezvous;
}

TcpRendezvous::TcpRendezvous(const TcpRendezvousOptions& options)
    : options_(options) {}

TcpRendezvous::~TcpRendezvous() {
  if (!socket_.open()) return;
  client_->Leave();
  Turn(absl::ZeroDuration());
}

absl::Status TcpRendezvous::StartHost() {
  const std::string& address = options_.listen_address.empty()
                                   ? options_.address
                                   : options_.listen_address;
  absl::StatusOr<std::vector<SocketAddress>> at =
      Resolve(address, options_.port);
  absl::Status checked = at.status();
  if (checked.ok()) checked = CheckToken(options_, *at);
  if (!checked.ok()) return Error(checked.code(), checked.message());
  // Another address would get another free port.
  if (options_.port == 0) at->resize(1);
  absl::StatusOr<std::vector<OwnedFd>> listeners = ListenAtAll(*at);
  if (!listeners.ok()) {
    return Error(listeners.status().code(),
                 absl::StrCat("rank 0 cannot listen at ",
                              HostAndPort(address, options_.port), ": ",
                              listeners.status().message()));
  }
  options_.port = PortOf(listeners->front());
  LOCKSTEP_ASSIGN_OR_RETURN(NonceSource nonces, NonceSource::Create());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                 ends) != 0) {
    return Error(absl::ErrnoToStatusCode(errno), std::strerror(errno));
  }
  socket_ = OwnedFd(ends[0]);
  OwnedFd rank_zero(ends[1]);
  client_ = RendezvousClient::ForRankZero(
      {Where(),
       {0, static_cast<uint32_t>(options_.world_size), ThisPid()},
       options_.token});
  host_ = std::make_unique<RendezvousHost>(
      RendezvousServer(
          {Where(), options_.world_size, options_.token, ThisPid()}, nonces),
      *std::move(listeners), std::move(rank_zero));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> TcpRendezvous::Exchange(
    absl::string_view blob) {
  if (!failure_.ok()) return failure_;
  ++round_;
  absl::StatusOr<std::vector<std::string>> blobs = TryExchange(blob);
  failure_ = blobs.status();
  return blobs;
}

absl::StatusOr<std::vector<std::string>> TcpRendezvous::TryExchange(
    absl::string_view blob) {
  const Deadline deadline(options_.timeout);
  if (socket_.open()) Ask(blob);
  while (!client_.has_value() || !client_->outcome().has_value()) {
    if (!socket_.open()) {
      LOCKSTEP_RETURN_IF_ERROR(ConnectToHost(deadline));
      Ask(blob);
    }
    const bool connected = Turn(deadline.remaining());
    if (client_->outcome().has_value()) break;
    if (!connected && client_->joined()) {
      return Error(absl::StatusCode::kUnavailable,
                   absl::StrCat(client_->ServerName(), " is gone"));
    }
    // Rank 0 had no room among strangers, say.
    if (!connected) socket_.Close();
    if (deadline.passed()) return GiveUp();
    if (!connected) {
      absl::SleepFor(std::min(kLongestPause, deadline.remaining()));
    }
  }
  return *client_->outcome();
}

absl::StatusOr<std::vector<std::string>> TcpRendezvous::GiveUp() {
  if (client_->joined()) {
    client_->GiveUp(options_.timeout);
    const Deadline answer(kAnswerTimeout);
    bool connected = true;
    while (connected && !client_->outcome().has_value() && !answer.passed()) {
      connected = Turn(answer.remaining());
    }
    if (client_->outcome().has_value()) return *client_->outcome();
  }
  return Error(absl::StatusCode::kDeadlineExceeded,
               absl::StrCat(client_->ServerName(), " did not answer within ",
                            absl::FormatDuration(options_.timeout)));
}

void TcpRendezvous::Ask(absl::string_view blob) {
  const absl::Status checked = CheckBlob(rank(), blob);
  if (!checked.ok()) return client_->Fail(checked);
  client_->Publish(round_, blob);
}

absl::Status TcpRendezvous::ConnectToHost(const Deadline& deadline) {
  absl::Duration pause = kFirstPause;
  while (true) {
    absl::StatusOr<OwnedFd> socket = TryToConnect(deadline);
    if (socket.ok()) {
      socket_ = *std::move(socket);
      break;
    }
    if (absl::IsInvalidArgument(socket.status())) {
      return Error(socket.status().code(), socket.status().message());
    }
    if (deadline.passed()) {
      return Error(absl::StatusCode::kDeadlineExceeded,
                   absl::StrCat("rank 0 did not answer within ",
                                absl::FormatDuration(options_.timeout), ": ",
                                socket.status().message()));
    }
    absl::SleepFor(std::min(pause, deadline.remaining()));
    pause = std::min(pause * 1.5, kLongestPause);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(NonceSource nonces, NonceSource::Create());
  client_.emplace(
      RendezvousClient::Options{
          Where(),
          {rank(), static_cast<uint32_t>(world_size()), ThisPid()},
          options_.token},
      nonces.Next());
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> TcpRendezvous::TryToConnect(const Deadline& deadline) {
  // Each time, since a name may be known only once rank 0's host is up.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                            Resolve(options_.address, options_.port));
  LOCKSTEP_RETURN_IF_ERROR(CheckToken(options_, addresses));
  absl::StatusOr<OwnedFd> socket;
  for (const SocketAddress& address : addresses) {
    socket = Connect(address, std::min(kConnectTimeout, deadline.remaining()));
    if (socket.ok()) break;
  }
  return socket;
}

bool TcpRendezvous::Turn(absl::Duration limit) {
  const bool sends = !client_->Output().empty();
  pollfd waiting = {socket_.get(),
                    static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0};
  if (poll(&waiting, 1, PollMilliseconds(limit)) <= 0) return true;
  if ((waiting.revents & POLLOUT) != 0) {
    // If that fails, something may still be there to receive.
    client_->Sent(SendSome(socket_, client_->Output()).value_or(0));
  }
  if ((waiting.revents & ~POLLOUT) != 0) {
    std::array<char, 16 << 10> buffer;
    const std::optional<size_t> size = ReceiveSome(socket_, buffer);
    if (!size.has_value()) return false;
    client_->Receive(absl::string_view(buffer.data(), *size));
  }
  return true;
}

absl::Status TcpRendezvous::Error(absl::StatusCode code,
                                  absl::string_view what) const {
  return absl::Status(code, absl::StrCat(Where(), ": ", what));
}

std::string TcpRendezvous::Where() const {
  return absl::StrCat("rendezvous ",
                      HostAndPort(options_.address, options_.port));
}

}  // namespace lockstep
