// The permutations that torch.randperm and numpy's shuffle draw on the CPU, bit
// for bit, and parts of them.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sampler/shard.h"

namespace lockstep {

// From this size on, PyTorch 2.6 and later draws 64 random bits an element;
// below it, and before 2.6 at every size, it draws 32 bits, which is fast but
// favours small indices when n is no longer small beside 2^32.
inline constexpr int64_t kWideDrawSize = 214748364;  // (2^32 - 1) / 20.

// Fills `out` with torch.randperm(n, generator=g) for n = out.size() and
// g = torch.Generator().manual_seed(seed), bit for bit as PyTorch 2.6 and later
// (all versions for n < kWideDrawSize). manual_seed takes Python integers from
// -2^63 to 2^64 - 1; only their low 32 bits, in two's complement, reach the
// generator, so pass them cast to uint64_t.
//
// out: host int32 [n], n <= 2^31 - 1, 0 allowed; overwritten; borrowed. 32
// bits, since the swaps are bound by the cache, which then holds twice the
// elements. Cost: O(n), one random access an element.
void RandomPermutation(uint64_t seed, std::span<int32_t> out);

// What RandomPermutation(seed) of `size` elements has at the positions of
// `part`, in order, in less time than the whole permutation takes. size: in
// [1, 2^31 - 1].
//
// Cost: O(size) draws. Up to about ten million elements, a table of 4 bytes
// each, in the caches. Above, where every access to such a table would go to
// memory, no table (PartByMessages): up to 3 bytes an element, and 4 for each
// of the part's.
std::vector<int64_t> PermutationPart(uint64_t seed, int64_t size,
                                     const StridedPart& part);

// Shuffles as numpy.random.RandomState(seed).shuffle(x) does a list or an array
// x of one dimension, bit for bit: Fisher-Yates from the back, each place drawn
// in as many bits as it needs and drawn again if it is too large. numpy has
// frozen this stream.
//
// values: host int32 [n], n <= 2^31 - 1, 0 allowed; borrowed. 32 bits as above.
// Cost: O(n), one random access an element.
void NumpyShuffle(uint32_t seed, std::span<int32_t> values);

// The random draws behind the shuffles, a block at a time, in loops that the
// compiler vectorises.

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

namespace permutation_internal {

// The two algorithms behind RandomPermutation, at any size, so that the second
// can be tested without 2^28 elements.
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out);
void ShuffleByWideDraws(uint64_t seed, std::span<int32_t> out);

// The two algorithms behind PermutationPart. PartByMessages needs size <
// kWideDrawSize and a part of which at most one position wraps around; its
// segments are of 2^segment_bits elements.
std::vector<int64_t> PartOfTable(uint64_t seed, int64_t size,
                                 const StridedPart& part);
std::vector<int64_t> PartByMessages(uint64_t seed, int64_t size,
                                    const StridedPart& part, int segment_bits);

}  // namespace permutation_internal

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_H_
