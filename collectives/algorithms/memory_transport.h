// A transport between threads of a test. It keeps every guarantee of Transport
// and gives no others.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/algorithms/transport.h"

namespace lockstep {

using Piece = std::vector<std::byte>;

struct MemoryTransportOptions {
  int64_t max_piece_bytes = 64;
  int max_pieces = 2;
  // The longest time that Wait blocks, so that a deadlock fails and does not
  // hang.
  absl::Duration timeout = absl::Seconds(20);
  // The pieces that arrive in place of a sent piece; for controls. Called on
  // the sender's thread. At most max_pieces are under way.
  std::function<std::vector<Piece>(int from, int to, Piece piece)> harm = {};
};

// Calls `fn` on `world_size` threads, each with its rank's transport. Returns
// the results in rank order.
//
// Every piece has memory of its own, of exactly its size, which is freed with
// the piece. The address sanitizer thus reports an access past its end or after
// its release.
//
// Errors of Wait: kDeadlineExceeded, naming the rank that it waited for;
// kUnavailable as soon as that rank's fn has returned and no piece of that rank
// is left, or any rank's fn has returned an error.
std::vector<absl::Status> RunOverMemory(
    int world_size, const MemoryTransportOptions& options,
    const std::function<absl::Status(Transport&)>& fn);

// Returns the error of the lowest rank whose error is not kUnavailable. If all
// errors are kUnavailable, returns the lowest rank's; without an error, OK.
absl::Status FirstCause(std::span<const absl::Status> statuses);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_MEMORY_TRANSPORT_H_
