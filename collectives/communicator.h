// The collectives interface: what every backend offers and conformance holds
// it to.
#ifndef LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "collectives/buffer.h"

namespace lockstep {

// One rank's membership in a group of `world_size` ranks that issue the same
// calls in the same order. Not thread safe: one thread at a time uses one rank.
//
// Every call compares itself with what the other ranks called (operation,
// element count, type, root) before any data moves, so it is also a point that
// no rank passes before all have reached it.
//
// Errors, the same for every call:
//   kInvalidArgument   the ranks disagree, or this rank's arguments are wrong;
//                      the message says which rank asked for what.
//   kUnavailable       a rank died or left the group; the message names it.
//   kDeadlineExceeded  a rank did not come in time; the message names it.
// The data is then unspecified, and every later call returns
// kFailedPrecondition with the first cause.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.

  // Replaces `data` with its element-wise sum over all ranks; blocks until it
  // is readable. Every rank ends with the same bits. The order of the additions
  // depends on the count and the world size alone.
  //
  // data: same count and type on every rank, 0 elements allowed.
  // Cost: 2 (P-1)/P * size bytes sent per rank, in 2 (P-1) steps (ring;
  // Patarasuk & Yuan 2009).
  virtual absl::Status AllReduceSum(Buffer data) = 0;

  // Replaces `data` with the root's, bit for bit.
  // data: same size on every rank, 0 bytes allowed. Cost: size bytes sent by
  // each rank but the last of the ring.
  virtual absl::Status Broadcast(std::span<std::byte> data, int root) = 0;

  // Concatenates every rank's `input` in rank order into `output`.
  // input: the same size n on every rank, 0 allowed. output: world_size() * n
  // bytes, disjoint from input or with input at its own place in output.
  // Cost: (P-1) * n bytes sent per rank, in P-1 steps.
  virtual absl::Status AllGather(std::span<const std::byte> input,
                                 std::span<std::byte> output) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier() = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COMMUNICATOR_H_
