// The order of additions, which every algorithm and backend keeps to.
//
// A reduction of n elements over P ranks adds, for each element, x[0] .. x[P-1]
// in an order that depends on the size and P alone:
//
//   ring   (more than kTreeOrderBytes) The elements are cut into P segments
//          (segment.h); segment k is
//          (((x[k] + x[k+1]) + x[k+2]) + ...) + x[k-1], ranks modulo P.
//   tree   (up to kTreeOrderBytes) A balanced binary tree over the ranks, the
//          same for every element: see TreeSplit.
//
// AllReduce and Reduce follow that, but for UniformAllReduce, which is always
// the tree; ReduceScatter always is
// (((x[k+1] + x[k+2]) + ...) + x[k-1]) + x[k] for part k, which is what a ring
// that ends at rank k adds.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_ORDER_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_ORDER_H_

#include <cstdint>

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_ORDER_H_
