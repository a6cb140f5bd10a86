// The random choices of a transform, drawn for each sample.
#ifndef LOCKSTEP_MODELS_DATA_TRANSFORM_DRAWS_H_
#define LOCKSTEP_MODELS_DATA_TRANSFORM_DRAWS_H_

#include <array>
#include <cstdint>
#include <optional>

#include "models/data/image.h"
#include "models/data/transform_options.h"

namespace lockstep {

// The key of one sample's random numbers. Rank, worker, batch and position are
// not part of the key, so pixels cannot depend on them.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t index = 0;  // The index in the data set.
};

// The random choices for one image, and its sizes.
struct SampleDraws {
  ImageRegion crop;    // The part of the image to resize.
  int64_t height = 0;  // The size to which `crop` is resized.
  int64_t width = 0;
  // The position of the result in the resized crop. The result may begin before
  // the crop and end after it.
  int64_t top = 0;
  int64_t left = 0;
  bool flip = false;
  std::array<int, 4> color_order = {0, 1, 2, 3};
  std::array<float, 4> colors = {1, 1, 1, 0};  // From brightness to hue.
  ImageRegion erase;  // A part of the result; empty: nothing is erased.
};

// The partner of a mixture, and how it is mixed.
struct Mixture {
  int64_t partner = 0;  // In [0, size).
  float share = 1;      // The image's own share.
  ImageRegion box;      // The partner's rectangle; empty: all pixels are mixed.
};

// Return the random choices of the key: for an image of that size, and for a
// mixture with another of `size` images, if the options mix. The result has the
// given shape. Options must have passed Transform::Create.
SampleDraws DrawSample(const TransformOptions& options,
                       const ImageShape& result, const SampleKey& key,
                       const ImageShape& image);
std::optional<Mixture> DrawMixture(const TransformOptions& options,
                                   const ImageShape& result,
                                   const SampleKey& key, int64_t size);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_TRANSFORM_DRAWS_H_
