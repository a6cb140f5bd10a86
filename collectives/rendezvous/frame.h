// The frames of the TCP rendezvous, as bytes. A frame is 20 bytes of header and
// a payload; numbers are little-endian:
//
//   magic "LSRT", version (1 byte), kind (1), zero (2), rank (4), number (4),
//   size of the payload (4)
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_FRAME_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

inline void AppendLittleEndian(uint32_t value, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
}

// The first four of `bytes`, which has as many.
inline uint32_t LoadLittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 20;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kJoinBytes = kNonceBytes + kProofBytes + 4;
inline constexpr size_t kMaxFailureBytes = 4 << 10;

// S is the server, in rank 0; R is a rank. "rank" and "number" are the fields
// of the header; those that a kind does not name are 0.
enum class FrameKind : uint8_t {
  kGreeting = 1,  // S to R, first of all: a nonce.
  kJoin = 2,      // R to S: rank; number is the world size; nonce, proof, pid.
  kWelcome = 3,   // S to R: number is rank 0's pid; the server's proof.
  kDenied = 4,    // S to R: the proof is wrong. Nothing follows.
  kPublish = 5,   // R to S: number is the round, from 1; the blob.
  kResult = 6,    // S to R: rank, its blob of round number. One for each rank,
                  // in rank order.
  kFailure = 7,   // Either way: number is the absl::StatusCode; the message.
  kGiveUp = 8,    // R to S: it has waited for number milliseconds.
  kLeave = 9,     // R to S: it takes no part any more.
};

struct Frame {
  FrameKind kind = FrameKind::kLeave;
  int32_t rank = 0;
  uint32_t number = 0;
  std::string payload;

  friend bool operator==(const Frame&, const Frame&) = default;
};

// The payload must have a size that the kind allows.
std::string EncodeFrame(const Frame& frame);

// A failure as a frame, its message cut to kMaxFailureBytes, and back. What
// came is made printable and one line; a code that is none is kUnknown.
Frame FailureFrame(const absl::Status& failure);
absl::Status DecodeFailure(const Frame& frame);

// A set of frame kinds.
class FrameKinds {
 public:
  template <typename... Kinds>
  constexpr explicit FrameKinds(Kinds... kinds) : bits_((Bit(kinds) | ...)) {}
  constexpr bool Has(FrameKind kind) const { return (bits_ & Bit(kind)) != 0; }

 private:
  static constexpr uint32_t Bit(FrameKind kind) {
    return uint32_t{1} << static_cast<uint8_t>(kind);
  }
  uint32_t bits_;
};

// Takes a stream of bytes, in pieces of any size, apart. Holds what was
// appended and not yet returned: callers append pieces of bounded size and take
// all frames in between, so that this is at most a piece and a frame, and a
// frame of a kind that is not expected is refused by its header.
class FrameReader {
 public:
  explicit FrameReader(FrameKinds expected) : expected_(expected) {}

  // Changes which kinds may come next; also of bytes appended before.
  void Expect(FrameKinds expected) { expected_ = expected; }

  void Append(absl::string_view bytes);

  // The next frame, or none before all its bytes are there. Errors, which
  // stay: kFailedPrecondition for another version; kDataLoss for anything else
  // than a frame that is expected, as soon as its bytes differ.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  absl::StatusOr<std::optional<Frame>> Parse();

  FrameKinds expected_;
  std::string bytes_;
  size_t used_ = 0;  // Bytes of bytes_ that were returned.
  absl::Status error_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_FRAME_H_
