// Fisher-Yates from the back, arranged in blocks of draws.
#include "sampler/numpy_shuffle.h"

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "sampler/mersenne_twister.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = MersenneTwister::kBlockSize;

// The places that a block of draws gives the elements last, last - 1, ..., as
// many as it reaches, down to element 1; returns how many. A draw is cut to the
// bits of the element's number, and passed over if it still exceeds it. Up to
// half are, unpredictably, so that is no branch: the next draw overwrites it.
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
