// A transport between threads of a test, which keeps every promise of
// Transport and not more.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/algorithms/transport.h"

namespace lockstep {

struct MemoryTransportOptions {
  int64_t max_piece_bytes = 64;
  int max_pieces = 2;
  // How long a Wait lasts: a deadlock fails, and does not hang.
  absl::Duration timeout = absl::Seconds(20);
};

// Calls `fn` on `world_size` threads, each with its rank's transport, and
// returns what each returned, in rank order.
//
// Every piece is memory of its own, of its very size, and released with the
// piece, so that the address sanitizer sees what is touched beyond or after it.
//
// Wait: kDeadlineExceeded, naming the rank waited for; kUnavailable as soon as
// that rank's fn has returned and nothing of it is left, or any rank's has
// returned an error.
std::vector<absl::Status> RunOverMemory(
    int world_size, const MemoryTransportOptions& options,
    const std::function<absl::Status(Transport&)>& fn);

// The lowest rank's error that is not kUnavailable; else its kUnavailable; else
// OK.
absl::Status FirstCause(std::span<const absl::Status> statuses);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_
