// The random draws behind the shuffles of permutation.h, a block at a time, in
// loops that the compiler vectorises.
#ifndef LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_
#define LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_

#include <array>
#include <cstdint>

// Each loop is written once, in a function marked LOCKSTEP_ALWAYS_INLINE, which
// two others call. One of these is marked LOCKSTEP_TARGET_AVX2, so that the
// loop is compiled there for vectors of 256 bits; in the other it is compiled
// for any processor. HasAvx2 chooses between them. Both give the same integers.
#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))

#ifdef __x86_64__
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define LOCKSTEP_TARGET_AVX2
#endif

namespace lockstep {

// Whether this processor has AVX2.
inline bool HasAvx2() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

// The MT19937 generator (Matsumoto & Nishimura 1998). It draws the same numbers
// as std::mt19937 and as PyTorch's CPU generator, but hands out the 624 of one
// refill together: the refill vectorises, and a shuffle can look at coming
// draws and prefetch. Not thread safe.
class MersenneTwister {
 public:
  static constexpr int kBlockSize = 624;
  using Block = std::array<uint32_t, kBlockSize>;

  // PyTorch seeds with 64 bits, of which this generator takes the low 32.
  explicit MersenneTwister(uint32_t seed);

  // The next 624 draws; valid until the next call.
  const Block& NextBlock();

 private:
  Block state_;
  Block draws_;
};

// The places of torch.randperm's shuffle of ordinary sizes. It is Fisher-Yates
// from the front: for i = 0, 1, 2, ..., element i changes places with one of
// [i, size), chosen by one draw of 32 bits. Not thread safe.
class SwapPlaces {
 public:
  // Places that are drawn together.
  static constexpr int kBlockSize = MersenneTwister::kBlockSize;

  // size: in [1, 2^31 - 1].
  SwapPlaces(uint64_t seed, int64_t size)
      : twister_(static_cast<uint32_t>(seed)), size_(size) {}

  // Writes the places of the next elements, kBlockSize or as many as are left
  // (none in the end), and returns how many. places: host uint32 [kBlockSize],
  // borrowed; what lies beyond the result is unspecified.
  int Next(uint32_t* places);

 private:
  MersenneTwister twister_;
  int64_t size_;
  int64_t next_ = 0;  // The first element that has no place yet.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_
