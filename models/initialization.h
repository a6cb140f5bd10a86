// Random initial weights: the numbers that PyTorch draws.
#ifndef LOCKSTEP_MODELS_INITIALIZATION_H_
#define LOCKSTEP_MODELS_INITIALIZATION_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>

namespace lockstep {

// Standard normal numbers in the order in which PyTorch's CPU generator gives
// them: after `torch.manual_seed(seed)` the first call of Fill equals the first
// `torch.randn` of that size, the second call the second, and so on.
//
// The generator is MT19937 on the low 32 bits of the seed; 16 and more numbers
// are drawn by Box and Muller's method in float32 on blocks of 16, fewer one by
// one in float64. The integers and uniform numbers are PyTorch's bit for bit.
// log, sin and cos are this machine's in float64, where PyTorch has its own
// vectorised float32 versions, so a number r * cos(theta) may differ from
// PyTorch's by 4 float32 ulp of its radius r < 8: by less than 2^-19. (The
// draws that the test compares are within 2^-22.) Not thread safe.
class TorchNormal {
 public:
  explicit TorchNormal(uint64_t seed);

  // Overwrites host float32 `out`, any size. Cost: about 20 ns an element.
  void Fill(std::span<float> out);

 private:
  // 24 random bits, in [0, 1).
  float UniformFloat();
  // 53 random bits, in [0, 1); takes two numbers of the generator.
  double UniformDouble();
  // One normal number; every other call takes the one kept by the last.
  double NextNormal();

  std::mt19937 generator_;
  std::optional<double> kept_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_INITIALIZATION_H_
