// The TCP rendezvous: a rank, and in rank 0 also the server's sockets.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "collectives/rendezvous/sockets.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
// For one address of a name that has several.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);

// For rank 0 to say which ranks are missing at the deadline.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);
// For rank 0 to hand over, as it ends, what others have not received yet.
constexpr absl::Duration kHandOverTimeout = absl::Seconds(1);

constexpr size_t kBufferBytes = 64 << 10;

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

// The addresses of `host`, which need a token unless they are loopback: anybody
// on the network could join, or pose as rank 0.
absl::StatusOr<std::vector<SocketAddress>> AddressesOf(
    const std::string& host, const TcpRendezvousOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                            Resolve(host, options.port));
  const bool loopback =
      std::all_of(addresses.begin(), addresses.end(),
                  [](const SocketAddress& a) { return a.IsLoopback(); });
  if (loopback || !options.token.empty()) return addresses;
  return absl::InvalidArgumentError(
      "an address that is not loopback needs a token: export "
      "LOCKSTEP_TOKEN=$(openssl rand -hex 32), the same for every rank");
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

// Serves one run from a thread of its own, so that the ranks hear of each
// other whatever rank 0 is doing. The thread handles no signals.
class RendezvousHost {
 public:
  // `rank_zero` is the server's end of rank 0's own connection. When that ends,
  // the thread hands over what is still to be sent, for kHandOverTimeout at
  // most, and ends, too.
  RendezvousHost(RendezvousServer server, std::vector<OwnedFd> listeners,
                 OwnedFd rank_zero)
      : server_(std::move(server)),
        listeners_(std::move(listeners)),
        rank_zero_(server_.AddRankZero()),
        buffer_(kBufferBytes) {
    sockets_[rank_zero_] = std::move(rank_zero);
    // The thread inherits what is blocked: signals are for the program's own.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { Run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  RendezvousHost(const RendezvousHost&) = delete;
  RendezvousHost& operator=(const RendezvousHost&) = delete;
  // Waits for the thread: end rank 0's connection before.
  ~RendezvousHost() { thread_.join(); }

 private:
  using SessionId = RendezvousServer::SessionId;

  void Run() {
    while (sockets_.contains(rank_zero_)) Turn(absl::InfiniteDuration());
    accepts_ = false;
    listeners_.clear();
    const Deadline hand_over(kHandOverTimeout);
    while (!AllSent() && !hand_over.passed()) Turn(hand_over.remaining());
  }

  // Since the start.
  absl::Duration Now() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

  // Waits until there is something to do, at most `limit`, and does it.
  void Turn(absl::Duration limit) {
    std::vector<pollfd> waiting;
    std::vector<SessionId> ids;
    for (const auto& [id, socket] : sockets_) {
      const bool sends = !server_.Output(id).empty();
      waiting.push_back({socket.get(),
                         static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN),
                         0});
      ids.push_back(id);
    }
    for (const OwnedFd& listener : listeners_) {
      if (accepts_) waiting.push_back({listener.get(), POLLIN, 0});
    }
    const absl::Duration until_tick = server_.NextTick() - Now();
    if (poll(waiting.data(), waiting.size(),
             PollMilliseconds(Deadline(std::min(limit, until_tick)))) > 0) {
      // Who is there before who comes, which may send the oldest away.
      for (size_t i = 0; i < ids.size(); ++i) {
        if ((waiting[i].revents & ~POLLOUT) != 0) {
          ReceiveFrom(ids[i], sockets_.at(ids[i]));
        }
      }
      for (size_t i = ids.size(); i < waiting.size(); ++i) {
        if (waiting[i].revents != 0) AcceptFrom(listeners_[i - ids.size()]);
      }
    }
    server_.Tick(Now());
    FlushAll();
  }

  void AcceptFrom(const OwnedFd& listener) {
    absl::StatusOr<std::optional<OwnedFd>> socket = Accept(listener);
    if (!socket.ok()) {
      // No descriptors are left: who has not joined gives one back.
      if (!server_.SendOldestStrangerAway()) {
        accepts_ = false;
        server_.Fail(absl::ResourceExhaustedError(
            absl::StrCat("rank 0 cannot take more connections: ",
                         socket.status().message())));
      }
      return;
    }
    if (!socket->has_value()) return;
    const absl::StatusOr<Nonce> nonce = NewNonce();
    if (!nonce.ok()) return server_.Fail(nonce.status());
    sockets_[server_.AddStranger(Now(), *nonce)] = *std::move(*socket);
  }

  void ReceiveFrom(SessionId id, const OwnedFd& socket) {
    const std::optional<size_t> size = ReceiveSome(socket, buffer_);
    if (!size.has_value()) return End(id);
    server_.Receive(id, absl::string_view(buffer_.data(), *size));
  }

  // Sends what can be sent now; false if the session has ended.
  bool Flush(SessionId id, const OwnedFd& socket) {
    while (true) {
      const absl::string_view output = server_.Output(id);
      if (output.empty()) return !server_.ShouldClose(id);
      const std::optional<size_t> size = SendSome(socket, output);
      if (!size.has_value()) return false;
      if (*size == 0) return true;
      server_.Sent(id, *size);
    }
  }

  void FlushAll() {
    std::vector<SessionId> ended;
    for (const auto& [id, socket] : sockets_) {
      if (!Flush(id, socket)) ended.push_back(id);
    }
    for (const SessionId id : ended) End(id);
  }

  bool AllSent() const {
    return std::all_of(sockets_.begin(), sockets_.end(), [this](const auto& s) {
      return server_.Output(s.first).empty();
    });
  }

