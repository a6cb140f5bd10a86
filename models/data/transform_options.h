// The options of a transform, and their parsing from text.
#ifndef LOCKSTEP_MODELS_DATA_TRANSFORM_OPTIONS_H_
#define LOCKSTEP_MODELS_DATA_TRANSFORM_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/data/resize.h"

namespace lockstep {

// The random part of the image that torchvision's RandomResizedCrop draws.
struct ResizedCrop {
  double min_area = 0.08;  // As a share of the image's area.
  double max_area = 1;
  double min_ratio = 3.0 / 4;  // Width over height; log-uniform.
  double max_ratio = 4.0 / 3;
};

// The largest number of pixels on a side of a result.
inline constexpr int64_t kMaxSide = 1 << 14;

// The options, in the order in which they are applied. The default changes only
// the type: value / 255.
struct TransformOptions {
  // The size of every result. 0 and 0: the size of the data set's images, which
  // must then all have one shape.
  int64_t height = 0;
  int64_t width = 0;
  // The number of channels of every result. 0: as in the data set, or 3 for
  // image files. If an image has another number, grey is repeated three times,
  // and colours become the luma of ITU-R 601-2, as in Pillow's convert("L").
  int64_t channels = 0;
  Interpolation interpolation = Interpolation::kBilinear;
  // If resized_crop is set, a random part is drawn and resized to height x
  // width. Otherwise the image is resized: to `shorter_side` pixels on its
  // shorter side, or to height x width if shorter_side is 0.
  std::optional<ResizedCrop> resized_crop = {};
  int64_t shorter_side = 0;
  // How a part of height x width is taken from the resized image. Not set: the
  // middle. Set: a random position, with this number of black pixels around the
  // image (RandomCrop). If the image is too small even so, it lies in the
  // middle of black pixels.
  std::optional<int64_t> crop_padding = {};
  double flip = 0;  // The probability of a horizontal flip.
  // Colour changes of ColorJitter, in random order: factors from [max(0, 1 -
  // x), 1 + x], and a turn of the colours from [-hue, hue]; hue is at most 0.5.
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  // Normalize: (value / 255 - mean) / std, each operation rounded; mean and
  // std are on the scale [0, 1]. One for each channel, or one for all; empty: 0
  // and 1.
  std::vector<float> mean = {};
  std::vector<float> std = {};
  // The probability that a random rectangle is set to 0 (RandomErasing), with 2
  // to 33% of the area and a ratio of 0.3 to 3.3. If ten tries find no
  // rectangle, nothing is erased.
  double erase = 0;
  // Mixtures with another image of the data set. The share is drawn from
  // Beta(alpha, alpha), and is the share of all pixels (mixup) or of a
  // rectangle (cutmix). 0: none; both: one of them, chosen at random. The
  // sample's own key draws the partner from the data set. The partner looks as
  // it does itself in that epoch, before it is mixed. A mixture therefore needs
  // no knowledge of the batch, but reads a second image.
  double mixup = 0;
  double cutmix = 0;
};

// Return whether the options change colours, and whether they mix images.
bool ChangesColors(const TransformOptions& options);
bool Mixes(const TransformOptions& options);

// Returns the options without random operations, for evaluation.
TransformOptions WithoutAugmentation(TransformOptions options);

// Parse options from text. Errors: kInvalidArgument with one line that names
// the field at fault and its valid values.
//
// A list, separated by commas, of
//   none                          nothing random
//   standard                      resized_crop,flip
//   resized_crop[:MIN[:MAX]]      areas; 0.08:1
//   crop[:PADDING]                4
//   flip[:P] erase[:P]            probabilities; 0.5 and 0.25
//   jitter[:B[:C[:S[:H]]]]        0.4:0.4:0.4:0.1
//   mixup[:ALPHA] cutmix[:ALPHA]  0.2 and 1
absl::Status ParseAugmentation(absl::string_view text,
                               TransformOptions& options);
// Parses "224" or "192x256", height first; "0" keeps images' sizes.
absl::Status ParseImageSize(absl::string_view text, TransformOptions& options);
// Parses means and deviations: one number for all channels, one for each
// channel, separated by commas, or nothing. "imagenet" for both stands for the
// values of torchvision's weights.
absl::Status ParseMeanAndStd(absl::string_view mean, absl::string_view std,
                             TransformOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_TRANSFORM_OPTIONS_H_
