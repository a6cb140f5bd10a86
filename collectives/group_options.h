// Settings of a group of ranks.
#ifndef LOCKSTEP_COLLECTIVES_GROUP_OPTIONS_H_
#define LOCKSTEP_COLLECTIVES_GROUP_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "collectives/algorithm.h"

namespace lockstep {

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
