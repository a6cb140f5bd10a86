// Sockets in the hands of a test.
#include "collectives/rendezvous/tcp_rendezvous_test_util.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/handshake.h"
#include "collectives/rendezvous/rendezvous_client.h"
#include "collectives/rendezvous/rendezvous_host.h"
#include "collectives/rendezvous/tcp_rendezvous.h"
#include "gtest/gtest.h"

namespace lockstep {

TcpRendezvousOptions TcpOptions(int rank, int world_size, int port) {
  TcpRendezvousOptions options;
  options.port = port;
  options.token = "the token";
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = kPatience;
  return options;
}

std::unique_ptr<TcpRendezvous> OpenTcp(const TcpRendezvousOptions& options) {
  auto rendezvous = TcpRendezvous::Open(options);
  EXPECT_THAT(rendezvous, IsOk());
  return *std::move(rendezvous);
}

TcpRanks OpenAllTcp(TcpRendezvousOptions options) {
  TcpRanks ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(OpenTcp(options));
    options.port = ranks[0]->port();
  }
  return ranks;
}

std::vector<Blobs> ExchangeAll(const TcpRanks& ranks) {
  std::vector<Blobs> results(ranks.size(), absl::UnknownError("not set"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = ranks[i]->Exchange(absl::StrCat("rank ", ranks[i]->rank()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::string> RankNames(int world_size) {
  std::vector<std::string> names;
  for (int i = 0; i < world_size; ++i)
    names.push_back(absl::StrCat("rank ", i));
  return names;
}

SocketAddress LoopbackAt(int port) {
  const auto addresses = Resolve("127.0.0.1", port);
  EXPECT_THAT(addresses, IsOk());
  return addresses->front();
}

ReservedPort::ReservedPort()
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const SocketAddress free = LoopbackAt(0);
  EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&free.storage),
                 free.size),
            0);
}

OwnedFd ConnectRaw(int port) {
  auto socket = Connect(LoopbackAt(port), kPatience);
  EXPECT_THAT(socket, IsOk());
  return *std::move(socket);
}

std::string ReceiveRaw(const OwnedFd& socket) {
  pollfd waiting = {socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, PollMilliseconds(kPatience)), 1);
  std::array<char, 4096> buffer;
  return {buffer.data(), ReceiveSome(socket, buffer).value_or(0)};
}

RawRank::RawRank(const TcpRendezvousOptions& options, size_t piece)
    : client_(
          {"raw",
           {options.rank, static_cast<uint32_t>(options.world_size), kRawPid},
           options.token},
          Nonce{1}),
      socket_(ConnectRaw(options.port)),
      piece_(piece) {}

void RawRank::SendAll() {
  while (!client_.Output().empty()) {
    const std::optional<size_t> sent =
        SendSome(socket_, client_.Output().substr(0, piece_));
    ASSERT_TRUE(sent.has_value());
    client_.Sent(*sent);
  }
}

void RawRank::Join() {
  while (!client_.joined() && !client_.outcome().has_value()) {
    client_.Receive(ReceiveRaw(socket_));
    SendAll();
  }
}

Blobs RawRank::Finish() {
  SendAll();
  while (!client_.outcome().has_value()) {
    const std::string bytes = ReceiveRaw(socket_);
    if (bytes.empty()) return absl::UnavailableError("the connection ended");
    client_.Receive(bytes);
    SendAll();
  }
  return *client_.outcome();
}

}  // namespace lockstep
