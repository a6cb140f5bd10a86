// torch.randperm's two shuffles, arranged in blocks of draws.
#include "sampler/permutation.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "sampler/mersenne_twister.h"
#include "sampler/swap_places.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = MersenneTwister::kBlockSize;

// How many swaps ahead a place is on its way to the cache.
constexpr int kAhead = 128;

}  // namespace

namespace permutation_internal {

// Fisher-Yates from the front. The swaps stay behind the draws, so that a place
// has come from memory when it is needed.
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out) {
  std::iota(out.begin(), out.end(), 0);
  const auto size = static_cast<int64_t>(out.size());
  if (size == 0) return;
  SwapPlaces draws(seed, size);
  // Of the elements from `swapped` on. Beyond the last ones is something that
  // was a place before: to fetch it does no harm.
  std::array<uint32_t, SwapPlaces::kBlockSize + 2 * kAhead> places{};
  int64_t swapped = 0;
  for (int64_t drawn = 0; swapped < size;) {
    drawn += draws.Next(places.data() + (drawn - swapped));
    const int64_t end = drawn < size ? drawn - kAhead : size;
    const uint32_t* place = places.data();
    for (; swapped < end; ++swapped, ++place) {
      __builtin_prefetch(&out[place[kAhead]], 1);
      std::swap(out[swapped], out[*place]);
    }
    std::copy_n(place, drawn - swapped, places.data());
  }
}

// Fisher-Yates inside out: index i enters at a place in [0, i], and what was
// there moves to place i. A draw is two words, the high one first; a block has
// an even number of words, so no draw straddles two blocks.
void ShuffleByWideDraws(uint64_t seed, std::span<int32_t> out) {
  const auto size = static_cast<int64_t>(out.size());
  MersenneTwister twister(static_cast<uint32_t>(seed));
  std::array<int64_t, kBlockSize / 2> places;
  for (int64_t first = 0; first < size; first += kBlockSize / 2) {
    const MersenneTwister::Block& words = twister.NextBlock();
    const int64_t count = std::min<int64_t>(kBlockSize / 2, size - first);
    for (int64_t k = 0; k < count; ++k) {
      const uint64_t draw = (uint64_t{words[2 * k]} << 32) | words[2 * k + 1];
      places[k] =
          static_cast<int64_t>(draw % static_cast<uint64_t>(first + k + 1));
      __builtin_prefetch(&out[places[k]], 1);
    }
    for (int64_t k = 0; k < count; ++k) {
      const auto index = static_cast<int32_t>(first + k);
      out[index] = index;  // Ahead of the read: the place may be the same.
      out[index] = out[places[k]];
      out[places[k]] = index;
    }
  }
}

}  // namespace permutation_internal

void RandomPermutation(uint64_t seed, std::span<int32_t> out) {
  if (static_cast<int64_t>(out.size()) < kWideDrawSize) {
    permutation_internal::ShuffleByNarrowDraws(seed, out);
  } else {
    permutation_internal::ShuffleByWideDraws(seed, out);
  }
}

}  // namespace lockstep
