#include "collectives/rendezvous/handshake.h"

#include <sys/random.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/frame.h"
#ifdef LOCKSTEP_HAS_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

namespace lockstep {
namespace {

constexpr absl::string_view kRankProves = "lockstep rendezvous rank";
constexpr absl::string_view kServerProves = "lockstep rendezvous server";

template <typename Bytes>
void AppendBytes(const Bytes& bytes, std::string& text) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::string_view RankNonceOf(const Frame& join) {
  return absl::string_view(join.payload).substr(0, kNonceBytes);
}

// HMAC-SHA256; zeros if the library refuses to compute it, and `known` says
// whether it did.
struct Digest {
  Nonce bytes = {};
  bool known = false;
};

#ifdef LOCKSTEP_HAS_OPENSSL

Digest Hmac(absl::string_view key, absl::string_view message) {
  Digest digest;
  unsigned int size = 0;
  digest.known = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(message.data()),
                      message.size(), digest.bytes.data(), &size) != nullptr;
  return digest;
}

// In a time that does not tell where they differ.
bool IsProof(absl::string_view bytes, const Digest& proof) {
  return proof.known && CRYPTO_memcmp(bytes.data(), proof.bytes.data(),
                                      proof.bytes.size()) == 0;
}

#else

Digest Hmac(absl::string_view, absl::string_view) { return {}; }
bool IsProof(absl::string_view, const Digest&) { return false; }

#endif

// Every part has a fixed size for each prover, so no two inputs read the same.
Digest Proof(absl::string_view token, absl::string_view prover,
             const Nonce& server_nonce, absl::string_view rank_nonce,
             const RankClaim& claim) {
  std::string text(prover);
  AppendBytes(server_nonce, text);
  AppendBytes(rank_nonce, text);
  AppendLittleEndian(static_cast<uint32_t>(claim.rank), text);
  AppendLittleEndian(claim.world_size, text);
  AppendLittleEndian(claim.pid, text);
  return Hmac(token, text);
}

}  // namespace

static_assert(kNonceBytes == kProofBytes);

bool CanProve() { return Hmac("key", "message").known; }

absl::StatusOr<NonceSource> NonceSource::Create() {
  Nonce seed;
  // No signal interrupts so small a request.
  if (getrandom(seed.data(), seed.size(), 0) !=
      static_cast<ssize_t>(seed.size())) {
    return absl::UnavailableError(
        absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return NonceSource(seed);
}

Nonce NonceSource::Next() {
  std::string seed;
  AppendBytes(seed_, seed);
  std::string count;
  AppendLittleEndian(count_++, count);
  return Hmac(seed, count).bytes;
}

Frame GreetingFrame(const Nonce& server_nonce) {
  Frame frame;
  frame.kind = FrameKind::kGreeting;
  AppendBytes(server_nonce, frame.payload);
  return frame;
}

Nonce NonceOfGreeting(const Frame& greeting) {
  Nonce nonce;
  std::copy_n(greeting.payload.begin(), nonce.size(), nonce.begin());
  return nonce;
}

Frame JoinFrame(absl::string_view token, const Nonce& server_nonce,
                const Nonce& rank_nonce, const RankClaim& claim) {
  Frame frame;
  frame.kind = FrameKind::kJoin;
  frame.rank = claim.rank;
  frame.number = claim.world_size;
  AppendBytes(rank_nonce, frame.payload);
  const Digest proof =
      Proof(token, kRankProves, server_nonce, RankNonceOf(frame), claim);
  AppendBytes(proof.bytes, frame.payload);
  AppendLittleEndian(claim.pid, frame.payload);
  return frame;
}

RankClaim ClaimOfJoin(const Frame& join) {
  const absl::string_view payload = join.payload;
  return {join.rank, join.number,
          LoadLittleEndian(payload.substr(kNonceBytes + kProofBytes))};
}

bool JoinKnowsToken(absl::string_view token, const Nonce& server_nonce,
                    const Frame& join) {
  const absl::string_view payload = join.payload;
  return IsProof(payload.substr(kNonceBytes, kProofBytes),
                 Proof(token, kRankProves, server_nonce, RankNonceOf(join),
                       ClaimOfJoin(join)));
}

Frame WelcomeFrame(absl::string_view token, const Nonce& server_nonce,
                   const Frame& join, uint32_t server_pid) {
  Frame frame;
  frame.kind = FrameKind::kWelcome;
  frame.number = server_pid;
  const Digest proof = Proof(token, kServerProves, server_nonce,
                             RankNonceOf(join), ClaimOfJoin(join));
  AppendBytes(proof.bytes, frame.payload);
  return frame;
}

bool WelcomeKnowsToken(absl::string_view token, const Nonce& server_nonce,
                       const Frame& join, const Frame& welcome) {
  return IsProof(welcome.payload, Proof(token, kServerProves, server_nonce,
                                        RankNonceOf(join), ClaimOfJoin(join)));
}

}  // namespace lockstep
