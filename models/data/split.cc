#include "models/data/split.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/counter_random.h"
#include "models/data/dataset.h"

namespace lockstep {
namespace {

// Separates these random numbers from other numbers of the same seed.
constexpr uint64_t kSplit = 0x73706c6974;  // "split".

}  // namespace

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> whole,
                             std::vector<int64_t> indices)
    : whole_(std::move(whole)), indices_(std::move(indices)) {}

SplitIndices DrawSplit(int64_t size, double fraction, uint64_t seed) {
  const CounterRandom random(seed, kSplit);
  // A random number and an index.
  std::vector<std::pair<uint64_t, int64_t>> drawn;
  drawn.reserve(size);
  for (int64_t i = 0; i < size; ++i) drawn.emplace_back(random.Bits(i), i);
  std::ranges::sort(drawn);
  const int64_t tests = std::clamp<int64_t>(
      std::llround(fraction * static_cast<double>(size)), 1, size - 1);
  SplitIndices split;
  for (int64_t i = 0; i < size; ++i) {
    (i < tests ? split.test : split.train).push_back(drawn[i].second);
  }
  std::ranges::sort(split.test);
  std::ranges::sort(split.train);
  return split;
}

}  // namespace lockstep
