// Who exchanges what with whom in recursive halving and doubling: the index
// arithmetic alone, without data or communication.
//
// The ranks form the groups of order.h, of one rank or two; one rank speaks for
// each group. In round s of log2(groups) group g meets group g xor 2^s, which
// holds the sums of the neighbouring 2^s groups over the same range of
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
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_SCHEDULE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_SCHEDULE_H_

#include <cstdint>

#include "collectives/algorithms/order.h"
#include "collectives/algorithms/segment.h"

namespace lockstep {

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

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_TREE_SCHEDULE_H_
