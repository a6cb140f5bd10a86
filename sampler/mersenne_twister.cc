// MT19937: the recurrence and the tempering.
#include "sampler/mersenne_twister.h"

#include <cstdint>

#include "sampler/avx2.h"

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

}  // namespace lockstep
