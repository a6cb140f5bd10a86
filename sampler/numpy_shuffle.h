// The shuffle of numpy's legacy random generator.
#ifndef LOCKSTEP_SAMPLER_NUMPY_SHUFFLE_H_
#define LOCKSTEP_SAMPLER_NUMPY_SHUFFLE_H_

#include <cstdint>
#include <span>

namespace lockstep {

// Shuffles as numpy.random.RandomState(seed).shuffle(x) does a list or an array
// x of one dimension, bit for bit: Fisher-Yates from the back, each place drawn
// in as many bits as it needs and drawn again if it is too large. numpy has
// frozen this stream.
//
// values: host int32 [n], n <= 2^31 - 1, 0 allowed; borrowed. 32 bits because
// the swaps are bound by the cache, which so holds twice the elements.
// Cost: O(n), one random access an element.
void NumpyShuffle(uint32_t seed, std::span<int32_t> values);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_NUMPY_SHUFFLE_H_
