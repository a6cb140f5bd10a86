// Ranks and strangers for tests of the TCP rendezvous, on loopback.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_TEST_UTIL_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_TEST_UTIL_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "collectives/rendezvous/rendezvous_client.h"
#include "collectives/rendezvous/rendezvous_host.h"
#include "collectives/rendezvous/tcp_rendezvous.h"

namespace lockstep {

// For each wait: long beside what is to happen, short beside a test's limit.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

using Blobs = absl::StatusOr<std::vector<std::string>>;
using TcpRanks = std::vector<std::unique_ptr<TcpRendezvous>>;

// At 127.0.0.1, with a token and kPatience.
TcpRendezvousOptions TcpOptions(int rank, int world_size, int port);

// Fails the test, and the process, if that fails.
std::unique_ptr<TcpRendezvous> OpenTcp(const TcpRendezvousOptions& options);

// Rank 0, at a free port if options.port is 0, and the others.
TcpRanks OpenAllTcp(TcpRendezvousOptions options);

// What each rank, as threads, returns of one Exchange of "rank <rank>".
std::vector<Blobs> ExchangeAll(const TcpRanks& ranks);
// And what it should return.
std::vector<std::string> RankNames(int world_size);

SocketAddress LoopbackAt(int port);

// A port that nobody else is given while this lives, and that rank 0 can listen
// at, since neither of the two insists on being alone.
class ReservedPort {
 public:
  ReservedPort();
  int port() const { return PortOf(fd_); }

 private:
  OwnedFd fd_;
};

// A connection to rank 0.
OwnedFd ConnectRaw(int port);
// Waits until something has come and returns it, or "" if the connection ended.
std::string ReceiveRaw(const OwnedFd& socket);

// A rank whose sockets the test moves, sending `piece` bytes at a time; its pid
// is kRawPid.
class RawRank {
 public:
  static constexpr int kRawPid = 77;

  RawRank(const TcpRendezvousOptions& options, size_t piece);

  RendezvousClient& client() { return client_; }
  // For the test to end it in its own way.
  OwnedFd TakeSocket() { return std::move(socket_); }

  void SendAll();
  // Receives, and sends what there is to send, until the server has let it in.
  void Join();
  // The same until the round has ended.
  Blobs Finish();

 private:
  RendezvousClient client_;
  OwnedFd socket_;
  size_t piece_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_TEST_UTIL_H_
