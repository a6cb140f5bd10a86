// Numbers that are the same everywhere, by position.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_UNIFORM_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_UNIFORM_H_

#include <cstdint>

namespace lockstep::benchmarks {

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014).
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A stream of numbers for each seed and number.
constexpr uint64_t UniformKey(uint64_t seed, uint64_t number) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15) + number);
}

// Number i of the stream, uniform in [-1, 1).
constexpr double Uniform(uint64_t key, int64_t i) {
  const uint64_t bits =
      MixBits(key + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_UNIFORM_H_
