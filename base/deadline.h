// A time limit for a wait that may have several parts.
#ifndef LOCKSTEP_BASE_DEADLINE_H_
#define LOCKSTEP_BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

// A deadline that passes `timeout` after its construction. It uses the steady
// clock, which nobody can set. With an infinite timeout it never passes.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : timeout_(timeout) {}

  // Returns the time since construction.
  absl::Duration elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }
  // Returns the time that is left, or zero once the deadline has passed.
  absl::Duration remaining() const {
    return std::max(timeout_ - elapsed(), absl::ZeroDuration());
  }
  bool passed() const { return remaining() == absl::ZeroDuration(); }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
  absl::Duration timeout_;
};

// Returns the remaining time in milliseconds, for poll(). The time is rounded
// up, since a wait of 0 would spin. It is at most 2^30 ms (12 days), which fits
// into an int; a caller with a later deadline polls again.
inline int PollMilliseconds(const Deadline& deadline) {
  const int64_t left = absl::ToInt64Milliseconds(
      absl::Ceil(deadline.remaining(), absl::Milliseconds(1)));
  return static_cast<int>(std::min<int64_t>(left, 1 << 30));
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_DEADLINE_H_
