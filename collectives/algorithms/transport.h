// What the collective algorithms need from a backend, and messages of any size
// on top of it.
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

// Moves pieces of at most max_piece_bytes between pairs of ranks, in order,
// through memory that the sender fills and the receiver reads in place. Nothing
// here blocks but Wait, so one thread can keep both directions busy. Not thread
// safe.
class Transport {
 public:
  // "No peer": neither send nor receive is waited for.
  static constexpr int kNobody = -1;

  virtual ~Transport() = default;

  virtual int rank() const = 0;                 // In [0, world_size()).
  virtual int world_size() const = 0;           // At least 1.
  virtual int64_t max_piece_bytes() const = 0;  // A multiple of 64.
  // How many pieces may be under way to one peer, sent and not yet released. At
  // least 2: where all ranks of a ring have sent one piece, each needs room for
  // the next before it can take one in. More lets ranks drift.
  virtual int max_pieces() const { return 2; }

  // Room for the next piece to `peer`: max_piece_bytes, aligned to 64, the
  // caller's until Send. None while max_pieces earlier ones are under way. One
  // piece is filled at a time: rooms of several peers may be the same memory.
  virtual std::optional<std::span<std::byte>> Room(int peer) = 0;
  // Sends the first `size` bytes of Room(peer), which held a value. size > 0.
  virtual void Send(int peer, int64_t size) = 0;

  // The next piece from `peer`, readable until Release. None if none came.
  virtual std::optional<std::span<const std::byte>> Received(int peer) = 0;
  // Gives the memory of Received(peer), which held a value, back.
  virtual void Release(int peer) = 0;

  // Returns once Room(send_peer) or Received(receive_peer) holds a value; at
  // most one of the two is kNobody. Errors: kUnavailable if a rank died or
  // left; kDeadlineExceeded; what another rank failed with. The group has then
  // failed.
  virtual absl::Status Wait(int send_peer, int receive_peer) = 0;
};

// Messages of any size as pieces over a transport: what the algorithms are made
// of. Everything here blocks.
//
// The sender and the receiver of a message know its size, and cut it alike: all
// pieces but the last have max_piece_bytes, and an empty message has none.
// Errors: the transport's, and kInternal if a piece of the wrong size comes.

// Transport::Room, as soon as there is some.
absl::StatusOr<std::span<std::byte>> RoomFor(Transport& transport, int peer);

// Transport::Received, as soon as there is a piece, which must have `size`
// bytes. To be released.
absl::StatusOr<std::span<const std::byte>> PieceFrom(Transport& transport,
                                                     int peer, int64_t size);

// How many pieces a rank may be ahead, in sending, of what it has received,
// where ranks that all send to each other could else fill every way and wait
// for room for ever.
int MaxPiecesAhead(const Transport& transport);

// Writes bytes [offset, offset + room.size()) of a message.
using FillPiece =
    absl::FunctionRef<void(int64_t offset, std::span<std::byte> room)>;
// Reads them; they are gone afterwards.
using TakePiece =
    absl::FunctionRef<void(int64_t offset, std::span<const std::byte> piece)>;

// Those of a message in memory.
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

// One piece, which is these bytes of a message.
absl::Status SendPiece(Transport& transport, int peer, Segment bytes,
                       FillPiece fill);
absl::Status ReceivePiece(Transport& transport, int peer, Segment bytes,
                          TakePiece take);

// One message of `size` bytes.
absl::Status SendMessage(Transport& transport, int peer, int64_t size,
                         FillPiece fill);
absl::Status ReceiveMessage(Transport& transport, int peer, int64_t size,
                            TakePiece take);

// The same from and to memory as it is.
absl::Status SendBytes(Transport& transport, int peer,
                       std::span<const std::byte> bytes);
absl::Status ReceiveBytes(Transport& transport, int peer,
                          std::span<std::byte> bytes);

// Sends one message while receiving another, so that both ways are busy. The
// peers may differ, if theirs do likewise. `take` may write where `sent` lies,
// up to the end of the piece that it takes.
absl::Status ExchangeMessages(Transport& transport, int send_peer,
                              std::span<const std::byte> sent, int receive_peer,
                              int64_t received_size, TakePiece take);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TRANSPORT_H_