  void End(SessionId id) {
    server_.Disconnect(id);
    sockets_.erase(id);
  }

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

class SocketRendezvous : public TcpRendezvous {
 public:
  explicit SocketRendezvous(const TcpRendezvousOptions& options)
      : options_(options) {}

  ~SocketRendezvous() override {
    if (!socket_.open()) return;
    client_->Leave();
    Turn(absl::ZeroDuration());
  }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  int port() const override { return options_.port; }

  // Of rank 0.
  absl::Status StartHost() {
    const std::string& address = options_.listen_address.empty()
                                     ? options_.address
                                     : options_.listen_address;
    absl::StatusOr<std::vector<SocketAddress>> at =
        AddressesOf(address, options_);
    if (!at.ok()) {
      return Self().Error(at.status().code(), at.status().message());
    }
    // Another address would get another free port.
    if (options_.port == 0) at->resize(1);
    absl::StatusOr<std::vector<OwnedFd>> listeners = ListenAtAll(*at);
    if (!listeners.ok()) {
      return Self().Error(listeners.status().code(), "rank 0 cannot listen at ",
                          HostAndPort(address, options_.port), ": ",
                          listeners.status().message());
    }
    options_.port = PortOf(listeners->front());
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                   ends) != 0) {
      const int error = errno;
      return Self().Error(absl::ErrnoToStatusCode(error), std::strerror(error));
    }
    socket_ = OwnedFd(ends[0]);
    OwnedFd rank_zero(ends[1]);
    client_ = RendezvousClient::ForRankZero(Self());
    host_ = std::make_unique<RendezvousHost>(
        RendezvousServer(Self()), *std::move(listeners), std::move(rank_zero));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    if (!failure_.ok()) return failure_;
    ++round_;
    absl::StatusOr<std::vector<std::string>> blobs = TryExchange(blob);
    failure_ = blobs.status();
    return blobs;
  }

 private:
  absl::StatusOr<std::vector<std::string>> TryExchange(absl::string_view blob) {
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
        return Self().Error(absl::StatusCode::kUnavailable,
                            client_->ServerName(), " is gone");
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

  // The deadline has passed: what rank 0 says to that.
  absl::StatusOr<std::vector<std::string>> GiveUp() {
    if (client_->joined()) {
      client_->GiveUp(options_.timeout);
      const Deadline answer(kAnswerTimeout);
      bool connected = true;
      while (connected && !client_->outcome().has_value() && !answer.passed()) {
        connected = Turn(answer.remaining());
      }
      if (client_->outcome().has_value()) return *client_->outcome();
    }
    return Self().Error(absl::StatusCode::kDeadlineExceeded,
                        client_->ServerName(), " did not answer within ",
                        absl::FormatDuration(options_.timeout));
  }

  // Publishes, or fails the run if that cannot be published.
  void Ask(absl::string_view blob) {
    const absl::Status checked = CheckBlob(rank(), blob);
    if (!checked.ok()) return client_->Fail(checked);
    client_->Publish(round_, blob);
  }

  // Of the ranks but 0.
  absl::Status ConnectToHost(const Deadline& deadline) {
    absl::Duration pause = kFirstPause;
    while (true) {
      absl::StatusOr<OwnedFd> socket = TryToConnect(deadline);
      if (socket.ok()) {
        socket_ = *std::move(socket);
        break;
      }
      if (absl::IsInvalidArgument(socket.status())) {
        return Self().Error(socket.status().code(), socket.status().message());
      }
      if (deadline.passed()) {
        return Self().Error(absl::StatusCode::kDeadlineExceeded,
                            "rank 0 did not answer within ",
                            absl::FormatDuration(options_.timeout), ": ",
                            socket.status().message());
      }
      absl::SleepFor(std::min(pause, deadline.remaining()));
      pause = std::min(pause * 1.5, kLongestPause);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Nonce nonce, NewNonce());
    client_.emplace(Self(), nonce);
    return absl::OkStatus();
  }

  absl::StatusOr<OwnedFd> TryToConnect(const Deadline& deadline) {
    // Each time, since a name may be known only once rank 0's host is up.
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                              AddressesOf(options_.address, options_));
    absl::StatusOr<OwnedFd> socket;
    for (const SocketAddress& address : addresses) {
      socket =
          Connect(address, std::min(kConnectTimeout, deadline.remaining()));
      if (socket.ok()) break;
    }
    return socket;
  }

  // Waits for the socket, at most `limit`, and sends and receives. False if
  // the connection has ended.
  bool Turn(absl::Duration limit) {
    const bool sends = !client_->Output().empty();
    pollfd waiting = {socket_.get(),
                      static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0};
    if (poll(&waiting, 1, PollMilliseconds(Deadline(limit))) <= 0) return true;
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

  RendezvousEnd Self() const {
    return {Where(),
            {rank(), static_cast<uint32_t>(world_size()),
             static_cast<uint32_t>(getpid())},
            options_.token};
  }

  std::string Where() const {
    return absl::StrCat("rendezvous ",
                        HostAndPort(options_.address, options_.port));
  }

  TcpRendezvousOptions options_;
  std::unique_ptr<RendezvousHost> host_;  // Rank 0's. Ends after socket_.
  std::optional<RendezvousClient> client_;
  OwnedFd socket_;
  uint32_t round_ = 0;
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TcpRendezvous>> TcpRendezvous::Open(
    const TcpRendezvousOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options));
  if (!CanProve()) {
    return absl::UnimplementedError(
        "TCP rendezvous needs OpenSSL, which was not there when this was built "
        "(tools/setup.sh installs it)");
  }
  auto rendezvous = std::make_unique<SocketRendezvous>(options);
  if (options.rank == 0) LOCKSTEP_RETURN_IF_ERROR(rendezvous->StartHost());
  return rendezvous;
}

}  // namespace lockstep
