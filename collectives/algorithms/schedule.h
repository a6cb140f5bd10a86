// The schedule of a reduction: the segments that each rank adds, sends and
// receives. It is index arithmetic only, without data or communication. It
// fixes the order of additions, which every algorithm and backend keeps.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_SCHEDULE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

namespace lockstep {

// Elements [begin, begin + count).
struct Segment {
  int64_t begin;
  int64_t count;

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Returns the index-th of `parts` segments of [0, count). Segments are in
// order; their sizes differ by at most one, with the longer ones first.
constexpr Segment SegmentOf(int64_t count, int parts, int index) {
  const int64_t size = count / parts;
  const int64_t longer = count % parts;
  return {index * size + std::min<int64_t>(index, longer),
          size + (index < longer ? 1 : 0)};
}

// Returns the number of pieces of at most `piece` elements in a segment of
// `count` elements.
constexpr int64_t PieceCount(int64_t count, int64_t piece) {
  return count / piece + (count % piece == 0 ? 0 : 1);
}

// Returns the index-th of these pieces, index >= 0; an empty one past the last.
constexpr Segment PieceOf(Segment segment, int64_t piece, int64_t index) {
  if (index >= PieceCount(segment.count, piece)) {
    return {segment.begin + segment.count, 0};
  }
  return {segment.begin + index * piece,
          std::min(piece, segment.count - index * piece)};
}

// The order of additions.
//
// A reduction of n elements over P ranks adds, for each element, x[0] .. x[P-1]
// in an order that depends only on the size and P:
//
//   ring   (more than kTreeOrderBytes) The elements are cut into P segments
//          (SegmentOf); segment k is
//          (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks modulo P.
//   tree   (up to kTreeOrderBytes) A balanced binary tree over the ranks, the
//          same for every element: see TreeSplit.
//
// AllReduce and Reduce use this rule. UniformAllReduce is always the tree. For
// part k, ReduceScatter is always
// (((x[k+1] + x[k+2]) + ...) + x[k-1]) + x[k],
// the order of a ring that ends at rank k.

// The largest reduction in tree order, in bytes of the elements, not of
// accumulators.
inline constexpr int64_t kTreeOrderBytes = 16 << 10;

constexpr bool InTreeOrder(int64_t bytes) { return bytes <= kTreeOrderBytes; }

// The tree. Let p be the largest power of two up to P, and r = P - p. The first
// 2r ranks are joined in neighbouring pairs, (0, 1), (2, 3), ...; each later
// rank is a group by itself. The result is p groups in rank order. Neighbouring
// groups are then joined: one and one, then two and two, and so on.

// Returns p, for a world_size of at least 1.
constexpr int TreeGroups(int world_size) {
  int groups = 1;
  while (groups <= world_size / 2) groups *= 2;
  return groups;
}

// Returns the first rank of a group; world_size for group p.
constexpr int TreeGroupBegin(int world_size, int group) {
  const int pairs = world_size - TreeGroups(world_size);
  return group + (group < pairs ? group : pairs);
}

// Returns the group that a rank is in.
constexpr int TreeGroupOf(int world_size, int rank) {
  const int pairs = world_size - TreeGroups(world_size);
  return rank < 2 * pairs ? rank / 2 : rank - pairs;
}

// Returns the rank at which a node of the tree is split. A node is the ranks
// [begin, end), at least two. Its value is that of [begin, split) plus that of
// [split, end), in this order. The root is [0, world_size); a single rank is a
// leaf.
constexpr int TreeSplit(int world_size, int begin, int end) {
  const int first = TreeGroupOf(world_size, begin);
  const int last = TreeGroupOf(world_size, end - 1);
  if (first == last) return begin + 1;
  return TreeGroupBegin(world_size, (first + last + 1) / 2);
}

// The part of the data that a rank sends and receives in each step of a ring.
//
// The data is cut into P = world_size segments. In step s rank r sends segment
// r - s and receives segment r - 1 - s (mod P). It sends the received segment
// in the next step. Segment k thus starts at rank k and travels round the ring,
// one rank a step:
//   steps 0 .. P-2    each rank adds its own values to the segment it receives,
//                     so segment k ends, complete, at rank k - 1;
//   steps P-1 .. 2P-3 the complete segments go round once more, and replace.
// Segment k is then (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks mod P.
//
// An all-gather is P-1 steps that replace. A reduce is the first P-1 steps; the
// complete segments then go straight to the root. In a reduce-scatter part k
// must end at rank k, so it starts one rank later, at k + 1: rank r takes the
// steps that rank r - 1 takes in an all-reduce. Source: Patarasuk & Yuan 2009,
// "Bandwidth optimal all-reduce algorithms".

// Returns the remainder in [0, world_size), also of a negative rank.
constexpr int RankModulo(int rank, int world_size) {
  return (rank % world_size + world_size) % world_size;
}

// The number of steps of a reduce-scatter or an all-gather, and of an
// all-reduce, which runs both.
constexpr int HalfRingSteps(int world_size) { return world_size - 1; }
constexpr int AllReduceSteps(int world_size) { return 2 * (world_size - 1); }

// Return the segment that `rank` sends, or receives, in `step`.
constexpr int SentSegment(int rank, int world_size, int step) {
  return RankModulo(rank - step, world_size);
}
constexpr int ReceivedSegment(int rank, int world_size, int step) {
  return RankModulo(rank - 1 - step, world_size);
}

// Returns the segment that a reduction completes at `rank`.
constexpr int CompletedSegment(int rank, int world_size) {
  return RankModulo(rank + 1, world_size);
}

// Returns the rank whose all-reduce steps `rank` takes in a reduce-scatter.
constexpr int ReduceScatterRank(int rank, int world_size) {
  return RankModulo(rank - 1, world_size);
}

// Recursive halving and doubling.
//
// The ranks form the groups of the tree, each of one rank or two. One rank
// speaks for each group. There are log2(groups) rounds. In round s group g
// meets group g xor 2^s. That group holds the sums of the neighbouring 2^s
// groups over the same range of elements. Each group takes half of that range,
// as its range for the next round. After the last round each group has a
// complete range of its own. Doubling runs the rounds backwards: in each, a
// group sends the complete ranges that it has.
//
// A range of at most kTreeWholeBytes is not halved, because a message of that
// size costs more than its bytes. Both groups take all of it, and in doubling
// have it already.
//
// In a reduction to one root, doubling goes one way. When two groups meet, the
// group on the root's side receives, and the other group is done. Source:
// Rabenseifner 2004, "Optimization of collective reduction operations".

// The largest range that is not halved, in bytes of the accumulators sent.
inline constexpr int64_t kTreeWholeBytes = 1 << 10;

constexpr int TreeRounds(int world_size) {
  int rounds = 0;
  while ((2 << rounds) <= world_size) ++rounds;
  return rounds;
}

// Returns whether the group has two ranks.
constexpr bool IsTreePair(int world_size, int group) {
  return group < world_size - TreeGroups(world_size);
}

// Returns the rank that speaks for a group: the root in its own group, else the
// group's first rank. Without a root, pass rank 0.
constexpr int TreeSpeaker(int world_size, int group, int root) {
  return TreeGroupOf(world_size, root) == group
             ? root
             : TreeGroupBegin(world_size, group);
}

// Returns the other rank of a pair.
constexpr int TreePartner(int rank) { return rank ^ 1; }

struct TreeRound {
  int other_group;
  bool other_is_earlier;  // The other group's sums stand left of the +.
  bool whole;             // The range is not halved.
  // The part of the previous round's range that this group takes.
  Segment mine;
  // The other group's part, or the same range if `whole`.
  Segment peers;
};

// Returns the work of `group` in `round`, which begins with `range`.
constexpr TreeRound TreeRoundOf(int group, int round, Segment range,
                                int64_t whole_elements) {
  const int peer = group ^ (1 << round);
  const bool lower = group < peer;
  if (range.count <= whole_elements) return {peer, !lower, true, range, range};
  const Segment half = SegmentOf(range.count, 2, lower ? 0 : 1);
  const Segment rest = SegmentOf(range.count, 2, lower ? 1 : 0);
  return {peer,
          !lower,
          false,
          {range.begin + half.begin, half.count},
          {range.begin + rest.begin, rest.count}};
}

// Returns the range that `group` has after `rounds` rounds over `count`
// elements.
constexpr Segment TreeRangeOf(int group, int rounds, int64_t count,
                              int64_t whole_elements) {
  Segment range = {0, count};
  for (int round = 0; round < rounds; ++round) {
    range = TreeRoundOf(group, round, range, whole_elements).mine;
  }
  return range;
}

// Returns whether `group` is on the root's side in `round`: of the two groups
// that meet, it is the one on the way to the root's group.
constexpr bool IsOnRootSide(int group, int root_group, int round) {
  return ((group ^ root_group) >> round & 1) == 0;
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_SCHEDULE_H_
