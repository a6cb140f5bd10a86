#include "collectives/tcp/tcp_group.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/message_member.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/sockets.h"
#include "collectives/tcp/tcp_mesh.h"

namespace lockstep {
namespace {

// The longest time that a leaving rank waits until the other hosts have its
// last message.
constexpr absl::Duration kLeavePatience = absl::Seconds(1);
// The longest time if the group has failed: a host may not answer.
constexpr absl::Duration kFailedPatience = absl::Milliseconds(100);

// The address at which a rank listens for a group's connections, as the bytes
// sent. `nonce` is a number that nobody can predict; the group uses the nonce
// of its first rank.
struct Place {
  std::array<char, 64> host = {};
  int32_t port = 0;
  Nonce nonce = {};
};

struct Card {
  RankIntroduction introduction;
  Place place;
};

struct Listening {
  OwnedFd socket;
  Place place;
};

absl::StatusOr<Listening> ListenAt(const std::string& host) {
  Listening listening;
  const auto at = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("cannot listen at ", host,
                                                    ": ", status.message()));
  };
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(host, 0);
  if (!addresses.ok()) return at(addresses.status());
  absl::StatusOr<OwnedFd> socket = Listen(addresses->front());
  if (!socket.ok()) return at(socket.status());
  listening.socket = *std::move(socket);
  Place& place = listening.place;
  place.port = PortOf(listening.socket);
  // A name may resolve differently on another host, and a look-up takes time.
  const std::string number = HostOf(listening.socket);
  if (number.size() >= place.host.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address ", number, " is too long"));
  }
  std::copy(number.begin(), number.end(), place.host.begin());
  LOCKSTEP_ASSIGN_OR_RETURN(place.nonce, NewNonce());
  return listening;
}

class TcpTransport : public MessageTransport {
 public:
  TcpTransport(MessageMember& member, TcpMesh& mesh)
      : member_(member), mesh_(mesh) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override { return mesh_.slot_bytes(); }
  int max_pieces() const override { return TcpMesh::kMaxPieces; }
  std::optional<std::span<std::byte>> PieceBuffer(int peer) override {
    return mesh_.PieceBuffer(peer);
  }
  void Send(int peer, int64_t size) override { mesh_.Send(peer, size); }
  std::optional<std::span<const std::byte>> Received(int peer) override {
    return mesh_.Received(peer);
  }
  void Release(int peer) override { mesh_.Release(peer); }
  absl::Status Wait(int send_peer, int receive_peer) override {
    return member_.WaitFor(send_peer, receive_peer, [&] {
      return (send_peer != kNoRank &&
              mesh_.PieceBuffer(send_peer).has_value()) ||
             (receive_peer != kNoRank &&
              mesh_.Received(receive_peer).has_value());
    });
  }
  absl::Status Flush() override {
    return member_.WaitFor(kNoRank, kNoRank, [this] { return mesh_.IsIdle(); });
  }

 private:
  MessageMember& member_;
  TcpMesh& mesh_;
};

class TcpCommunicator : public MessageCommunicator {
 public:
  // places, introductions: by rank.
  TcpCommunicator(int rank, OwnedFd listener, std::span<const Place> places,
                  std::vector<RankIntroduction> introductions,
                  const TcpGroupOptions& options, absl::Duration timeout)
      : options_(options),
        process_(getpid()),
        algorithm_(introductions[0].algorithm),
        mesh_(Self(rank, places.size()), Endpoints(places),
              absl::StrCat(options.token,
                           absl::string_view(reinterpret_cast<const char*>(
                                                 places[0].nonce.data()),
                                             places[0].nonce.size())),
              std::move(listener), introductions[0].slot_bytes),
        member_(mesh_, rank, static_cast<int>(places.size()), timeout),
        transport_(member_, mesh_) {
    member_.SetIntroductions(std::move(introductions));
  }

  // Leaves the group. Does nothing in a fork of a rank's process, which does
  // not own the rank.
  ~TcpCommunicator() override {
    if (getpid() != process_) return;
    member_.AnnounceLeaving();
    mesh_.Leave(member_.has_failed() ? kFailedPatience : kLeavePatience);
  }

