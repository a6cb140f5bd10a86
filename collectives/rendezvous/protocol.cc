// Converts frames and the handshake to bytes and back; no input or output.
#include "collectives/rendezvous/protocol.h"

#include <sys/random.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rendezvous.h"
#ifdef LOCKSTEP_HAS_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

namespace lockstep {
namespace {

void AppendLittleEndian(uint32_t value, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
}

// Returns the number in the first four bytes; `bytes` must have four.
uint32_t LoadLittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

constexpr absl::string_view kMagic = "LSRT";
constexpr uint32_t kLargestStatusCode = 16;

struct PayloadSizes {
  size_t min;
  size_t max;
};

// Indexed by FrameKind.
constexpr PayloadSizes kPayloadSizes[] = {
    {0, 0},
    {kNonceBytes, kNonceBytes},
    {kJoinBytes, kJoinBytes},
    {kProofBytes, kProofBytes},
    {0, 0},
    {0, kMaxBlobBytes},
    {0, kMaxBlobBytes},
    {0, kMaxFailureBytes},
    {0, 0},
    {0, 0},
};

bool IsKind(uint8_t number) {
  return number >= 1 && number < std::size(kPayloadSizes);
}

constexpr absl::string_view kRankProves = "lockstep rendezvous rank";
constexpr absl::string_view kServerProves = "lockstep rendezvous server";

template <typename Bytes>
void AppendBytes(const Bytes& bytes, std::string& text) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::string_view RankNonceOf(const Frame& join) {
  return absl::string_view(join.payload).substr(0, kNonceBytes);
}

// An HMAC-SHA256; nullopt if the library refuses to compute it.
using Digest = std::optional<Nonce>;
static_assert(kNonceBytes == kProofBytes);

#ifdef LOCKSTEP_HAS_OPENSSL

Digest Hmac(absl::string_view key, absl::string_view message) {
  Nonce digest;
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()),
           message.size(), digest.data(), &size) == nullptr) {
    return std::nullopt;
  }
  return digest;
}

// Compares in constant time, so that the time does not show where they differ.
bool IsProof(absl::string_view bytes, const Digest& proof) {
  return proof.has_value() &&
         CRYPTO_memcmp(bytes.data(), proof->data(), proof->size()) == 0;
}

#else

Digest Hmac(absl::string_view, absl::string_view) { return std::nullopt; }
bool IsProof(absl::string_view, const Digest&) { return false; }

#endif

// Every part has a fixed size for each prover, so different inputs never give
// the same text.
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

std::string EncodeFrame(const Frame& frame) {
  std::string bytes(kMagic);
  bytes += static_cast<char>(kFrameVersion);
  bytes += static_cast<char>(frame.kind);
  bytes.append(2, '\0');
  AppendLittleEndian(static_cast<uint32_t>(frame.rank), bytes);
  AppendLittleEndian(frame.number, bytes);
  AppendLittleEndian(static_cast<uint32_t>(frame.payload.size()), bytes);
  return bytes + frame.payload;
}

Frame FailureFrame(const absl::Status& failure) {
  return {FrameKind::kFailure, 0, static_cast<uint32_t>(failure.code()),
          std::string(failure.message().substr(0, kMaxFailureBytes))};
}

absl::Status DecodeFailure(const Frame& frame) {
  const absl::StatusCode code =
      frame.number >= 1 && frame.number <= kLargestStatusCode
          ? static_cast<absl::StatusCode>(frame.number)
          : absl::StatusCode::kUnknown;
  std::string message = frame.payload;
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); },
      '?');
  return absl::Status(code, message);
}

void FrameReader::Append(absl::string_view bytes) {
  // Erases returned bytes only when they are at least half of the buffer, so
  // that the total cost of moving the other bytes stays linear.
  if (used_ >= bytes_.size() - used_) {
    bytes_.erase(0, used_);
    used_ = 0;
  }
  bytes_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  if (!error_.ok()) return error_;
  absl::StatusOr<std::optional<Frame>> frame = Parse();
  error_ = frame.status();
  return frame;
}

absl::StatusOr<std::optional<Frame>> FrameReader::Parse() {
  const absl::string_view bytes = absl::string_view(bytes_).substr(used_);
  const absl::string_view magic = bytes.substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size()))
    return absl::DataLossError("not a frame");
  if (bytes.size() > 4 && bytes[4] != static_cast<char>(kFrameVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", static_cast<unsigned char>(bytes[4]),
                     " of the protocol, and not ", kFrameVersion));
  }
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  const uint8_t kind = static_cast<uint8_t>(bytes[5]);
  if (!IsKind(kind) || bytes[6] != 0 || bytes[7] != 0) {
    return absl::DataLossError("a frame with a wrong header");
  }
  Frame frame;
  frame.kind = static_cast<FrameKind>(kind);
  if (!expected_.Has(frame.kind)) {
    return absl::DataLossError(
        absl::StrCat("a frame of kind ", kind, " out of turn"));
  }
  frame.rank = static_cast<int32_t>(LoadLittleEndian(bytes.substr(8)));
  frame.number = LoadLittleEndian(bytes.substr(12));
  const size_t size = LoadLittleEndian(bytes.substr(16));
  if (size < kPayloadSizes[kind].min || size > kPayloadSizes[kind].max) {
    return absl::DataLossError(
        absl::StrCat("a frame of kind ", kind, " with ", size, " bytes"));
  }
  if (bytes.size() < kFrameHeaderBytes + size) return std::nullopt;
  frame.payload = std::string(bytes.substr(kFrameHeaderBytes, size));
  used_ += kFrameHeaderBytes + size;
  return frame;
}

bool CanProve() { return Hmac("key", "message").has_value(); }

absl::StatusOr<Nonce> NewNonce() {
  Nonce nonce;
  // A signal does not interrupt a request of this size.
  if (getrandom(nonce.data(), nonce.size(), 0) !=
      static_cast<ssize_t>(nonce.size())) {
    return absl::UnavailableError(
        absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return nonce;
}

Frame GreetingFrame(const Nonce& server_nonce) {
  Frame frame = {FrameKind::kGreeting, 0, 0, ""};
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
  Frame frame = {FrameKind::kJoin, claim.rank, claim.world_size, ""};
  AppendBytes(rank_nonce, frame.payload);
  const Digest proof =
      Proof(token, kRankProves, server_nonce, RankNonceOf(frame), claim);
  AppendBytes(proof.value_or(Nonce{}), frame.payload);
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
  Frame frame = {FrameKind::kWelcome, 0, server_pid, ""};
  const Digest proof = Proof(token, kServerProves, server_nonce,
                             RankNonceOf(join), ClaimOfJoin(join));
  AppendBytes(proof.value_or(Nonce{}), frame.payload);
  return frame;
}

bool WelcomeKnowsToken(absl::string_view token, const Nonce& server_nonce,
                       const Frame& join, const Frame& welcome) {
  return IsProof(welcome.payload, Proof(token, kServerProves, server_nonce,
                                        RankNonceOf(join), ClaimOfJoin(join)));
}

}  // namespace lockstep
