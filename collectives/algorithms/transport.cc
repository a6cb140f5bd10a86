#include "collectives/algorithms/transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"

namespace lockstep {
absl::StatusOr<std::span<std::byte>> AwaitPieceBuffer(Transport& transport,
                                                      int peer) {
  std::optional<std::span<std::byte>> room = transport.PieceBuffer(peer);
  while (!room.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(transport.Wait(peer, Transport::kNoRank));
    room = transport.PieceBuffer(peer);
  }
  return *room;
}

absl::StatusOr<std::span<const std::byte>> AwaitPiece(Transport& transport,
                                                      int peer, int64_t size) {
  std::optional<std::span<const std::byte>> piece = transport.Received(peer);
  while (!piece.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(transport.Wait(Transport::kNoRank, peer));
    piece = transport.Received(peer);
  }
  if (static_cast<int64_t>(piece->size()) == size) return *piece;
  return absl::InternalError(
      absl::StrCat("rank ", transport.rank(), " received ", piece->size(),
                   " bytes from rank ", peer, " where it expected ", size));
}

int MaxPiecesAhead(const Transport& transport) {
  return std::max(1, transport.max_pieces() - 1);
}

absl::Status SendPiece(Transport& transport, int peer, Segment bytes,
                       FillPiece fill) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::span<std::byte> room,
                            AwaitPieceBuffer(transport, peer));
  fill(bytes.begin, room.first(static_cast<size_t>(bytes.count)));
  transport.Send(peer, bytes.count);
  return absl::OkStatus();
}

absl::Status ReceivePiece(Transport& transport, int peer, Segment bytes,
                          TakePiece take) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::span<const std::byte> piece,
                            AwaitPiece(transport, peer, bytes.count));
  take(bytes.begin, piece);
  transport.Release(peer);
  return absl::OkStatus();
}

absl::Status SendMessage(Transport& transport, int peer, int64_t size,
                         FillPiece fill) {
  const int64_t piece = transport.max_piece_bytes();
  for (int64_t i = 0; i < PieceCount(size, piece); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(
        SendPiece(transport, peer, PieceOf({0, size}, piece, i), fill));
  }
  return absl::OkStatus();
}

absl::Status ReceiveMessage(Transport& transport, int peer, int64_t size,
                            TakePiece take) {
  const int64_t piece = transport.max_piece_bytes();
  for (int64_t i = 0; i < PieceCount(size, piece); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(
        ReceivePiece(transport, peer, PieceOf({0, size}, piece, i), take));
  }
  return absl::OkStatus();
}

absl::Status SendBytes(Transport& transport, int peer,
                       std::span<const std::byte> bytes) {
  return SendMessage(transport, peer, static_cast<int64_t>(bytes.size()),
                     CopyFrom(bytes.data()));
}

absl::Status ReceiveBytes(Transport& transport, int peer,
                          std::span<std::byte> bytes) {
  return ReceiveMessage(transport, peer, static_cast<int64_t>(bytes.size()),
                        CopyTo(bytes.data()));
}

absl::Status ExchangeMessages(Transport& transport, int send_peer,
                              std::span<const std::byte> sent, int receive_peer,
                              int64_t received_size, TakePiece take) {
  const int64_t piece = transport.max_piece_bytes();
  const int ahead = MaxPiecesAhead(transport);
  const Segment out = {0, static_cast<int64_t>(sent.size())};
  const Segment in = {0, received_size};
  const int64_t sends = PieceCount(out.count, piece);
  const int64_t receives = PieceCount(in.count, piece);
  for (int64_t i = 0; i < std::max(sends, receives + ahead); ++i) {
    if (i < sends) {
      LOCKSTEP_RETURN_IF_ERROR(SendPiece(
          transport, send_peer, PieceOf(out, piece, i), CopyFrom(sent.data())));
    }
    if (i >= ahead && i - ahead < receives) {
      LOCKSTEP_RETURN_IF_ERROR(ReceivePiece(
          transport, receive_peer, PieceOf(in, piece, i - ahead), take));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