  // Returns once all ranks are connected. parent: see Introduce.
  absl::Status Join(MessageMember* parent = nullptr) {
    return member_.Introduce(member_.introductions()[rank()], parent);
  }

 private:
  static RankClaim Self(int rank, size_t world_size) {
    return {rank, static_cast<uint32_t>(world_size),
            static_cast<uint32_t>(getpid())};
  }

  static std::vector<TcpEndpoint> Endpoints(std::span<const Place> places) {
    std::vector<TcpEndpoint> endpoints;
    for (const Place& place : places) {
      endpoints.push_back({place.host.data(), place.port});
    }
    return endpoints;
  }

  MessageMember& member() const override { return member_; }
  MessageTransport& transport() const override { return transport_; }
  Algorithm algorithm() const override { return algorithm_; }

  absl::StatusOr<SplitOffer> OfferForSplit() override {
    LOCKSTEP_ASSIGN_OR_RETURN(Listening listening, ListenAt(options_.host));
    listener_ = std::move(listening.socket);
    SplitOffer offer = {};
    static_assert(sizeof(Place) <= sizeof(offer));
    std::memcpy(offer.data(), &listening.place, sizeof(Place));
    return offer;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Subgroup(
      const std::vector<int>& ranks,
      std::span<const SplitOffer> offers) override {
    OwnedFd listener = std::move(listener_);
    if (ranks.empty()) return nullptr;
    std::vector<Place> places(ranks.size());
    int new_rank = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      std::memcpy(&places[i], offers[static_cast<size_t>(ranks[i])].data(),
                  sizeof(Place));
      if (ranks[i] == rank()) new_rank = static_cast<int>(i);
    }
    auto group = std::make_unique<TcpCommunicator>(
        new_rank, std::move(listener), places, IntroductionsOf(ranks), options_,
        member_.timeout());
    LOCKSTEP_RETURN_IF_ERROR(group->Join(&member_));
    return group;
  }

  const TcpGroupOptions options_;
  const pid_t process_;
  const Algorithm algorithm_;
  // Mutable, because a call changes them, while the accessors above are const
  // for callers that only read.
  mutable TcpMesh mesh_;
  mutable MessageMember member_;
  mutable TcpTransport transport_;
  OwnedFd listener_;  // For the running Split.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroup(
    std::unique_ptr<Rendezvous> rendezvous, const TcpGroupOptions& tcp,
    const GroupOptions& options) {
  static_assert(std::is_trivially_copyable_v<Card>);
  const int rank = rendezvous->rank();
  absl::StatusOr<Listening> listening =
      CanProve() ? ListenAt(tcp.host)
                 : absl::UnimplementedError(
                       "the tcp backend needs OpenSSL, which was not there "
                       "when this was built (tools/setup.sh installs it)");
  Card card = {.introduction = IntroduceSelf(options), .place = {}};
  absl::StatusOr<std::string> mine = std::string();
  if (!listening.ok()) {
    mine = listening.status();
  } else {
    card.place = listening->place;
    mine = std::string(reinterpret_cast<const char*>(&card), sizeof(card));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> cards,
                            ExchangeResults(*rendezvous, mine));
  std::vector<RankIntroduction> introductions;
  std::vector<Place> places;
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (cards[peer].size() != sizeof(card)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", peer, " did not come to form this group"));
    }
    std::memcpy(&card, cards[peer].data(), sizeof(card));
    card.place.host.back() = card.introduction.host.back() = '\0';
    introductions.push_back(card.introduction);
    places.push_back(card.place);
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckSettings(introductions[0]));
  // No rank joins before rank 0 has come to this line.
  rendezvous.reset();
  auto group = std::make_unique<TcpCommunicator>(
      rank, std::move(listening->socket), places, std::move(introductions), tcp,
      options.timeout);
  LOCKSTEP_RETURN_IF_ERROR(group->Join());
  return group;
}

}  // namespace lockstep
