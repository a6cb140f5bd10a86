// A part of a random permutation, in less time than all of it takes.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_PART_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_PART_H_

#include <cstdint>
#include <vector>

#include "sampler/strided_part.h"

namespace lockstep {

// What RandomPermutation(seed) of `size` elements (see permutation.h) has at
// the positions of `part`, in order. size: in [1, 2^31 - 1].
//
// Cost: O(size) draws. Up to about ten million elements, a table of 4 bytes
// each, in the caches. Above, where every access to such a table would go to
// memory, no table (PartByMessages): up to 3 bytes an element, and 4 for each
// of the part's.
std::vector<int64_t> PermutationPart(uint64_t seed, int64_t size,
                                     const StridedPart& part);

namespace permutation_internal {

// The two ways. PartByMessages needs size < kWideDrawSize and a part of which
// at most one position wraps around; its segments are of 2^segment_bits
// elements.
std::vector<int64_t> PartOfTable(uint64_t seed, int64_t size,
                                 const StridedPart& part);
std::vector<int64_t> PartByMessages(uint64_t seed, int64_t size,
                                    const StridedPart& part, int segment_bits);

}  // namespace permutation_internal
}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_PART_H_
