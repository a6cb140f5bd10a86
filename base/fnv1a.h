// The FNV-1a hash of bytes (Fowler, Noll & Vo; draft-eastlake-fnv). It is the
// same in every process. It is not for secrets, and not against an adversary.
#ifndef LOCKSTEP_BASE_FNV1A_H_
#define LOCKSTEP_BASE_FNV1A_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace lockstep {

// The hash of no bytes.
inline constexpr uint64_t kFnv1aOffsetBasis = 0xcbf29ce484222325;

// Returns the hash of `bytes` behind those that gave `hash`. Cost: a
// multiplication per byte.
constexpr uint64_t Fnv1a(std::span<const std::byte> bytes,
                         uint64_t hash = kFnv1aOffsetBasis) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

inline uint64_t Fnv1a(absl::string_view text,
                      uint64_t hash = kFnv1aOffsetBasis) {
  return Fnv1a(std::as_bytes(std::span(text.data(), text.size())), hash);
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_FNV1A_H_
