// Selects the part of a grid of test cases that every run tries.
//
// A test over a grid that takes minutes has two targets over one library
// (exhaustive_shards in tools/testing/defs.bzl). X_test tries a slice of the
// grid. X_test_exhaustive, which --config=exhaustive runs, tries all of it.
#ifndef LOCKSTEP_BASE_SLICE_H_
#define LOCKSTEP_BASE_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/counter_random.h"

namespace lockstep {

inline bool IsExhaustive() {
  return std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr;
}

// Returns all of `grid` in an exhaustive run. Otherwise returns its first case
// and about one in `parts` of the other cases. A hash of index and salt
// (splitmix64) selects the cases, so a slice does not follow the loops that
// made the grid and is the same on every machine. Another salt selects other
// cases.
template <typename T>
std::vector<T> SliceOf(std::vector<T> grid, uint64_t parts, uint64_t salt = 0) {
  if (IsExhaustive()) return grid;
  std::vector<T> slice;
  for (size_t i = 0; i < grid.size(); ++i) {
    const uint64_t hash = MixBits((i + (salt << 32)) * 0x9e3779b97f4a7c15);
    if (i == 0 || hash % parts == 0) {
      slice.push_back(std::move(grid[i]));
    }
  }
  return slice;
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_SLICE_H_
