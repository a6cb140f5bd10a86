// Handles Ctrl-C in a benchmark: the turn under way ends, the report keeps what
// was measured before, and the ranks leave nothing behind.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_

#include <signal.h>

#include "absl/status/status.h"

namespace lockstep::benchmarks {

// Returns kCancelled, "interrupted by signal 2 (SIGINT)", if an InterruptGuard
// has held back a signal. Otherwise returns OK.
absl::Status CheckInterrupted();

// Holds back SIGHUP, SIGINT and SIGTERM while it lives, except ignored ones, as
// under nohup. A second signal of the same kind ends the process at once. At
// most one guard lives at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  // If a signal has arrived, reports it on standard error and ends the process
  // by that signal, as the shell that sent it expects.
  ~InterruptGuard();

 private:
  struct sigaction before_[3] = {};
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_INTERRUPT_H_
