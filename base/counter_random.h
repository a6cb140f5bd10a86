// Random numbers that are a function of a key and a counter, without state. A
// number does not depend on the caller or on the order of calls.
#ifndef LOCKSTEP_BASE_COUNTER_RANDOM_H_
#define LOCKSTEP_BASE_COUNTER_RANDOM_H_

#include <cstdint>

#include "base/host_device.h"

namespace lockstep {

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection.
LOCKSTEP_HOST_DEVICE constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The stream of random numbers of a key. A key has up to four integers, such as
// (seed, epoch, sample, operation). Keys that differ in exactly one integer
// have different streams. Any other two keys share a stream only by chance,
// with odds of 2^-64. Number i of a stream is the i-th number of SplitMix64
// from the key's hash. The class is a value and free to copy. It is for
// simulation, not for secrets.
//
// Cost: ten multiplications to make a stream, two for each number. Loops over i
// that call Bits or UniformFloat vectorise.
class CounterRandom {
 public:
  LOCKSTEP_HOST_DEVICE explicit constexpr CounterRandom(uint64_t seed,
                                                        uint64_t a = 0,
                                                        uint64_t b = 0,
                                                        uint64_t c = 0)
      : key_(Absorb(Absorb(Absorb(Absorb(0, seed), a), b), c)) {}

  // Returns number i, uniform over all 64-bit values.
  LOCKSTEP_HOST_DEVICE constexpr uint64_t Bits(uint64_t i) const {
    return MixBits(key_ + (i + 1) * kGamma);
  }

  // Return number i, uniform in [0, 1), as a multiple of 2^-53 or of 2^-24. The
  // number is made of the upper bits of Bits(i).
  constexpr double Uniform(uint64_t i) const {
    return static_cast<double>(static_cast<int64_t>(Bits(i) >> 11)) * 0x1p-53;
  }
  constexpr float UniformFloat(uint64_t i) const {
    return static_cast<float>(static_cast<int32_t>(Bits(i) >> 40)) * 0x1p-24f;
  }

  // Returns number i, uniform in [0, n), n >= 1. The probabilities of two
  // values differ by at most a factor of 1 + n / 2^64.
  constexpr int64_t UniformInt(uint64_t i, int64_t n) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<int64_t>(Wide{Bits(i)} * static_cast<uint64_t>(n) >> 64);
  }

 private:
  static constexpr uint64_t kGamma =
      0x9e3779b97f4a7c15;  // 2^64 / the golden ratio.

  // Mixes before and after adding a word, so that (a, b) and (b, a), and words
  // with the same sum, give different hashes.
  LOCKSTEP_HOST_DEVICE static constexpr uint64_t Absorb(uint64_t hash,
                                                        uint64_t word) {
    return MixBits(hash ^ MixBits(word + kGamma)) + kGamma;
  }

  uint64_t key_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COUNTER_RANDOM_H_
