// Gathering of batches.
#include "models/data/dataset.h"

#include <array>
#include <cassert>
#include <cstdint>
#include <span>

namespace lockstep {
namespace {

// All 256 quotients: a look-up is exact, and quicker than a division.
constexpr std::array<float, 256> kUnitScale = [] {
  std::array<float, 256> table{};
  for (int value = 0; value < 256; ++value) {
    table[value] = static_cast<float>(value) / 255.0f;
  }
  return table;
}();

}  // namespace

void Dataset::GatherImages(std::span<const int64_t> indices,
                           std::span<float> out) const {
  const int64_t pixels = image_size();
  assert(static_cast<int64_t>(out.size()) ==
         static_cast<int64_t>(indices.size()) * pixels);
  float* to = out.data();
  for (const int64_t index : indices) {
    assert(index >= 0 && index < size);
    const uint8_t* const from = images.data() + index * pixels;
    for (int64_t i = 0; i < pixels; ++i) to[i] = kUnitScale[from[i]];
    to += pixels;
  }
}

void Dataset::GatherLabels(std::span<const int64_t> indices,
                           std::span<int32_t> out) const {
  assert(out.size() == indices.size());
  int32_t* to = out.data();
  for (const int64_t index : indices) {
    assert(index >= 0 && index < size);
    *to++ = labels[index];
  }
}

}  // namespace lockstep
