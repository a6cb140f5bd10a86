// What Ctrl-C does to a benchmark: the turn that it meets ends, the report
// keeps what was measured before, and the ranks leave nothing behind.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_

#include <signal.h>

#include "absl/status/status.h"

namespace lockstep::benchmarks {

// kCancelled, "interrupted by signal 2 (SIGINT)", if a signal has come that an
// InterruptGuard holds back; else OK.
absl::Status CheckInterrupted();

// Holds SIGHUP, SIGINT and SIGTERM back while it lives, but for those that are
// ignored, as under nohup. A second signal of the same kind ends the process at
// once. At most one lives at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  // If a signal has come, says so on standard error and ends the process by it,
  // as the shell that sent it expects.
  ~InterruptGuard();

 private:
  struct sigaction before_[3] = {};
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_
