// The random numbers of networks' first weights: those that PyTorch draws.
#ifndef LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_
#define LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>

namespace lockstep {

// The numbers that PyTorch's CPU generator gives, in its order: after
// `torch.manual_seed(seed)` the n-th call here equals the n-th draw there.
//
// The generator is MT19937 on the low 32 bits of the seed. Integers and uniform
// numbers are PyTorch's bit for bit. Of normal numbers 16 and more are drawn by
// Box and Muller's method in float32 on blocks of 16, fewer one by one in
// float64, of which one may be kept for the next such draw; uniform draws leave
// that one where it is. log, sin and cos are this machine's in float64, where
// PyTorch has its own vectorised float32 versions, so a normal number
// r * cos(theta) may differ from PyTorch's by 4 float32 ulp of its radius
// r < 8: by less than 2^-19. (The draws that the test compares are within
// 2^-22.) Not thread safe.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);

  // Overwrites host float32 `out`, any size, with standard normal numbers:
  // `torch.randn`. Cost: about 20 ns an element.
  void FillNormal(std::span<float> out);

  // Overwrites host float32 `out`, any size, with normal numbers of standard
  // deviation `deviation`, drawn again (by the inverse of their distribution)
  // where they would be outside [-2, 2]: timm's `trunc_normal_(std=deviation)`,
  // up to that one's own rounding: in deviations, x differs by less than 2^-22
  // (exp(x^2 / 2) + |x|), since float32 has erf(x) to 2^-24 alone.
  void FillTruncatedNormal(float deviation, std::span<float> out);

  // Overwrites host float32 `out`, any size, with uniform numbers of
  // [low, high): `Tensor.uniform_(low, high)`. Cost: about 5 ns an element.
  void FillUniform(float low, float high, std::span<float> out);

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

#endif  // LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_
