// The shuffles, arranged in blocks of draws.
#include "sampler/permutation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "sampler/mersenne_twister.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = MersenneTwister::kBlockSize;

// How many swaps ahead a place is on its way to the cache.
constexpr int kAhead = 128;

// The places that a block of draws gives numpy's elements last, last - 1, ...,
// as many as it reaches, down to element 1; returns how many. A draw is cut to
// the bits of the element's number, and passed over if it still exceeds it. Up
// to half are, unpredictably, so that is no branch: the next draw overwrites
// it.
int Places(const MersenneTwister::Block& draws, uint32_t last,
           std::array<uint32_t, kBlockSize>& places) {
  int count = 0;
  int next = 0;
  while (next < kBlockSize && last > 0) {
    const uint32_t mask = ~0u >> std::countl_zero(last);
    const uint32_t shorter = mask >> 1;  // From here on it has fewer bits.
    while (next < kBlockSize && last > shorter) {
      const uint32_t place = draws[next++] & mask;
      places[count] = place;
      const uint32_t accepted = place <= last ? 1 : 0;
      count += static_cast<int>(accepted);
      last -= accepted;
    }
  }
  return count;
}

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

// Fisher-Yates from the back.
void NumpyShuffle(uint32_t seed, std::span<int32_t> values) {
  MersenneTwister twister(seed);
  std::array<uint32_t, kBlockSize> places;
  for (int64_t last = static_cast<int64_t>(values.size()) - 1; last > 0;) {
    const int count =
        Places(twister.NextBlock(), static_cast<uint32_t>(last), places);
    for (int k = 0; k < count; ++k) __builtin_prefetch(&values[places[k]], 1);
    for (int k = 0; k < count; ++k) {
      std::swap(values[last - k], values[places[k]]);
    }
    last -= count;
  }
}

}  // namespace lockstep
