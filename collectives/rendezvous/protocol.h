// The protocol of the TCP rendezvous, as bytes: frames, and the handshake in
// which a rank and the server show each other that they know the run's token,
// without sending it.
//
// A frame is 20 bytes of header and a payload; numbers are little-endian:
//
//   magic "LSRT", version (1 byte), kind (1), zero (2), rank (4), number (4),
//   size of the payload (4)
//
// In the handshake each side picks a nonce. A proof is an HMAC-SHA256, keyed by
// the token, of both nonces, of who it is that proves (so that neither can send
// the other's proof back), and of what the rank says of itself. A proof is
// worth nothing on another connection.
//
// Who listens in on the network does not see the token, but can guess at it
// offline against a proof, so it must be long and random; sees all that the
// ranks publish; and, if it can also change what passes, can take a connection
// over after the handshake. The rendezvous is for networks on which the other
// machines are trusted as far as that, as NCCL and MPI are.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROTOCOL_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROTOCOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

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
struct FrameKinds {
  template <typename... Kinds>
  constexpr explicit FrameKinds(Kinds... kinds)
      : bits(((1u << static_cast<int>(kinds)) | ...)) {}
  constexpr bool Has(FrameKind kind) const {
    return (bits >> static_cast<int>(kind) & 1) != 0;
  }

  uint32_t bits;
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

using Nonce = std::array<unsigned char, kNonceBytes>;

// One that nobody can foresee or meets twice. Error: kUnavailable if the kernel
// gives no random bytes.
absl::StatusOr<Nonce> NewNonce();

// Whether this was built with OpenSSL, without which nobody can prove anything.
bool CanProve();

// Who a rank says that it is.
struct RankClaim {
  int32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t pid = 0;

  friend bool operator==(const RankClaim&, const RankClaim&) = default;
};

// One end of the rendezvous: a rank, or the server, which claims to be rank 0.
struct RendezvousEnd {
  template <typename... What>
  absl::Status Error(absl::StatusCode code, const What&... what) const {
    return absl::Status(code, absl::StrCat(where, ": ", what...));
  }

  std::string where;  // Begins every message: "rendezvous host:port".
  RankClaim claim;
  std::string token;
};

// kGreeting with the server's nonce, and the nonce of one.
Frame GreetingFrame(const Nonce& server_nonce);
Nonce NonceOfGreeting(const Frame& greeting);

// kJoin with the rank's nonce and proof, and the claim of one.
Frame JoinFrame(absl::string_view token, const Nonce& server_nonce,
                const Nonce& rank_nonce, const RankClaim& claim);
RankClaim ClaimOfJoin(const Frame& join);
// Whether the writer of `join` knows the token.
bool JoinKnowsToken(absl::string_view token, const Nonce& server_nonce,
                    const Frame& join);

// kWelcome with the server's proof, in answer to `join`.
Frame WelcomeFrame(absl::string_view token, const Nonce& server_nonce,
                   const Frame& join, uint32_t server_pid);
// Whether the writer of `welcome` knows the token.
bool WelcomeKnowsToken(absl::string_view token, const Nonce& server_nonce,
                       const Frame& join, const Frame& welcome);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROTOCOL_H_
