// The MT19937 generator (Matsumoto & Nishimura 1998), a block at a time.
#ifndef LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_
#define LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_

#include <array>
#include <cstdint>

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_MERSENNE_TWISTER_H_
