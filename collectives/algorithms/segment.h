// How data is cut up: the index arithmetic alone.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_SEGMENT_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_SEGMENT_H_

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

// How many pieces of at most `piece` elements a segment of `count` fills.
constexpr int64_t PieceCount(int64_t count, int64_t piece) {
  return count / piece + (count % piece == 0 ? 0 : 1);
}

// The index-th of these pieces, index >= 0; empty past the last.
constexpr Segment PieceOf(Segment segment, int64_t piece, int64_t index) {
  if (index >= PieceCount(segment.count, piece)) {
    return {segment.begin + segment.count, 0};
  }
  return {segment.begin + index * piece,
          std::min(piece, segment.count - index * piece)};
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_SEGMENT_H_
