// The protocol of the TCP rendezvous, as bytes: frames, and the handshake in
// which a rank and the server prove to each other that they know the run's
// token, without sending it.
//
// A frame is 20 bytes of header and a payload; numbers are little-endian:
//
//   magic "LSRT", version (1 byte), kind (1), zero (2), rank (4), number (4),
//   size of the payload (4)
//
// In the handshake each side picks a nonce. A proof is an HMAC-SHA256, keyed by
// the token, of both nonces, of the prover's name, and of the rank's claim
// about itself. The name keeps either side from sending the other side's proof
// back. A proof is invalid on any other connection.
//
// An attacker who listens on the network does not see the token, but can test
// guesses offline against a proof. The token must therefore be long and random.
// Such an attacker also sees everything that the ranks publish. An attacker who
// can change packets can take a connection over after the handshake. The
// rendezvous is therefore for networks whose machines are trusted to that
// extent, as are NCCL and MPI.
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
// of the header; a field that a kind does not mention is 0.
enum class FrameKind : uint8_t {
  kGreeting = 1,  // S to R, the first frame: a nonce.
  kJoin = 2,      // R to S: rank; number is the world size; nonce, proof, pid.
  kWelcome = 3,   // S to R: number is rank 0's pid; the server's proof.
  kDenied = 4,    // S to R: the proof is wrong. The last frame.
  kPublish = 5,   // R to S: number is the round, from 1; the blob.
  kResult = 6,    // S to R: rank, its blob of round number. One for
                  // each rank, in rank order.
  kFailure = 7,   // Both ways: number is the absl::StatusCode; the message.
  kGiveUp = 8,    // R to S: it has waited for number milliseconds.
  kLeave = 9,     // R to S: it leaves the run.
};

struct Frame {
  FrameKind kind = FrameKind::kLeave;
  int32_t rank = 0;
  uint32_t number = 0;
  std::string payload;

  friend bool operator==(const Frame&, const Frame&) = default;
};

// Returns the bytes of a frame, whose payload must have a size that its kind
// allows.
std::string EncodeFrame(const Frame& frame);

// Convert a failure to a frame, its message cut to kMaxFailureBytes, and back.
// A received message is made printable and put on one line; an invalid code
// becomes kUnknown.
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

// Splits a stream of bytes, received in pieces of any size, into frames. Holds
// the bytes that were appended and not yet returned. Callers append pieces of
// bounded size and take all frames in between, so the reader holds at most one
// piece and one frame. A frame of a kind that is not expected is rejected when
// its header is read.
class FrameReader {
 public:
  explicit FrameReader(FrameKinds expected) : expected_(expected) {}

  // Changes which kinds may come next, also for bytes appended before.
  void Expect(FrameKinds expected) { expected_ = expected; }

  void Append(absl::string_view bytes);

  // Returns the next frame, or nullopt until all its bytes are there. Errors,
  // which every later call repeats: kFailedPrecondition for another version;
  // kDataLoss for bytes that are no expected frame, as soon as they differ from
  // one.
  absl::StatusOr<std::optional<Frame>> Next();

 private:
  absl::StatusOr<std::optional<Frame>> Parse();

  FrameKinds expected_;
  std::string bytes_;
  size_t used_ = 0;  // Bytes of bytes_ that were returned as frames.
  absl::Status error_;
};

using Nonce = std::array<unsigned char, kNonceBytes>;

// Returns a nonce that nobody can predict and that does not repeat. Error:
// kUnavailable if the kernel returns no random bytes.
absl::StatusOr<Nonce> NewNonce();

// Returns whether this was built with OpenSSL. Without OpenSSL every proof
// fails.
bool CanProve();

// The identity that a rank claims.
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

  std::string where;  // The start of every message: "rendezvous host:port".
  RankClaim claim;
  std::string token;
};

// Convert the server's nonce to a kGreeting, and back.
Frame GreetingFrame(const Nonce& server_nonce);
Nonce NonceOfGreeting(const Frame& greeting);

// Returns a kJoin with the rank's nonce, proof and claim. ClaimOfJoin returns
// the claim of a kJoin.
Frame JoinFrame(absl::string_view token, const Nonce& server_nonce,
                const Nonce& rank_nonce, const RankClaim& claim);
RankClaim ClaimOfJoin(const Frame& join);
// Returns whether the sender of `join` knows the token.
bool JoinKnowsToken(absl::string_view token, const Nonce& server_nonce,
                    const Frame& join);

// Returns the kWelcome that answers `join`, with the server's proof.
Frame WelcomeFrame(absl::string_view token, const Nonce& server_nonce,
                   const Frame& join, uint32_t server_pid);
// Returns whether the sender of `welcome` knows the token.
bool WelcomeKnowsToken(absl::string_view token, const Nonce& server_nonce,
                       const Frame& join, const Frame& welcome);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROTOCOL_H_
