// The random permutations that torch.randperm draws on the CPU.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_H_

#include <cstdint>
#include <span>

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
// out: host int32 [n], n <= 2^31 - 1, 0 allowed; overwritten; borrowed. 32 bits
// because the swaps are bound by the cache, which so holds twice the elements.
// Cost: O(n), one random access an element.
void RandomPermutation(uint64_t seed, std::span<int32_t> out);

namespace permutation_internal {

// The two algorithms behind RandomPermutation, at any size, so that the second
// can be tested without 2^28 elements.
void ShuffleByNarrowDraws(uint64_t seed, std::span<int32_t> out);
void ShuffleByWideDraws(uint64_t seed, std::span<int32_t> out);

}  // namespace permutation_internal
}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_H_
