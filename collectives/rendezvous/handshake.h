// How a rank and the server show each other that they know the run's token,
// without sending it.
//
// Each picks a nonce. A proof is an HMAC-SHA256, keyed by the token, of both
// nonces, of who it is that proves (so that neither can send the other's proof
// back), and of what the rank says of itself. A proof is worth nothing on
// another connection.
//
// Who listens in on the network does not see the token, but can guess at it
// offline against a proof, so it must be long and random; sees all that the
// ranks publish; and, if it can also change what passes, can take a connection
// over after the handshake. The rendezvous is for networks on which the other
// machines are trusted as far as that, as NCCL and MPI are.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_HANDSHAKE_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_HANDSHAKE_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/frame.h"

namespace lockstep {

using Nonce = std::array<unsigned char, kNonceBytes>;

// Nonces that nobody else can foresee or meets twice.
class NonceSource {
 public:
  // Seeded by the kernel. Error: kUnavailable if it gives no random bytes.
  static absl::StatusOr<NonceSource> Create();
  // The same seed gives the same nonces.
  explicit NonceSource(const Nonce& seed) : seed_(seed) {}

  Nonce Next();

 private:
  Nonce seed_;
  uint32_t count_ = 0;
};

// Whether this was built with OpenSSL, without which nobody can prove anything.
bool CanProve();

// Who a rank says that it is.
struct RankClaim {
  int32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t pid = 0;

  friend bool operator==(const RankClaim&, const RankClaim&) = default;
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

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_HANDSHAKE_H_
