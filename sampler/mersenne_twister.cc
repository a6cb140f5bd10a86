#include "sampler/mersenne_twister.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

constexpr int kSize = MersenneTwister::kBlockSize;
constexpr int kShift = 397;

// The next state word from the two words that it is twisted from and the word
// kShift ahead. Branch-free, so that the loops below vectorise.
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
  for (int i = 0; i < kSize - kShift; ++i) {
    state[i] = Twist(state[i], state[i + 1], state[i + kShift]);
  }
  for (int i = kSize - kShift; i < kSize - 1; ++i) {
    state[i] = Twist(state[i], state[i + 1], state[i + kShift - kSize]);
  }
  state[kSize - 1] = Twist(state[kSize - 1], state[0], state[kShift - 1]);
  for (int i = 0; i < kSize; ++i) draws[i] = Temper(state[i]);
}

void RefillAnywhere(uint32_t* state, uint32_t* draws) { Refill(state, draws); }

LOCKSTEP_TARGET_AVX2 void RefillWithAvx2(uint32_t* state, uint32_t* draws) {
  Refill(state, draws);
}

// draw % divisor for 2 <= divisor < 2^31, by a division in double precision:
// unlike the integer one it vectorises. The quotient rounds to double without
// crossing an integer, since it lies at least 1 / divisor below the next one
// and is under 2^32 / divisor, a relative distance of over 2^-32 against a
// unit round-off of 2^-53. It is below 2^31, so it fits the signed conversion,
// the only one that SSE2 has; 2^31 is taken off and added for the same reason.
LOCKSTEP_ALWAYS_INLINE uint32_t Remainder(uint32_t draw, int32_t divisor) {
  const double dividend =
      static_cast<double>(static_cast<int32_t>(draw ^ 0x80000000u)) +
      2147483648.0;
  const auto quotient = static_cast<int32_t>(dividend / divisor);
  return draw -
         static_cast<uint32_t>(quotient) * static_cast<uint32_t>(divisor);
}

// The places of elements first, first + 1, ...; `remaining` is the number of
// elements from the first of them on.
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

}  // namespace

MersenneTwister::MersenneTwister(uint32_t seed) {
  state_[0] = seed;
  for (int i = 1; i < kSize; ++i) {
    const uint32_t previous = state_[i - 1];
    state_[i] =
        1812433253u * (previous ^ (previous >> 30)) + static_cast<uint32_t>(i);
  }
}

const MersenneTwister::Block& MersenneTwister::NextBlock() {
  static const auto kRefill = HasAvx2() ? RefillWithAvx2 : RefillAnywhere;
  kRefill(state_.data(), draws_.data());
  return draws_;
}

int SwapPlaces::Next(uint32_t* places) {
  static const auto kConvert = HasAvx2() ? ConvertWithAvx2 : ConvertAnywhere;
  const int64_t left = size_ - next_;
  if (left == 0) return 0;
  // The last element has nothing to change places with, and takes no draw.
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

}  // namespace lockstep
