// A limit on a wait that may have several parts.
#ifndef LOCKSTEP_BASE_DEADLINE_H_
#define LOCKSTEP_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

// Passes once `timeout` has gone by since it was made, on a clock that nobody
// sets; never for an infinite timeout.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : timeout_(timeout) {}

  // Since it was made.
  absl::Duration elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }
  // Zero once it has passed.
  absl::Duration remaining() const {
    return std::max(timeout_ - elapsed(), absl::ZeroDuration());
  }
  bool passed() const { return remaining() == absl::ZeroDuration(); }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
  absl::Duration timeout_;
};

// The time that is left, for poll(): rounded up, since a wait of 0 would spin;
// at most 12 days, which fit into an int, after which the caller asks again.
inline int PollMilliseconds(const Deadline& deadline) {
  const int64_t left = absl::ToInt64Milliseconds(
      absl::Ceil(deadline.remaining(), absl::Milliseconds(1)));
  return static_cast<int>(std::min<int64_t>(left, 1 << 30));
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_DEADLINE_H_
