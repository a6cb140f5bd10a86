// Loops that the compiler vectorises, also for processors with AVX2.
#ifndef LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_
#define LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_

#include <array>
#include <cstdint>

// A loop is written once, in a function marked LOCKSTEP_ALWAYS_INLINE, and
// called from two others, one of which is marked LOCKSTEP_TARGET_AVX2; HasAvx2
// chooses between them. It is compiled for vectors of 256 bits there, and for
// what every processor of the kind has in the other. Integers and single
// divisions come out the same.
#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))

#ifdef __x86_64__
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define LOCKSTEP_TARGET_AVX2
#endif

namespace lockstep {

// Whether this processor has AVX2; false where there is no such thing.
inline bool HasAvx2() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

// The MT19937 generator (Matsumoto & Nishimura 1998), a block at a time.

// Draws the same numbers as std::mt19937 and as PyTorch's CPU generator, but
// hands out the 624 of one refill together: the refill vectorises, and who
// shuffles can look at coming draws and prefetch. Not thread safe.
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

// The draws behind torch.randperm's shuffle of ordinary sizes.

// Fisher-Yates from the front: element i changes places with one of [i, size),
// for i = 0, 1, 2, ... These are those places, by one draw of 32 bits each.
// Not thread safe.
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
