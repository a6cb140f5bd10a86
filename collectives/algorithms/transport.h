// The messages that the collective algorithms need from a backend, and messages
// of any size on top of them.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/schedule.h"

namespace lockstep {

// Moves pieces of at most max_piece_bytes between pairs of ranks, in order. The
// sender fills the memory and the receiver reads it in place. Only Wait blocks,
// so one thread can keep both directions busy. Not thread safe.
class Transport {
 public:
  // "No rank": Wait does not wait for this direction.
  static constexpr int kNoRank = -1;

  virtual ~Transport() = default;

  virtual int rank() const = 0;                 // In [0, world_size()).
  virtual int world_size() const = 0;           // At least 1.
  virtual int64_t max_piece_bytes() const = 0;  // A multiple of 64.
  // Returns the number of pieces that may be under way to one rank: sent and
  // not yet released. The number is at least 2. When all ranks of a ring have
  // sent one piece, each needs memory for the next before it can receive one.
  // More pieces let ranks drift.
  virtual int max_pieces() const { return 2; }

  // Returns the memory for the next piece to `peer`: max_piece_bytes, aligned
  // to 64. The caller owns it until Send. None while max_pieces earlier pieces
  // are under way. Fill one piece at a time: several ranks' memory may be the
  // same.
  virtual std::optional<std::span<std::byte>> PieceBuffer(int peer) = 0;
  // Sends the first `size` bytes of PieceBuffer(peer), which held a value. size
  // > 0.
  virtual void Send(int peer, int64_t size) = 0;

  // Returns the next piece from `peer`, readable until Release. None if no
  // piece has arrived.
  virtual std::optional<std::span<const std::byte>> Received(int peer) = 0;
  // Returns the memory of Received(peer), which held a value, to the sender.
  virtual void Release(int peer) = 0;

  // Returns once PieceBuffer(send_peer) or Received(receive_peer) holds a
  // value. At most one of the two is kNoRank. Errors: kUnavailable if a rank
  // died or left; kDeadlineExceeded; the error of another rank. After an error
  // the group has failed.
  virtual absl::Status Wait(int send_peer, int receive_peer) = 0;
};

// Messages of any size, as pieces over a transport. The algorithms are made of
// these functions. All of them block.
//
// The sender and the receiver of a message know its size and cut it alike: all
// pieces but the last have max_piece_bytes, and an empty message has none.
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// Waits until Transport::PieceBuffer holds a value and returns it.
absl::StatusOr<std::span<std::byte>> AwaitPieceBuffer(Transport& transport,
                                                      int peer);

// Waits for Transport::Received and returns the piece, which must have `size`
// bytes. The caller releases it.
absl::StatusOr<std::span<const std::byte>> AwaitPiece(Transport& transport,
                                                      int peer, int64_t size);

// Returns the number of pieces that a rank may have sent beyond those it has
// received. Without this limit, ranks that all send to each other could use up
// all memory in every direction and deadlock.
int MaxPiecesAhead(const Transport& transport);

// Writes bytes [offset, offset + room.size()) of a message.
using FillPiece =
    absl::FunctionRef<void(int64_t offset, std::span<std::byte> room)>;
// Reads the bytes of a piece at `offset` of a message; the piece is invalid
// afterwards.
using TakePiece =
    absl::FunctionRef<void(int64_t offset, std::span<const std::byte> piece)>;

// Return a FillPiece or TakePiece of a message in memory.
inline auto CopyFrom(const std::byte* message) {
  return [message](int64_t offset, std::span<std::byte> room) {
    std::memcpy(room.data(), message + offset, room.size());
  };
}
inline auto CopyTo(std::byte* message) {
  return [message](int64_t offset, std::span<const std::byte> piece) {
    std::memcpy(message + offset, piece.data(), piece.size());
  };
}

// Send or receive one piece, which holds `bytes` of a message.
absl::Status SendPiece(Transport& transport, int peer, Segment bytes,
                       FillPiece fill);
absl::Status ReceivePiece(Transport& transport, int peer, Segment bytes,
                          TakePiece take);

// Send or receive one message of `size` bytes.
absl::Status SendMessage(Transport& transport, int peer, int64_t size,
                         FillPiece fill);
absl::Status ReceiveMessage(Transport& transport, int peer, int64_t size,
                            TakePiece take);

// Send or receive one message straight from or to memory.
absl::Status SendBytes(Transport& transport, int peer,
                       std::span<const std::byte> bytes);
absl::Status ReceiveBytes(Transport& transport, int peer,
                          std::span<std::byte> bytes);

// Sends one message while receiving another, so that both directions are busy.
// The two ranks may differ if they exchange in the same way. `take` may write
// over `sent`, up to the end of the piece that it takes.
absl::Status ExchangeMessages(Transport& transport, int send_peer,
                              std::span<const std::byte> sent, int receive_peer,
                              int64_t received_size, TakePiece take);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TRANSPORT_H_
