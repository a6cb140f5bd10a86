// The connections of a TCP group, one between any two ranks: making them,
// control messages and pieces of data over them.
#ifndef LOCKSTEP_COLLECTIVES_TCP_TCP_MESH_H_
#define LOCKSTEP_COLLECTIVES_TCP_TCP_MESH_H_

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "collectives/host/message_member.h"
#include "collectives/rendezvous/protocol.h"

namespace lockstep {

// Where a rank listens.
struct TcpEndpoint {
  std::string host;  // A number.
  int port = 0;
};

// Each rank connects to those below it and is connected to by those above. Both
// ends of a connection show each other that they know `secret`, by the
// handshake of the rendezvous (protocol.h); who does not is sent away, after
// kHandshakeTimeout at the latest, and changes nothing. Once all ranks above
// have come nobody listens any more.
//
// A message is a header and a body. Pieces lie in slots, kSlots each way and
// peer, and a rank never has more under way than the receiver has slots free,
// so a control message waits behind at most these. Whatever this rank waits
// for, it takes in what every peer sends.
//
// Not thread safe. Nothing waits but Idle and Leave.
class TcpMesh : public ControlChannel {
 public:
  // listener: of endpoints[self.rank]. Numbers of bytes travel as this machine
  // has them, so all ranks are of one kind.
  TcpMesh(RankClaim self, std::vector<TcpEndpoint> endpoints,
          std::string secret, OwnedFd listener, int64_t slot_bytes);

  void Post(const ControlMessage& message, std::span<const int> peers) override;
  void Poll(
      absl::FunctionRef<void(int peer, const ControlMessage&)> take) override;
  void Idle(std::chrono::steady_clock::duration waited, bool may_spin,
            std::chrono::steady_clock::duration limit) override;
  std::string Lost(int peer) const override;
  std::string Obstacle(int peer) const override;
  const absl::Status& error() const override { return error_; }

  // As Transport's. Half of the slots are for credits that are not told yet.
  static constexpr int kSlots = 8;
  static constexpr int kMaxPieces = kSlots / 2;
  int64_t slot_bytes() const { return slot_bytes_; }
  std::optional<std::span<std::byte>> Room(int peer);
  void Send(int peer, int64_t size);
  std::optional<std::span<const std::byte>> Received(int peer);
  void Release(int peer);

  // All that was sent is with the kernel, or nobody wants it.
  bool IsIdle() const;

  // Ends all connections once the other ends have all that was sent, or after
  // `patience`.
  void Leave(absl::Duration patience);

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::align_val_t kAlignment{64};
  struct AlignedDelete {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, kAlignment);
    }
  };

  enum class Stage {
    kAbsent,      // To be connected to, at `retry_at`, or to connect.
    kConnecting,  // Until the socket can be written to.
    kJoining,     // The handshake.
    kOpen,
    kEnded,
  };

  // The bytes of one message to send: of a piece, those in its slot.
  struct Outgoing {
    std::string text;
    std::span<const std::byte> slot;
    absl::string_view bytes() const;
  };

  // A handshake, of either side.
  struct Handshake {
    explicit Handshake(FrameKinds expected) : reader(expected) {}
    FrameReader reader;
    size_t missing = 0;  // Bytes of the frame that is expected.
    Nonce nonce = {};    // The acceptor's.
    Frame join;          // The connector's, as it was sent.
  };

  struct Link {
    Stage stage = Stage::kAbsent;
    OwnedFd socket;
    std::unique_ptr<Handshake> handshake;
    Clock::time_point retry_at;
    std::string obstacle;  // Why it could not connect.
    std::string lost;      // Why it ended.

    int mute = 0;  // Why the other end takes nothing more, an errno.
    std::deque<Outgoing> out;
    size_t sent = 0;  // Bytes of out.front().

    std::vector<char> inbox;
    size_t held = 0;      // Bytes of the inbox.
    int64_t missing = 0;  // Bytes of the piece that is coming.

    // Slots to send from, then to receive into; each behind a header.
    std::unique_ptr<std::byte[], AlignedDelete> slots;
    // Pieces, over all calls.
    uint64_t pieces_sent = 0;
    uint64_t pieces_freed = 0;  // Of these, by the peer.
    uint64_t pieces_received = 0;
    uint64_t pieces_released = 0;
    uint64_t releases_told = 0;
    std::array<int64_t, kSlots> sizes = {};  // Of those received.
  };

  struct Stranger {
    OwnedFd socket;
    Handshake handshake;
    Clock::time_point since;
  };

  using Take = absl::FunctionRef<void(int peer, const ControlMessage&)>;

  Link& link(int peer) { return links_[static_cast<size_t>(peer)]; }
  const Link& link(int peer) const { return links_[static_cast<size_t>(peer)]; }
  bool AwaitsRanks() const;

  void Look(Clock::duration limit);
  void AcceptAll();
  bool HearStranger(Stranger& stranger);  // False: it is to be sent away.
  bool Admit(Stranger& stranger, const Frame& join);

  void Connect(Link& link, int peer);
  void Retry(Link& link, absl::string_view obstacle);
  void HearAcceptor(Link& link, int peer);
  void Open(Link& link, OwnedFd socket);
  void End(Link& link, absl::string_view why);

  std::string Header(Link& link, int32_t kind, uint32_t size, uint64_t number);
  void Push(Link& link, Outgoing outgoing);
  void Flush(Link& link);
  void Receive(Link& link, int peer, Take take);
  bool Parse(Link& link, int peer, Take take);  // False: it has ended.
  bool BeginPiece(Link& link, size_t size, absl::string_view& bytes);
  std::byte* Slot(Link& link, uint64_t index);

  const RankClaim self_;
  const std::vector<TcpEndpoint> endpoints_;
  const std::string secret_;
  const int64_t slot_bytes_;
  OwnedFd listener_;
  std::vector<Link> links_;
  std::deque<Stranger> strangers_;  // The oldest first.
  // What poll() last said: of the listener, the strangers, the links.
  std::vector<pollfd> looked_;
  bool has_looked_ = false;
  absl::Status error_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_TCP_MESH_H_
