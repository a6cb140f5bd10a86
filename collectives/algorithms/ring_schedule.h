// Which part of the data a rank sends and receives in each step of a ring: the
// index arithmetic alone, without data or communication.
//
// The data is cut into P = world_size segments. In step s rank r sends segment
// r - s and receives segment r - 1 - s (mod P), and sends it on in the next
// step. Each segment thus travels round the ring from the rank of its own
// number, one rank a step:
//   steps 0 .. P-2    each rank adds its own values to the segment it receives,
//                     so segment k ends, complete, at rank k - 1;
//   steps P-1 .. 2P-3 the complete segments go round once more, and replace.
// So segment k is (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks mod P.
//
// An all-gather is P-1 steps that replace. A reduce is the first P-1 steps; the
// complete segments then go straight to the root. In a reduce-scatter part k
// has to end at rank k, so it starts one rank later, at k + 1: rank r takes the
// steps that rank r - 1 takes in an all-reduce.
// Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms".
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_SCHEDULE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_SCHEDULE_H_

#include "collectives/algorithms/segment.h"

namespace lockstep {

// The remainder in [0, world_size), also of a negative rank.
constexpr int RankModulo(int rank, int world_size) {
  return (rank % world_size + world_size) % world_size;
}

// Steps of a reduce-scatter or an all-gather, and of an all-reduce, which is
// one after the other.
constexpr int HalfRingSteps(int world_size) { return world_size - 1; }
constexpr int AllReduceSteps(int world_size) { return 2 * (world_size - 1); }

// The segment that `rank` sends, or receives, in `step`.
constexpr int SentSegment(int rank, int world_size, int step) {
  return RankModulo(rank - step, world_size);
}
constexpr int ReceivedSegment(int rank, int world_size, int step) {
  return RankModulo(rank - 1 - step, world_size);
}

// The segment that a reduction completes at `rank`.
constexpr int CompletedSegment(int rank, int world_size) {
  return RankModulo(rank + 1, world_size);
}

// The rank whose steps in an all-reduce `rank` takes in a reduce-scatter.
constexpr int ReduceScatterRank(int rank, int world_size) {
  return RankModulo(rank - 1, world_size);
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_RING_SCHEDULE_H_
