// The clock of all measurements that compare times of several ranks.
#ifndef LOCKSTEP_BENCHMARKS_STEADY_CLOCK_H_
#define LOCKSTEP_BENCHMARKS_STEADY_CLOCK_H_

#include <chrono>

namespace lockstep {

// Seconds since the host started: the same clock in all of its processes, so
// that times from several ranks of one host compare.
inline double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_STEADY_CLOCK_H_
