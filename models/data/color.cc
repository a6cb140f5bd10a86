#include "models/data/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace lockstep {
namespace {

// Truncates, as a tensor's cast to uint8 does.
uint8_t ToByte(float value) {
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

float Luma(const uint8_t* rgb) {
  return std::floor(rgb[0] * 0.2989f + rgb[1] * 0.587f + rgb[2] * 0.114f);
}

// The table of byte * factor + addend. With addend = other * (1 - factor), that
// is a blend of the byte and `other`, or an extrapolation.
using ByteTable = std::array<uint8_t, 256>;
ByteTable BlendTable(float factor, float addend) {
  ByteTable table;
  for (int value = 0; value < 256; ++value) {
    table[value] = ToByte(static_cast<float>(value) * factor + addend);
  }
  return table;
}

void Apply(const ByteTable& table, std::span<uint8_t> pixels) {
  for (uint8_t& value : pixels) value = table[value];
}

// Turns the hue of one pixel in HSV, with all numbers in [0, 1]. The colour
// then follows from the hue's sextant, the position in the sextant, saturation
// and value.
void TurnHue(uint8_t* rgb, float turn) {
  const float r = rgb[0] / 255.0f, g = rgb[1] / 255.0f, b = rgb[2] / 255.0f;
  const float most = std::max({r, g, b}), least = std::min({r, g, b});
  const float range = most - least;
  const float divisor = range == 0 ? 1 : range;
  const float rc = (most - r) / divisor, gc = (most - g) / divisor,
              bc = (most - b) / divisor;
  const float sixth = most == r   ? bc - gc
                      : most == g ? 2 + rc - bc
                                  : 4 + gc - rc;
  float hue = std::fmod(sixth * (1.0f / 6) + 1, 1.0f) + turn;
  hue -= std::floor(hue);
  const float saturation = range / (range == 0 ? 1 : most);
  const float whole = std::floor(hue * 6), part = hue * 6 - whole;
  const float p = most * (1 - saturation);
  const float q = most * (1 - saturation * part);
  const float t = most * (1 - saturation * (1 - part));
  const std::array<float, 3> sextants[] = {{most, t, p}, {q, most, p},
                                           {p, most, t}, {p, q, most},
                                           {t, p, most}, {most, p, q}};
  const std::array<float, 3>& turned = sextants[static_cast<int>(whole) % 6];
  for (int c = 0; c < 3; ++c) {
    // torchvision scales floats to bytes with the same factor.
    rgb[c] = ToByte(std::clamp(turned[c], 0.0f, 1.0f) * (256 - 1e-3f));
  }
}

}  // namespace

void AdjustBrightness(std::span<uint8_t> pixels, float factor) {
  Apply(BlendTable(factor, 0), pixels);
}

void AdjustContrast(std::span<uint8_t> pixels, int64_t channels, float factor) {
  double sum = 0;  // A sum of whole numbers, hence exact.
  for (size_t i = 0; i < pixels.size(); i += channels) {
    sum += channels == 3 ? Luma(&pixels[i]) : pixels[i];
  }
  const auto mean =
      static_cast<float>(sum / static_cast<double>(pixels.size() / channels));
  Apply(BlendTable(factor, mean * (1 - factor)), pixels);
}

void AdjustSaturation(std::span<uint8_t> pixels, int64_t channels,
                      float factor) {
  if (channels != 3) return;
  for (size_t i = 0; i < pixels.size(); i += 3) {
    const float grey = Luma(&pixels[i]) * (1 - factor);
    for (size_t c = i; c < i + 3; ++c) {
      pixels[c] = ToByte(static_cast<float>(pixels[c]) * factor + grey);
    }
  }
}

void AdjustHue(std::span<uint8_t> pixels, int64_t channels, float turn) {
  if (channels != 3) return;
  for (size_t i = 0; i < pixels.size(); i += 3) TurnHue(&pixels[i], turn);
}

}  // namespace lockstep
