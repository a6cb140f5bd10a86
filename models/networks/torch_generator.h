// The random numbers of networks' first weights, equal to PyTorch's.
#ifndef LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_
#define LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>

namespace lockstep {

// The numbers of PyTorch's CPU generator, in the same order: after
// `torch.manual_seed(seed)`, the n-th call here equals PyTorch's n-th draw.
//
// The generator is MT19937 on the low 32 bits of the seed. Integers and uniform
// numbers are bit for bit PyTorch's. 16 or more normal numbers are drawn in
// blocks of 16 by the Box-Muller method in float32. Fewer than 16 are drawn one
// by one in float64; each pair leaves one number for the next such draw, which
// uniform draws do not touch.
//
// log, sin and cos are this machine's in float64, while PyTorch has its own
// vectorised float32 versions. A normal number r * cos(theta) may therefore
// differ from PyTorch's by 4 float32 ulp of its radius r < 8, which is less
// than 2^-19. (The draws that the test compares are within 2^-22.) Not thread
// safe.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);

  // Overwrites host float32 `out`, any size, with standard normal numbers, as
  // `torch.randn`. Cost: about 20 ns an element.
  void FillNormal(std::span<float> out);

  // Overwrites host float32 `out`, any size, with normal numbers of standard
  // deviation `deviation`, truncated to [-2, 2], as timm's
  // `trunc_normal_(std=deviation)`. Uses the inverse of the truncated
  // distribution. In units of the deviation, x differs from timm's by less than
  // 2^-22 (exp(x^2 / 2) + |x|), since timm computes erf(x) in float32, to
  // 2^-24.
  void FillTruncatedNormal(float deviation, std::span<float> out);

  // Overwrites host float32 `out`, any size, with uniform numbers in [low,
  // high), as `Tensor.uniform_(low, high)`. Cost: about 5 ns an element.
  void FillUniform(float low, float high, std::span<float> out);

 private:
  // Returns a number in [0, 1) of 24 random bits.
  float UniformFloat();
  // Returns a number in [0, 1) of 53 random bits; takes two numbers of the
  // generator.
  double UniformDouble();
  // Returns one normal number. Every second call returns the number that the
  // call before kept.
  double NextNormal();

  std::mt19937 generator_;
  std::optional<double> kept_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_TORCH_GENERATOR_H_
