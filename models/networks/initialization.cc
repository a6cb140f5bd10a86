// PyTorch's normal_ and uniform_ on the CPU, restated from its documented
// behaviour and checked against its output.
#include "models/networks/initialization.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace lockstep {
namespace {

constexpr size_t kBlock = 16;

// Box and Muller on one block of uniform numbers: element j gives the radius
// and element j + 8 the angle of two normal numbers, which take their places.
void NormalFromUniform(std::span<float, kBlock> block) {
  constexpr float kTwoPi = 2 * std::numbers::pi_v<float>;
  for (size_t j = 0; j < kBlock / 2; ++j) {
    // In (0, 1], so that the logarithm is finite.
    const float u = 1 - block[j];
    // The angle is rounded to float32, as there; the rest is not.
    const float theta = kTwoPi * block[j + kBlock / 2];
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(u)));
    block[j] = static_cast<float>(radius * std::cos(double{theta}));
    block[j + kBlock / 2] =
        static_cast<float>(radius * std::sin(double{theta}));
  }
}

}  // namespace

TorchGenerator::TorchGenerator(uint64_t seed)
    : generator_(static_cast<uint32_t>(seed)) {}

void TorchGenerator::FillNormal(std::span<float> out) {
  if (out.size() < kBlock) {
    for (float& x : out) x = static_cast<float>(NextNormal());
    return;
  }
  for (float& x : out) x = UniformFloat();
  for (size_t i = 0; i + kBlock <= out.size(); i += kBlock) {
    NormalFromUniform(out.subspan(i).first<kBlock>());
  }
  if (out.size() % kBlock == 0) return;
  // The last 16 are drawn again, over some that were already normal.
  const std::span<float, kBlock> tail = out.last<kBlock>();
  for (float& x : tail) x = UniformFloat();
  NormalFromUniform(tail);
}

void TorchGenerator::FillUniform(float low, float high, std::span<float> out) {
  // The difference is rounded to float32, as there; the rest is rounded once.
  const double range = high - low;
  for (float& x : out) x = static_cast<float>(UniformFloat() * range + low);
}

float TorchGenerator::UniformFloat() {
  return static_cast<float>(generator_() & 0xffffff) * 0x1p-24f;
}

double TorchGenerator::UniformDouble() {
  const uint64_t high = generator_();
  const uint64_t low = generator_();
  constexpr uint64_t kMask = (uint64_t{1} << 53) - 1;
  return static_cast<double>(((high << 32) | low) & kMask) * 0x1p-53;
}

double TorchGenerator::NextNormal() {
  if (kept_.has_value()) {
    const double normal = *kept_;
    kept_.reset();
    return normal;
  }
  const double u1 = UniformDouble();
  const double u2 = UniformDouble();
  const double radius = std::sqrt(-2 * std::log1p(-u2));
  const double theta = 2 * std::numbers::pi * u1;
  kept_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

}  // namespace lockstep
