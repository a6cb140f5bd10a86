// Which positions of an epoch order a rank takes when they are dealt in turn.
#ifndef LOCKSTEP_SAMPLER_STRIDED_PART_H_
#define LOCKSTEP_SAMPLER_STRIDED_PART_H_

#include <cstdint>

namespace lockstep {

// The `length` positions of [begin, begin + length), dealt to ranks in turn:
// this rank takes the first-th, the (first + stride)-th, ... of them, `count`
// in all. Beyond the last it is padding: the first ones again, round and round.
struct StridedPart {
  int64_t begin = 0;
  int64_t length = 0;  // At least 1 if count is.
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 0;

  // Precondition: k in [0, count).
  int64_t At(int64_t k) const {
    const int64_t turn = first + k * stride;
    return begin + (turn < length ? turn : turn % length);
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_STRIDED_PART_H_
