// The generator, and the shuffles, arranged in blocks of draws.
#include "sampler/permutation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "base/vector_unit.h"

// Each loop is written once, in a function marked LOCKSTEP_ALWAYS_INLINE that
// two other functions call. One of them is marked LOCKSTEP_TARGET_AVX2, so its
// copy of the loop is compiled for vectors of 256 bits. The other is compiled
// for any processor. BestVectorUnit selects the one that runs. Both compute the
// same integers.
#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))

#ifdef __x86_64__
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define LOCKSTEP_TARGET_AVX2
#endif

namespace lockstep {
namespace {

constexpr int kBlockSize = MersenneTwister::kBlockSize;
constexpr int kShift = 397;  // The shift of MT19937.

// Returns the next state word, made of the two words that are twisted and the
// word kShift ahead. Branch-free, so that the loops below vectorise.
LOCKSTEP_ALWAYS_INLINE uint32_t Twist(uint32_t upper, uint32_t lower,
                                      uint32_t ahead) {
  const uint32_t mixed = (upper & 0x80000000u) | (lower & 0x7fffffffu);
  return ahead ^ (mixed >> 1) ^ ((0u - (lower & 1u)) & 0x9908b0dfu);
}

LOCKSTEP_ALWAYS_INLINE uint32_t Temper(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

LOCKSTEP_ALWAYS_INLINE void Refill(uint32_t* state, uint32_t* draws) {
  for (int i = 0; i < kBlockSize - kShift; ++i) {
    state[i] = Twist(state[i], state[i + 1], state[i + kShift]);
  }
  for (int i = kBlockSize - kShift; i < kBlockSize - 1; ++i) {
    state[i] = Twist(state[i], state[i + 1], state[i + kShift - kBlockSize]);
  }
  state[kBlockSize - 1] =
      Twist(state[kBlockSize - 1], state[0], state[kShift - 1]);
  for (int i = 0; i < kBlockSize; ++i) draws[i] = Temper(state[i]);
}

void RefillAnywhere(uint32_t* state, uint32_t* draws) { Refill(state, draws); }

LOCKSTEP_TARGET_AVX2 void RefillWithAvx2(uint32_t* state, uint32_t* draws) {
  Refill(state, draws);
}

// Returns draw % divisor for 2 <= divisor < 2^31, by a division in double
// precision, which vectorises and the integer division does not.
//
// The quotient rounds to double without crossing an integer: it lies at least 1
// / divisor below the next integer and is under 2^32 / divisor. That is a
// relative distance of over 2^-32, against a unit round-off of 2^-53. The
// quotient is below 2^31, so it fits the signed conversion, the only one that
// SSE2 has. 2^31 is subtracted and added for the same reason.
LOCKSTEP_ALWAYS_INLINE uint32_t Remainder(uint32_t draw, int32_t divisor) {
  const double dividend =
      static_cast<double>(static_cast<int32_t>(draw ^ 0x80000000u)) +
      2147483648.0;
  const auto quotient = static_cast<int32_t>(dividend / divisor);
  return draw -
         static_cast<uint32_t>(quotient) * static_cast<uint32_t>(divisor);
}

// Computes the places of elements first, first + 1, ... `remaining` is the
// number of elements from `first` on.
LOCKSTEP_ALWAYS_INLINE void Convert(const uint32_t* draws, int count,
                                    uint32_t first, int32_t remaining,
                                    uint32_t* places) {
  for (int k = 0; k < count; ++k) {
    places[k] =
        first + static_cast<uint32_t>(k) + Remainder(draws[k], remaining - k);
  }
}

void ConvertAnywhere(const uint32_t* draws, int count, uint32_t first,
                     int32_t remaining, uint32_t* places) {
  Convert(draws, count, first, remaining, places);
}

LOCKSTEP_TARGET_AVX2 void ConvertWithAvx2(const uint32_t* draws, int count,
                                          uint32_t first, int32_t remaining,
                                          uint32_t* places) {
  Convert(draws, count, first, remaining, places);
}

// How many swaps before its use a place is prefetched into the cache.
constexpr int kPrefetchDistance = 128;

// Computes the places that a block of draws gives numpy's elements last, last -
// 1, ..., for as many elements as it suffices, down to element 1. Returns their
// number. A draw is cut to the bits of the element's number and rejected if it
// still exceeds that number. Up to half of the draws are rejected,
// unpredictably, so the loop has no branch for it: the next draw overwrites a
// rejected one.
int ComputePlaces(const MersenneTwister::Block& draws, uint32_t last,
                  std::array<uint32_t, kBlockSize>& places) {
  int count = 0;
  int next = 0;
  while (next < kBlockSize && last > 0) {
    const uint32_t mask = ~0u >> std::countl_zero(last);
    const uint32_t shorter = mask >> 1;  // Smaller `last` have fewer bits.
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

MersenneTwister::MersenneTwister(uint32_t seed) {
  state_[0] = seed;
  for (int i = 1; i < kBlockSize; ++i) {
    const uint32_t previous = state_[i - 1];
    state_[i] =
        1812433253u * (previous ^ (previous >> 30)) + static_cast<uint32_t>(i);
  }
}

const MersenneTwister::Block& MersenneTwister::NextBlock() {
  static const auto kRefill =
      BestVectorUnit() >= VectorUnit::kAvx2 ? RefillWithAvx2 : RefillAnywhere;
  kRefill(state_.data(), draws_.data());
  return draws_;
}

int SwapPlaces::Next(uint32_t* places) {
  static const auto kConvert =
      BestVectorUnit() >= VectorUnit::kAvx2 ? ConvertWithAvx2 : ConvertAnywhere;
  const int64_t left = size_ - next_;
  if (left == 0) return 0;
  // The last element has no partner to swap with, and takes no draw.
  int count = static_cast<int>(std::min<int64_t>(kBlockSize, left - 1));
  if (count > 0) {
    kConvert(twister_.NextBlock().data(), count, static_cast<uint32_t>(next_),
             static_cast<int32_t>(left), places);
  }
  if (count < kBlockSize) {
    places[count] = static_cast<uint32_t>(next_ + count);
    ++count;
  }
  next_ += count;
  return count;
}

namespace permutation_internal {

// Fisher-Yates from the front. The swaps lag behind the draws, so that a place
// has arrived from memory when it is needed.
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out) {
  std::iota(out.begin(), out.end(), 0);
  const auto size = static_cast<int64_t>(out.size());
  if (size == 0) return;
  SwapPlaces draws(seed, size);
  // The places of the elements from `swapped` on. The entries after the last of
  // them hold earlier places; prefetching these does no harm.
  std::array<uint32_t, SwapPlaces::kBlockSize + 2 * kPrefetchDistance> places{};
  int64_t swapped = 0;
  for (int64_t drawn = 0; swapped < size;) {
    drawn += draws.Next(places.data() + (drawn - swapped));
    const int64_t end = drawn < size ? drawn - kPrefetchDistance : size;
    const uint32_t* place = places.data();
    for (; swapped < end; ++swapped, ++place) {
      __builtin_prefetch(&out[place[kPrefetchDistance]], 1);
      std::swap(out[swapped], out[*place]);
    }
    std::copy_n(place, drawn - swapped, places.data());
  }
}

// Fisher-Yates inside out: index i enters at a place in [0, i], and the element
// that was there moves to place i. A draw is two words, the high one first. A
// block has an even number of words, so no draw straddles two blocks.
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
      // Written before the read: the place may be the same.
      out[index] = index;
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
        ComputePlaces(twister.NextBlock(), static_cast<uint32_t>(last), places);
    for (int k = 0; k < count; ++k) __builtin_prefetch(&values[places[k]], 1);
    for (int k = 0; k < count; ++k) {
      std::swap(values[last - k], values[places[k]]);
    }
    last -= count;
  }
}

}  // namespace lockstep
