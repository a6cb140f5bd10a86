// Messages of any size as pieces over a transport: what the algorithms are made
// of. Everything here blocks.
//
// The sender and the receiver of a message know its size, and cut it alike: all
// pieces but the last have max_piece_bytes, and an empty message has none.
// Errors: the transport's, and kInternal if a piece of the wrong size comes.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_PIECES_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/segment.h"
#include "collectives/algorithms/transport.h"

namespace lockstep {

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

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_PIECES_H_
