// Parts of the permutations of permutation.h.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_PART_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_PART_H_

#include <cstdint>
#include <vector>

#include "sampler/shard.h"

namespace lockstep {

// Returns the elements of RandomPermutation(seed), of `size` elements, at the
// positions of `part`, in order. Takes less time than the whole permutation.
// size: in [1, 2^31 - 1].
//
// Cost: O(size) draws. Up to about ten million elements, a table of 4 bytes an
// element, which the caches hold. Above that size, every access to such a table
// would go to memory, so there is no table (PartByMessages): up to 3 bytes an
// element, and 4 for each element of the part.
std::vector<int64_t> PermutationPart(uint64_t seed, int64_t size,
                                     const StridedPart& part);

namespace permutation_internal {

// The two algorithms of PermutationPart. PartByMessages needs size <
// kWideDrawSize, and a part in which at most one position wraps around. Its
// segments have 2^segment_bits elements.
std::vector<int64_t> PartOfTable(uint64_t seed, int64_t size,
                                 const StridedPart& part);
std::vector<int64_t> PartByMessages(uint64_t seed, int64_t size,
                                    const StridedPart& part, int segment_bits);

}  // namespace permutation_internal

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_PART_H_
