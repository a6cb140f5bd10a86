// The TCP rendezvous: a rank, and in rank 0 also the server's sockets.
#include "collectives/rendezvous/tcp_rendezvous.h"

#include <poll.h>
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
#include <mutex>
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
#include "base/signals_blocked.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "collectives/rendezvous/sockets.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
// The limit for each of the addresses of a name.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
// A lookup that takes longer than this is reported.
constexpr absl::Duration kQuickLookup = absl::Seconds(1);
// The pause between two queries to a resolver that cannot answer.
constexpr absl::Duration kLookupPause = absl::Milliseconds(500);

// The time for rank 0 to say which ranks are missing at the deadline.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);
// The time for rank 0, as it ends, to send what other ranks have not received
// yet.
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

// Checks that all addresses are loopback or there is a token. Without a token,
// any process on the network could join, or pose as rank 0.
absl::Status CheckToken(const std::vector<SocketAddress>& addresses,
                        const std::string& token) {
  const bool loopback =
      std::all_of(addresses.begin(), addresses.end(),
                  [](const SocketAddress& a) { return a.IsLoopback(); });
  if (loopback || !token.empty()) return absl::OkStatus();
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
    // A name may have addresses that this host lacks (for example IPv6). But if
    // another process has the port at one of them, ranks would take that
    // process for rank 0.
    if (absl::IsAlreadyExists(failure)) return failure;
  }
  if (listeners.empty()) return failure;
  return listeners;
}

// Serves one run from a thread of its own, so that ranks learn of each other
// while rank 0 is busy. The thread blocks all signals.
class RendezvousHost {
 public:
  // `rank_zero` is the server's end of rank 0's own connection. When that
  // connection ends, the thread sends the remaining output, for at most
  // kHandOverTimeout, and ends.
  RendezvousHost(RendezvousServer server, std::vector<OwnedFd> listeners,
                 OwnedFd rank_zero)
      : server_(std::move(server)),
        listeners_(std::move(listeners)),
        rank_zero_(server_.AddRankZero()),
        buffer_(kBufferBytes) {
    sockets_[rank_zero_] = std::move(rank_zero);
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { Run(); });
  }
  RendezvousHost(const RendezvousHost&) = delete;
  RendezvousHost& operator=(const RendezvousHost&) = delete;
  // Waits for the thread. Rank 0's connection must have ended before.
  ~RendezvousHost() { thread_.join(); }

  // Calls RendezvousServer::AbsentRanks. Any thread may call this.
  std::string AbsentRanks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return server_.AbsentRanks();
  }

 private:
  using SessionId = RendezvousServer::SessionId;

  void Run() {
    while (sockets_.contains(rank_zero_)) Turn(absl::InfiniteDuration());
    accepts_ = false;
    listeners_.clear();
    const Deadline hand_over(kHandOverTimeout);
    while (!AllSent() && !hand_over.passed()) Turn(hand_over.remaining());
  }

  // The time since the start.
  absl::Duration Now() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

  // Waits until there is something to do, at most `limit`, and does it.
  void Turn(absl::Duration limit) {
    std::vector<pollfd> waiting;
    std::vector<SessionId> ids;
    limit = std::min(limit, PrepareWait(waiting, ids));
    const int ready =
        poll(waiting.data(), waiting.size(), PollMilliseconds(Deadline(limit)));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ready > 0) {
      // Existing sessions come first, since accepting a new one may close the
      // oldest.
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

  // Lists the sessions, whose sockets come first, and then the listeners.
  // Returns the time until the server has something to do.
  absl::Duration PrepareWait(std::vector<pollfd>& waiting,
                             std::vector<SessionId>& ids) {
    const std::lock_guard<std::mutex> lock(mutex_);
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
    return server_.NextTick() - Now();
  }

  void AcceptFrom(const OwnedFd& listener) {
    absl::StatusOr<std::optional<OwnedFd>> socket = Accept(listener);
    if (!socket.ok()) {
      // No descriptors are left: closing the oldest stranger frees one.
      if (!server_.CloseOldestStranger()) {
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

  // Sends what can be sent now; returns false if the session has ended.
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

  bool AllSent() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, socket] : sockets_) {
      if (!server_.Output(id).empty()) return false;
    }
    return true;
  }

  void End(SessionId id) {
    server_.Disconnect(id);
    sockets_.erase(id);
  }

  // Guards server_. Not absl::Mutex: ThreadSanitizer does not see into the
  // distribution's abseil.
  std::mutex mutex_;
  RendezvousServer server_;
  std::vector<OwnedFd> listeners_;
  std::map<SessionId, OwnedFd> sockets_;
  const SessionId rank_zero_;
  bool accepts_ = true;
  const std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
  std::vector<char> buffer_;  // For received bytes.
  std::thread thread_;
};

