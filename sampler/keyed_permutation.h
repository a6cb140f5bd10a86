// A keyed bijection on [0, n) that computes each index without a table.
#ifndef LOCKSTEP_SAMPLER_KEYED_PERMUTATION_H_
#define LOCKSTEP_SAMPLER_KEYED_PERMUTATION_H_

#include <array>
#include <cstdint>
#include <span>

namespace lockstep {

class KeyedPermutation;

namespace keyed_permutation_internal {

// The values that a round mixes into its hash, in the order of use.
struct RoundKey {
  uint32_t before;
  uint32_t between;
  uint32_t high;
  uint32_t low;
};

// Returns the number of rounds that KeyedPermutation runs at size n; even.
int Rounds(int64_t n);

// Returns a KeyedPermutation cut down to its first `rounds` rounds, an even
// number of at most Rounds(n). The statistical tests must be able to reject
// such permutations.
KeyedPermutation WithRounds(int64_t n, uint64_t seed, uint64_t epoch,
                            int rounds);

}  // namespace keyed_permutation_internal

// The order in which an epoch visits n samples, for n too large to shuffle a
// list. It is a pseudo-random permutation of [0, n), chosen by (seed, epoch).
// Any element can be computed by itself. The order is a fixed function of
// (n, seed, epoch), the same on every machine and in every version. If two keys
// differ in any of the three numbers, however little and however they are
// related, their orders are unrelated. Immutable and so thread safe; a plain
// value of under 500 bytes.
//
// Method: a generalised Feistel network (Black & Rogaway 2002) on a grid of a
// rows and b columns with ab >= n. Rounds alternate: one moves the row by a
// hash of the column, the next moves the column by a hash of the row. b is a
// power of two near sqrt(n), so that a shift splits a position, and a = ceil(n
// / b). A result outside [0, n) passes through the network again until it falls
// inside (cycle walking, ibid.). From n = 64 on, this happens with a
// probability of at most sqrt(2 / n).
//
// Rotating one row of even length is an odd permutation. Both parities are
// therefore reached, even if ab = n. XOR in place of the addition, with odd a,
// would reach only even permutations. Over random keys a hash is uniform on 64
// bits; scaling it to [0, a) adds a bias below 2^-33.
//
// Number of rounds: after r rounds, pairs in one column keep their distance in
// rows more often than by chance, by a share of b^-(r/2 - 2) (Patarin 2001, the
// best test known for r = 6). With b = 2^h, 2^(h(r - 4)) evaluations reveal
// this. The rounds are the least even number for which that count is 2^64 or
// more: 8 from n = 2^31 on, 12 at 10^6, 18 at 1000. Mixing slows down as a and
// b shrink, so neither is below 8: n < 64 walks the cycles of a grid of 64 in
// 26 rounds. The tests count those pairs. They reject 4 and 6 rounds (and 8 for
// b = 8) and accept this permutation. Not for cryptography.
class KeyedPermutation {
 public:
  static constexpr int64_t kMaxSize = int64_t{1} << 62;

  // n: in [1, kMaxSize]. Cost: 16 multiplications a round.
  KeyedPermutation(int64_t n, uint64_t seed, uint64_t epoch);

  int64_t size() const { return size_; }

  // Returns the index at `position`, which is in [0, size()). Cost: about ab /
  // n passes through the rounds; each round waits for the one before.
  int64_t operator()(int64_t position) const;

  // Replaces each position by the index at it. Cheaper than one call for each
  // position, because the rounds of 64 positions overlap.
  //
  // values: host int64 [any], each in [0, size()), repeats allowed; borrowed.
  void Map(std::span<int64_t> values) const;

 private:
  friend KeyedPermutation keyed_permutation_internal::WithRounds(int64_t n,
                                                                 uint64_t seed,
                                                                 uint64_t epoch,
                                                                 int rounds);

  static constexpr int kMaxRounds = 26;
  static constexpr int kBlockSize = 64;

  // Returns the result of one pass through the network, for a value in the
  // whole grid.
  int64_t Pass(int64_t value) const;

  // Makes a pass for each value, round by round. Returns whether a result may
  // lie outside [0, size()).
  bool PassBlock(std::span<int64_t, kBlockSize> values) const;

  // Repeats passes until the value, the result of a pass, is in [0, size()).
  int64_t WalkBack(int64_t value) const;

  int64_t size_;
  uint32_t rows_;         // At most 2^31.
  uint32_t column_mask_;  // The number of columns minus 1.
  int32_t column_bits_;
  int32_t rounds_;
  // Only the first rounds_ keys are in use.
  std::array<keyed_permutation_internal::RoundKey, kMaxRounds> keys_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_KEYED_PERMUTATION_H_
