// Which algorithm reduces.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHM_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHM_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

// How AllReduce and Reduce go about it. The bits do not depend on it: each
// algorithm keeps to the order of additions that algorithms/order.h gives the
// size, and one that cannot leaves that size to another
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
const char* Name(Algorithm algorithm);
std::optional<Algorithm> ParseAlgorithm(absl::string_view name);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHM_H_