// Reports which ranks a rank waits for, the first time at once and then at
// intervals.
class WaitReport {
 public:
  explicit WaitReport(const TcpRendezvousOptions& options)
      : options_(options) {}

  void Restart() {
    waited_ = Deadline(absl::InfiniteDuration());
    told_at_.reset();
  }

  // If a line is due, reports that the rank waits "for rank 0 at host0:29400".
  void Tell(absl::string_view whom) {
    if (UntilDue() > absl::ZeroDuration()) return;
    const absl::Duration waited = waited_.elapsed();
    const std::string verb =
        told_at_.has_value()
            ? absl::StrCat("has waited ",
                           absl::FormatDuration(absl::Trunc(waited, kSecond)))
            : "waits";
    told_at_ = waited;
    options_.tell(absl::StrCat("rank ", options_.rank, " ", verb, " ", whom));
  }

  absl::Duration UntilDue() const {
    if (options_.tell == nullptr) return absl::InfiniteDuration();
    if (!told_at_.has_value()) return absl::ZeroDuration();
    return *told_at_ + options_.tell_every - waited_.elapsed();
  }

 private:
  static constexpr absl::Duration kSecond = absl::Seconds(1);

  const TcpRendezvousOptions& options_;
  Deadline waited_{absl::InfiniteDuration()};
  std::optional<absl::Duration> told_at_;
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
  std::string own_address() const override {
    if (addresses_.empty()) return "";
    return OwnAddressTowards(addresses_.front()).value_or("");
  }

