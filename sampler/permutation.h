// The permutations that torch.randperm and numpy's shuffle draw on the CPU, bit
// for bit.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_H_

#include <array>
#include <cstdint>
#include <span>

namespace lockstep {

// From this size on, PyTorch 2.6 and later draws 64 random bits for each
// element. Below it, and before 2.6 at every size, PyTorch draws 32 bits. 32
// bits are faster, but favour small indices when n is not small compared with
// 2^32.
inline constexpr int64_t kWideDrawSize = 214748364;  // (2^32 - 1) / 20.

// Fills `out` with torch.randperm(n, generator=g) for n = out.size() and g =
// torch.Generator().manual_seed(seed), bit for bit as PyTorch 2.6 and later
// (all versions for n < kWideDrawSize). manual_seed takes Python integers from
// -2^63 to 2^64 - 1. Only their low 32 bits, in two's complement, reach the
// generator, so pass them cast to uint64_t.
//
// out: host int32 [n], n <= 2^31 - 1, 0 allowed; overwritten; borrowed. The
// cache limits the speed of the swaps, and it holds twice as many elements of
// 32 bits as of 64. Cost: O(n), one random access for each element.
void RandomPermutation(uint64_t seed, std::span<int32_t> out);

// Shuffles as numpy.random.RandomState(seed).shuffle(x) shuffles a list or an
// array x of one dimension, bit for bit. This is Fisher-Yates from the back.
// Each place is drawn in as many bits as it needs, and drawn again if it is too
// large. numpy has frozen this stream.
//
// values: host int32 [n], n <= 2^31 - 1, 0 allowed; borrowed. 32 bits for the
// reason above. Cost: O(n), one random access for each element.
void NumpyShuffle(uint32_t seed, std::span<int32_t> values);

// The random draws that the shuffles use, one block at a time, in loops that
// the compiler vectorises.

// The MT19937 generator (Matsumoto & Nishimura 1998). It draws the same numbers
// as std::mt19937 and as PyTorch's CPU generator, but returns the 624 numbers
// of one refill together. The refill can therefore vectorise, and a shuffle can
// look at coming draws and prefetch. Not thread safe.
class MersenneTwister {
 public:
  static constexpr int kBlockSize = 624;
  using Block = std::array<uint32_t, kBlockSize>;

  // PyTorch seeds with 64 bits; its generator takes the low 32.
  explicit MersenneTwister(uint32_t seed);

  // Returns the next 624 draws; valid until the next call.
  const Block& NextBlock();

 private:
  Block state_;
  Block draws_;
};

// The places of torch.randperm's shuffle below kWideDrawSize. The shuffle is
// Fisher-Yates from the front: for i = 0, 1, 2, ..., one draw of 32 bits
// selects a place in [i, size), and element i is swapped with the element
// there. Not thread safe.
class SwapPlaces {
 public:
  // The number of places that are drawn together.
  static constexpr int kBlockSize = MersenneTwister::kBlockSize;

  // size: in [1, 2^31 - 1].
  SwapPlaces(uint64_t seed, int64_t size)
      : twister_(static_cast<uint32_t>(seed)), size_(size) {}

  // Writes the places of the next elements and returns their number:
  // kBlockSize, or as many as are left, finally 0. places: host uint32
  // [kBlockSize], borrowed; entries beyond the result are unspecified.
  int Next(uint32_t* places);

 private:
  MersenneTwister twister_;
  int64_t size_;
  int64_t next_ = 0;  // The first element that has no place yet.
};

namespace permutation_internal {

// The two algorithms of RandomPermutation, at any size, so that tests can try
// the second one without 2^28 elements.
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out);
void ShuffleByWideDraws(uint64_t seed, std::span<int32_t> out);
}  // namespace permutation_internal

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_H_
