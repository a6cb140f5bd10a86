// The connections of a TCP group, one between any two ranks. They carry control
// messages and pieces of data.
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

// The address at which a rank listens.
struct TcpEndpoint {
  std::string host;  // A number, not a name.
  int port = 0;
};

// The connections of one rank. Each rank connects to all lower ranks and
// accepts the higher ones. Both ends prove that they know `secret`, by the
// handshake of the rendezvous (protocol.h). A connection that fails the
// handshake, or does not complete it within kHandshakeTimeout, is closed. The
// group is not affected. Once all higher ranks have connected, the rank stops
// listening.
//
// A message is a header and a body. Pieces lie in slots, kSlots for each rank
// and direction. A rank never has more pieces under way than the receiver has
// free slots, so a control message waits behind at most that many. While a rank
// waits, it receives the messages of every rank.
//
// Not thread safe. Only Idle and Leave wait.
class TcpMesh : public ControlChannel {
 public:
  // listener: listens at endpoints[self.rank]. Numbers are sent in this
  // machine's byte order, so all ranks must be of one kind of machine.
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

  // The limits of Transport. The other half of the slots covers releases that
  // the sender does not know of yet.
  static constexpr int kSlots = 8;
  static constexpr int kMaxPieces = kSlots / 2;
  int64_t slot_bytes() const { return slot_bytes_; }
  std::optional<std::span<std::byte>> PieceBuffer(int peer);
  void Send(int peer, int64_t size);
  std::optional<std::span<const std::byte>> Received(int peer);
  void Release(int peer);

  // Returns whether the kernel has all sent messages. Messages to a closed
  // connection do not count.
  bool IsIdle() const;

  // Closes all connections once the other ends have received all messages, or
  // after `patience`.
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
    // No connection: this rank connects at `retry_at`, or the other end
    // connects.
    kAbsent,
    kConnecting,  // Waits until the socket is writable.
    kJoining,     // Runs the handshake.
    kOpen,
    kEnded,
  };

  // One message to send. The bytes of a piece are in its slot.
  struct Outgoing {
    std::string text;
    std::span<const std::byte> slot;
    absl::string_view bytes() const;
  };

  // The state of a handshake, on either side.
  struct Handshake {
    explicit Handshake(FrameKinds expected) : reader(expected) {}
    FrameReader reader;
    size_t missing = 0;  // Bytes of the expected frame.
    Nonce nonce = {};    // The acceptor's nonce.
    Frame join;          // The frame that the connector sent.
  };

  struct Link {
    Stage stage = Stage::kAbsent;
    OwnedFd socket;
    std::unique_ptr<Handshake> handshake;
    Clock::time_point retry_at;
    std::string obstacle;  // Why it could not connect.
    std::string lost;      // Why it ended.

    // The errno of the last send, if the other end receives no more.
    int mute = 0;
    std::deque<Outgoing> out;
    size_t sent = 0;  // Bytes of out.front().

    std::vector<char> inbox;
    size_t held = 0;      // Bytes in the inbox.
    int64_t missing = 0;  // Bytes of the arriving piece.

    // Slots to send from, then slots to receive into. Each has a header before
    // it.
    std::unique_ptr<std::byte[], AlignedDelete> slots;
    // The numbers of pieces, over all calls.
    uint64_t pieces_sent = 0;
    uint64_t pieces_freed = 0;  // By the other rank.
    uint64_t pieces_received = 0;
    uint64_t pieces_released = 0;
    uint64_t releases_told = 0;
    std::array<int64_t, kSlots> sizes = {};  // For received pieces.
  };

  struct PendingConnection {
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
  bool ReceiveHandshake(PendingConnection& stranger);  // False: close it.
  bool Admit(PendingConnection& stranger, const Frame& join);

  void Connect(Link& link, int peer);
  void Retry(Link& link, absl::string_view obstacle);
  void ContinueHandshake(Link& link, int peer);
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
  std::deque<PendingConnection> pending_connections_;  // The oldest first.
  // The results of the last poll() for the listener, the strangers and the
  // links.
  std::vector<pollfd> poll_results_;
  bool has_polled_ = false;
  absl::Status error_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_TCP_MESH_H_
