#include "models/networks/torch_generator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

namespace lockstep {
namespace {

constexpr size_t kBlock = 16;

// Applies the Box-Muller method to one block of uniform numbers. Element j
// gives the radius and element j + 8 the angle of two normal numbers, which
// replace them.
void NormalFromUniform(std::span<float, kBlock> block) {
  constexpr float kTwoPi = 2 * std::numbers::pi_v<float>;
  for (size_t j = 0; j < kBlock / 2; ++j) {
    // The value is in (0, 1], so the logarithm is finite.
    const float u = 1 - block[j];
    // The angle is rounded to float32, as in PyTorch; the other steps are not.
    const float theta = kTwoPi * block[j + kBlock / 2];
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(u)));
    block[j] = static_cast<float>(radius * std::cos(double{theta}));
    block[j + kBlock / 2] =
        static_cast<float>(radius * std::sin(double{theta}));
  }
}

double Polynomial(std::span<const double> coefficients, double x) {
  double sum = 0;
  for (const double c : coefficients) sum = sum * x + c;
  return sum;
}

// Returns the inverse error function on (-1, 1). Uses the polynomials of Giles,
// "Approximating the erfinv function" (2010), which are accurate to 2^-21, and
// one step of Newton's method in float64.
double InverseErf(double x) {
  static constexpr double kCentral[] = {
      2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
      -4.39150654e-06, 0.00021858087,  -0.00125372503,
      -0.00417768164,  0.246640727,    1.50140941};
  static constexpr double kTail[] = {
      -0.000200214257, 0.000100950558, 0.00134934322,
      -0.00367342844,  0.00573950773,  -0.0076224613,
      0.00943887047,   1.00167406,     2.83297682};
  const double w = -std::log((1 - x) * (1 + x));
  const double y = x * (w < 5 ? Polynomial(kCentral, w - 2.5)
                              : Polynomial(kTail, std::sqrt(w) - 3));
  constexpr double kHalfRootPi = 0.5 / std::numbers::inv_sqrtpi;
  return y - (std::erf(y) - x) * kHalfRootPi * std::exp(y * y);
}

}  // namespace

// PyTorch's normal_ and uniform_ on the CPU, written from their documented
// behaviour and checked against PyTorch's output.

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
  // The last 16 are drawn again, over some numbers that were already normal.
  const std::span<float, kBlock> tail = out.last<kBlock>();
  for (float& x : tail) x = UniformFloat();
  NormalFromUniform(tail);
}

void TorchGenerator::FillUniform(float low, float high, std::span<float> out) {
  // The difference is rounded to float32, as in PyTorch; the result is rounded
  // once.
  const double range = high - low;
  for (float& x : out) x = static_cast<float>(UniformFloat() * range + low);
}

void TorchGenerator::FillTruncatedNormal(float deviation,
                                         std::span<float> out) {
  constexpr float kLimit = 2;
  // The probability that a standard normal number is within +-limit /
  // deviation.
  const double inside = std::erf(kLimit / deviation / std::numbers::sqrt2);
  FillUniform(static_cast<float>(-inside), static_cast<float>(inside), out);
  for (float& x : out) {
    x = std::abs(x) < 1 ? static_cast<float>(deviation * std::numbers::sqrt2 *
                                             InverseErf(x))
                        : std::copysign(kLimit, x);
    x = std::clamp(x, -kLimit, kLimit);
  }
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
