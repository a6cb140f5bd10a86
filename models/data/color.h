// Changes of colour, on bytes in place. Results equal those of
// torchvision.transforms.v2.functional on uint8 tensors, up to one level where
// torchvision rounds its float32 sums differently.
#ifndef LOCKSTEP_MODELS_DATA_COLOR_H_
#define LOCKSTEP_MODELS_DATA_COLOR_H_

#include <cstdint>
#include <span>

namespace lockstep {

// pixels: host uint8 [n, channels], channels 1 or 3 (red, green, blue). factor:
// 0 or more; 1 changes nothing. Factor 0 of brightness gives black, of contrast
// one grey for all pixels (the mean of their luma), and of saturation the
// pixels' own greys.
void AdjustBrightness(std::span<uint8_t> pixels, float factor);
void AdjustContrast(std::span<uint8_t> pixels, int64_t channels, float factor);
// Grey pixels, of one channel, do not change in saturation and hue.
void AdjustSaturation(std::span<uint8_t> pixels, int64_t channels,
                      float factor);
// turn: the part of the colour circle, in [-0.5, 0.5]; 0 changes only
// roundings.
void AdjustHue(std::span<uint8_t> pixels, int64_t channels, float turn);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_COLOR_H_
