// torch.randperm's two shuffles, arranged in blocks of draws.
#include "sampler/permutation.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "sampler/mersenne_twister.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = MersenneTwister::kBlockSize;

// draw % divisor for 2 <= divisor < 2^31, by a division in double precision:
// unlike the integer one it vectorises. The quotient rounds to double without
// crossing an integer, since it lies at least 1 / divisor below the next one
// and is under 2^32 / divisor, a relative distance of over 2^-32 against a
// unit round-off of 2^-53. It is below 2^31, so it fits the signed conversion,
// the only one that SSE2 has; 2^31 is taken off and added for the same reason.
inline uint32_t Remainder(uint32_t draw, int32_t divisor) {
  const double dividend =
      static_cast<double>(static_cast<int32_t>(draw ^ 0x80000000u)) +
      2147483648.0;
  const auto quotient = static_cast<int32_t>(dividend / divisor);
  return draw -
         static_cast<uint32_t>(quotient) * static_cast<uint32_t>(divisor);
}

}  // namespace

namespace permutation_internal {

// Fisher-Yates from the front: element i changes places with one of [i, n).
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out) {
  std::iota(out.begin(), out.end(), 0);
  const int64_t swaps = static_cast<int64_t>(out.size()) - 1;
  MersenneTwister twister(static_cast<uint32_t>(seed));
  std::array<uint32_t, kBlockSize> offsets;
  for (int64_t first = 0; first < swaps; first += kBlockSize) {
    const MersenneTwister::Block& draws = twister.NextBlock();
    const int count =
        static_cast<int>(std::min<int64_t>(kBlockSize, swaps - first));
    const auto remaining = static_cast<int32_t>(swaps + 1 - first);
    for (int k = 0; k < count; ++k) {
      offsets[k] = Remainder(draws[k], remaining - k);
    }
    int32_t* const block = out.data() + first;
    for (int k = 0; k < count; ++k) __builtin_prefetch(block + k + offsets[k]);
    for (int k = 0; k < count; ++k) std::swap(block[k], block[k + offsets[k]]);
  }
}

// Fisher-Yates inside out: index i enters at a place in [0, i], and what was
// there moves to place i. A draw is two words, the high one first; a block has
// an even number of words, so no draw straddles two blocks.
void ShuffleByWideDraws(uint64_t seed, std::span<int32_t> out) {
  const auto size = static_cast<int64_t>(out.size());
  MersenneTwister twister(static_cast<uint32_t>(seed));
  for (int64_t first = 0; first < size; first += kBlockSize / 2) {
    const MersenneTwister::Block& words = twister.NextBlock();
    const int64_t end = std::min<int64_t>(first + kBlockSize / 2, size);
    for (int64_t i = first; i < end; ++i) {
      const uint32_t* pair = words.data() + 2 * (i - first);
      const uint64_t draw = (uint64_t{pair[0]} << 32) | pair[1];
      const uint64_t place = draw % static_cast<uint64_t>(i + 1);
      out[i] = static_cast<int32_t>(i);  // Ahead of the read: place may be i.
      out[i] = out[place];
      out[place] = static_cast<int32_t>(i);
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
