// The draws behind torch.randperm's shuffle of ordinary sizes.
#ifndef LOCKSTEP_SAMPLER_SWAP_PLACES_H_
#define LOCKSTEP_SAMPLER_SWAP_PLACES_H_

#include <cstdint>

#include "sampler/mersenne_twister.h"

namespace lockstep {

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

#endif  // LOCKSTEP_SAMPLER_SWAP_PLACES_H_