  // Looks up rank 0's address; on rank 0, then listens.
  absl::Status Start() {
    const Deadline deadline(options_.timeout);
    const bool listens_elsewhere =
        rank() == 0 && !options_.listen_address.empty();
    absl::StatusOr<std::vector<SocketAddress>> found =
        LookUp(options_.address, deadline);
    // Only the other ranks need `address`; rank 0's host may not know this
    // name.
    if (listens_elsewhere && absl::IsNotFound(found.status())) {
      found.emplace();
    }
    LOCKSTEP_RETURN_IF_ERROR(found.status());
    addresses_ = *found;
    if (listens_elsewhere) {
      found = LookUp(options_.listen_address, deadline);
      LOCKSTEP_RETURN_IF_ERROR(found.status());
    }
    const absl::Status checked = CheckToken(*found, options_.token);
    if (!checked.ok()) return Self().Error(checked.code(), checked.message());
    lookup_time_ = deadline.elapsed();
    return rank() == 0 ? StartHost(*std::move(found)) : absl::OkStatus();
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
  absl::Status StartHost(std::vector<SocketAddress> at) {
    // Port 0 would pick a different port for each address.
    if (options_.port == 0) at.resize(1);
    absl::StatusOr<std::vector<OwnedFd>> listeners = ListenAtAll(at);
    if (!listeners.ok()) {
      const std::string& address = options_.listen_address.empty()
                                       ? options_.address
                                       : options_.listen_address;
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

  // Returns the addresses of `host`. Repeats the query if the resolver cannot
  // answer now.
  absl::StatusOr<std::vector<SocketAddress>> LookUp(const std::string& host,
                                                    const Deadline& deadline) {
    trouble_ = "the resolver does not answer";
    while (!deadline.passed()) {
      HostLookup lookup(options_.resolver, host, options_.port);
      const auto* answer = AwaitLookup(lookup, deadline);
      if (answer == nullptr) break;
      if (answer->ok()) {
        trouble_.clear();
        return *answer;
      }
      trouble_ = std::string(answer->status().message());
      if (!absl::IsUnavailable(answer->status())) {
        return Self().Error(answer->status().code(), "cannot resolve ", host,
                            ": ", trouble_);
      }
      report_.Tell(DescribeWait());
      absl::SleepFor(std::min(kLookupPause, deadline.remaining()));
    }
    return Self().Error(
        absl::StatusCode::kDeadlineExceeded,
        rank() == 0 ? "" : "rank 0 did not answer: ", "cannot resolve ", host,
        " within ", absl::FormatDuration(options_.timeout), ": ", trouble_);
  }

  const absl::StatusOr<std::vector<SocketAddress>>* AwaitLookup(
      HostLookup& lookup, const Deadline& deadline) {
    const auto* answer =
        lookup.Await(std::min(kQuickLookup, deadline.remaining()));
    while (answer == nullptr && !deadline.passed()) {
      report_.Tell(DescribeWait());
      answer = lookup.Await(std::min(report_.UntilDue(), deadline.remaining()));
    }
    return answer;
  }

  // Returns which ranks the rank waits for, where, and what delays it.
  std::string DescribeWait() const {
    const std::string place = HostAndPort(options_.address, options_.port);
    std::string whom = absl::StrCat("for rank 0 at ", place);
    if (host_ != nullptr) {
      whom = absl::StrCat("at ", place, " for ", host_->AbsentRanks());
    } else if (rank() == 0 || (client_.has_value() && client_->joined())) {
      whom = absl::StrCat("at ", place, " for the other ranks");
    }
    if (!trouble_.empty()) absl::StrAppend(&whom, " (", trouble_, ")");
    return whom;
  }

  absl::StatusOr<std::vector<std::string>> TryExchange(absl::string_view blob) {
    const Deadline deadline(options_.timeout -
                            std::exchange(lookup_time_, absl::ZeroDuration()));
    report_.Restart();
    if (socket_.open()) Ask(blob);
    while (!client_.has_value() || !client_->outcome().has_value()) {
      if (!socket_.open()) {
        LOCKSTEP_RETURN_IF_ERROR(ConnectToHost(deadline));
        Ask(blob);
      }
      const bool connected =
          Turn(std::min(ReportMissingRanks(), deadline.remaining()));
      if (client_->outcome().has_value()) break;
      if (!connected && client_->joined()) {
        return Self().Error(absl::StatusCode::kUnavailable,
                            client_->ServerName(), " is gone");
      }
      // Rank 0 may have closed the connection because it had too many
      // strangers.
      if (!connected) socket_.Close();
      if (deadline.passed()) return GiveUp();
      if (!connected) {
        absl::SleepFor(std::min(kLongestPause, deadline.remaining()));
      }
    }
    return *client_->outcome();
  }

  // Reports the missing ranks if due. Returns the time until the next report.
  absl::Duration ReportMissingRanks() {
    if (host_ != nullptr && host_->AbsentRanks().empty()) {
      return absl::InfiniteDuration();
    }
    report_.Tell(DescribeWait());
    return report_.UntilDue();
  }

  // Handles a passed deadline: returns rank 0's answer, or an error without
  // one.
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

  // Publishes `blob`, or fails the run if `blob` is too large.
  void Ask(absl::string_view blob) {
    const absl::Status checked = CheckBlob(rank(), blob);
    if (!checked.ok()) return client_->Fail(checked);
    client_->Publish(round_, blob);
  }

  // Connects to rank 0; for all other ranks.
  absl::Status ConnectToHost(const Deadline& deadline) {
    absl::Duration pause = kFirstPause;
    while (true) {
      absl::StatusOr<OwnedFd> socket = TryToConnect(deadline);
      if (socket.ok()) {
        socket_ = *std::move(socket);
        trouble_.clear();
        break;
      }
      if (deadline.passed()) {
        return Self().Error(absl::StatusCode::kDeadlineExceeded,
                            "rank 0 did not answer within ",
                            absl::FormatDuration(options_.timeout), ": ",
                            socket.status().message());
      }
      trouble_ = std::string(socket.status().message());
      absl::SleepFor(std::min(pause, deadline.remaining()));
      RefreshAddresses(deadline);
      pause = std::min(pause * 1.5, kLongestPause);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Nonce nonce, NewNonce());
    client_.emplace(Self(), nonce);
    return absl::OkStatus();
  }

  // Looks the name up again, since it may lead elsewhere once rank 0's host is
  // up.
  void RefreshAddresses(const Deadline& deadline) {
    HostLookup lookup(options_.resolver, options_.address, options_.port);
    const auto* answer =
        lookup.Await(std::min(kQuickLookup, deadline.remaining()));
    if (answer != nullptr && answer->ok() &&
        CheckToken(**answer, options_.token).ok()) {
      addresses_ = **answer;
    }
  }

  absl::StatusOr<OwnedFd> TryToConnect(const Deadline& deadline) {
    // Before connecting, which a host that does not answer delays.
    report_.Tell(DescribeWait());
    absl::StatusOr<OwnedFd> socket;
    for (const SocketAddress& address : addresses_) {
      socket =
          Connect(address, std::min(kConnectTimeout, deadline.remaining()));
      if (socket.ok()) break;
    }
    return socket;
  }

  // Waits for the socket, at most `limit`, and sends and receives. Returns
  // false if the connection has ended.
  bool Turn(absl::Duration limit) {
    const bool sends = !client_->Output().empty();
    pollfd waiting = {socket_.get(),
                      static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0};
    if (poll(&waiting, 1, PollMilliseconds(Deadline(limit))) <= 0) return true;
    if ((waiting.revents & POLLOUT) != 0) {
      // If sending fails, there may still be bytes to receive.
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
  WaitReport report_{options_};
  std::vector<SocketAddress> addresses_;  // The addresses of options_.address.
  std::string trouble_;  // Why this rank cannot reach rank 0; "" for no reason.
  absl::Duration lookup_time_;            // The time that Start took.
  std::unique_ptr<RendezvousHost> host_;  // For rank 0. Ends after socket_.
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
  LOCKSTEP_RETURN_IF_ERROR(rendezvous->Start());
  return rendezvous;
}

}  // namespace lockstep
