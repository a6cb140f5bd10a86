// Settings of a group of ranks.
#ifndef LOCKSTEP_COLLECTIVES_GROUP_OPTIONS_H_
#define LOCKSTEP_COLLECTIVES_GROUP_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep {

// How AllReduce and Reduce go about it. The bits do not depend on it: each
// algorithm keeps to the order of additions that algorithms/schedule.h gives
// the size, and one that cannot leaves that size to another
// (algorithms/over_transport.h says which). kAuto chooses by size and by what
// the ranks share.
enum class Algorithm : int32_t {
  kAuto,
  kRing,    // Round the ring in pieces: bandwidth-optimal over messages.
  kTree,    // Recursive halving and doubling: fewest messages.
  kDirect,  // Each rank reduces its slice straight from its peers' memory.
};

inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kAuto, Algorithm::kRing, Algorithm::kTree, Algorithm::kDirect};

// "auto", "ring", "tree", "direct".
constexpr const char* Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kDirect:
      return "direct";
  }
  return "unknown algorithm";
}
inline std::optional<Algorithm> ParseAlgorithm(absl::string_view name) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == Name(algorithm)) return algorithm;
  }
  return std::nullopt;
}

// Ranks that a group of one host may have: a set of ranks fits in 64 bits.
inline constexpr int kMaxWorldSize = 64;

struct GroupOptions {
  // How long a call, or joining the group, waits without progress for a rank
  // that is alive but does not come. A dead rank is reported at once.
  absl::Duration timeout = absl::Seconds(60);

  // The largest piece of a message that moves at once between two ranks: a
  // multiple of 64, at most 16 MiB. Rank 0's value holds for the group. Results
  // do not depend on it.
  int64_t slot_bytes = 128 << 10;

  // Rank 0's value holds for the group.
  Algorithm algorithm = Algorithm::kAuto;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUP_OPTIONS_H_
