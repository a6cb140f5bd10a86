// Random numbers that are a function of a key and a counter, without state: the
// same number whoever asks, in whatever order.
#ifndef LOCKSTEP_BASE_COUNTER_RANDOM_H_
#define LOCKSTEP_BASE_COUNTER_RANDOM_H_

#include <cstdint>

namespace lockstep {

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014), a bijection.
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The stream of a key of up to four integers, such as (seed, epoch, sample,
// operation). Keys that differ in one integer have different streams; others
// share one by chance alone, with odds of 2^-64 for each pair. Number i of a
// stream is SplitMix64's i-th from the key's hash. A value, free to copy; for
// simulation, not for secrets.
// Cost: ten multiplications to make, two for each number; loops over i that
// take Bits or UniformFloat vectorise.
class CounterRandom {
 public:
  explicit constexpr CounterRandom(uint64_t seed, uint64_t a = 0,
                                   uint64_t b = 0, uint64_t c = 0)
      : key_(Absorb(Absorb(Absorb(Absorb(0, seed), a), b), c)) {}

  // Number i, uniform over all 64-bit values.
  constexpr uint64_t Bits(uint64_t i) const {
    return MixBits(key_ + (i + 1) * kGamma);
  }

  // Uniform in [0, 1): multiples of 2^-53 and 2^-24, of Bits(i)'s upper bits.
  constexpr double Uniform(uint64_t i) const {
    return static_cast<double>(static_cast<int64_t>(Bits(i) >> 11)) * 0x1p-53;
  }
  constexpr float UniformFloat(uint64_t i) const {
    return static_cast<float>(static_cast<int32_t>(Bits(i) >> 40)) * 0x1p-24f;
  }

  // Uniform in [0, n), n >= 1; no value is likelier than another by more than
  // n / 2^64.
  constexpr int64_t UniformInt(uint64_t i, int64_t n) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<int64_t>(Wide{Bits(i)} * static_cast<uint64_t>(n) >> 64);
  }

 private:
  static constexpr uint64_t kGamma =
      0x9e3779b97f4a7c15;  // 2^64 / the golden ratio.

  // Mixed before and after, so that neither (a, b) and (b, a) nor words with
  // one sum meet.
  static constexpr uint64_t Absorb(uint64_t hash, uint64_t word) {
    return MixBits(hash ^ MixBits(word + kGamma)) + kGamma;
  }

  uint64_t key_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COUNTER_RANDOM_H_
