// Who adds, sends and receives what in a reduction: the index arithmetic alone,
// without data or communication. It fixes the order of additions, which every
// algorithm and backend keeps to.
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

// The order of additions.
//
// A reduction of n elements over P ranks adds, for each element, x[0] .. x[P-1]
// in an order that depends on the size and P alone:
//
//   ring   (more than kTreeOrderBytes) The elements are cut into P segments
//          (SegmentOf); segment k is
//          (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks modulo P.
//   tree   (up to kTreeOrderBytes) A balanced binary tree over the ranks, the
//          same for every element: see TreeSplit.
//
// AllReduce and Reduce follow that, but for UniformAllReduce, which is always
// the tree; ReduceScatter always is
// (((x[k+1] + x[k+2]) + ...) + x[k-1]) + x[k] for part k, which is what a ring
// that ends at rank k adds.

// Bytes of the elements themselves, not of accumulators.
inline constexpr int64_t kTreeOrderBytes = 16 << 10;

constexpr bool InTreeOrder(int64_t bytes) { return bytes <= kTreeOrderBytes; }

// The tree. Let p be the largest power of two up to P, and r = P - p. The first
// 2r ranks are joined in neighbouring pairs, (0, 1), (2, 3), ...; each of the
// others is alone. That gives p groups in rank order, of which neighbours are
// joined: one and one, then two and two, and so on.

// p, for a world_size of at least 1.
constexpr int TreeGroups(int world_size) {
  int groups = 1;
  while (groups <= world_size / 2) groups *= 2;
  return groups;
}

// The first rank of a group; world_size for group p.
constexpr int TreeGroupBegin(int world_size, int group) {
  const int pairs = world_size - TreeGroups(world_size);
  return group + (group < pairs ? group : pairs);
}

// The group that a rank is in.
constexpr int TreeGroupOf(int world_size, int rank) {
  const int pairs = world_size - TreeGroups(world_size);
  return rank < 2 * pairs ? rank / 2 : rank - pairs;
}

// Where a node of the tree is split. A node is the ranks [begin, end), two at
// least; its value is that of [begin, split) plus that of [split, end), in this
// order. The root is [0, world_size), a rank alone a leaf.
constexpr int TreeSplit(int world_size, int begin, int end) {
  const int first = TreeGroupOf(world_size, begin);
  const int last = TreeGroupOf(world_size, end - 1);
  if (first == last) return begin + 1;
  return TreeGroupBegin(world_size, (first + last + 1) / 2);
}

// Which part of the data a rank sends and receives in each step of a ring.
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

// Who exchanges what with whom in recursive halving and doubling.
//
// The ranks form the groups of the tree, of one rank or two; one rank speaks
// for each group. In round s of log2(groups) group g meets group g xor 2^s,
// which holds the sums of the neighbouring 2^s groups over the same range of
// elements. Each takes half of that range, from which the two ranges of the
// next round come; so after the last round each group has, complete, a range of
// its own. Doubling goes through the rounds backwards, each group handing over
// what it has by then.
//
// A range of at most kTreeWholeBytes is not halved: both groups take all of it,
// and in doubling have it already. A message costs more than its bytes there.
//
// In a reduction to one root, doubling goes one way: of two that meet, the
// group on the root's side receives, and the other is done. Rabenseifner 2004,
// "Optimization of collective reduction operations".

// Bytes of the accumulators that travel.
inline constexpr int64_t kTreeWholeBytes = 1 << 10;

constexpr int TreeRounds(int world_size) {
  int rounds = 0;
  while ((2 << rounds) <= world_size) ++rounds;
  return rounds;
}

// Whether two ranks make up the group.
constexpr bool IsTreePair(int world_size, int group) {
  return group < world_size - TreeGroups(world_size);
}

// The rank that speaks for a group: its first, but for the root, which speaks
// for itself. root: the first rank where there is none.
constexpr int TreeSpeaker(int world_size, int group, int root) {
  return TreeGroupOf(world_size, root) == group
             ? root
             : TreeGroupBegin(world_size, group);
}

// The other rank of a pair.
constexpr int TreePartner(int rank) { return rank ^ 1; }

struct TreeRound {
  int peer_group;
  bool peer_is_earlier;  // Its sums stand left of the +.
  bool whole;            // The range is not halved.
  Segment mine;          // Part of the range of the round before.
  Segment peers;         // The rest of it, or where whole the same.
};

// What `group` does in `round` with the range that it has by then.
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

// The range that `group` has after `rounds` rounds over `count` elements.
constexpr Segment TreeRangeOf(int group, int rounds, int64_t count,
                              int64_t whole_elements) {
  Segment range = {0, count};
  for (int round = 0; round < rounds; ++round) {
    range = TreeRoundOf(group, round, range, whole_elements).mine;
  }
  return range;
}

// Whether, of the two that meet in `round`, `group` is the one on the way to
// the root's group.
constexpr bool IsOnRootSide(int group, int root_group, int round) {
  return ((group ^ root_group) >> round & 1) == 0;
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_SCHEDULE_H_
