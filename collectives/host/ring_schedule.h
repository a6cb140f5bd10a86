// Which part of the data a rank sends and receives in each step of a ring: the
// index arithmetic alone, without data or communication.
//
// The data is cut into P = world_size segments. In step s rank r sends segment
// r - s and receives segment r - 1 - s (mod P). Each segment thus travels round
// the ring from the rank of its own number, one rank a step:
//   steps 0 .. P-2    each rank adds its own values to the segment it receives,
//                     so segment k ends, complete, at rank k - 1;
//   steps P-1 .. 2P-3 the complete segments go round once more, and replace.
// So segment k is (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks mod P.
// An all-gather is the first P-1 steps, replacing.
// Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms".
#ifndef LOCKSTEP_COLLECTIVES_HOST_RING_SCHEDULE_H_
#define LOCKSTEP_COLLECTIVES_HOST_RING_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

namespace lockstep {

// Elements [begin, begin + count).
struct Segment {
  int64_t begin;
  int64_t count;

  friend bool operator==(const Segment&, const Segment&) = default;
};

// The index-th of `parts` segments of [0, count): in order, and their sizes
// differ by at most one, the longer ones first.
constexpr Segment SegmentOf(int64_t count, int parts, int index) {
  const int64_t size = count / parts;
  const int64_t longer = count % parts;
  return {index * size + std::min<int64_t>(index, longer),
          size + (index < longer ? 1 : 0)};
}

// The remainder in [0, world_size), also of a negative rank.
constexpr int RankModulo(int rank, int world_size) {
  return (rank % world_size + world_size) % world_size;
}

// Steps of a ring all-reduce. In the first half of them a rank adds.
constexpr int AllReduceSteps(int world_size) { return 2 * (world_size - 1); }

// The segment that `rank` sends, or receives, in `step`.
constexpr int SentSegment(int rank, int world_size, int step) {
  return RankModulo(rank - step, world_size);
}
constexpr int ReceivedSegment(int rank, int world_size, int step) {
  return RankModulo(rank - 1 - step, world_size);
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_RING_SCHEDULE_H_
