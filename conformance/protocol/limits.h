// What a reader of the protocol's files takes; beyond, they are damaged.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_LIMITS_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_LIMITS_H_

#include <cstdint>

namespace lockstep {

inline constexpr int kMostRanksOfACase = 4096;
// Some ten million indices. In memory a document of single digits takes eight
// times its size, one of empty objects thirty times.
inline constexpr int64_t kMostJsonBytes = int64_t{64} << 20;
inline constexpr int64_t kMostTensorBytes = int64_t{1} << 30;
// Of a name, a version or a reason.
inline constexpr int64_t kMostTextBytes = 1 << 16;

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_LIMITS_H_
