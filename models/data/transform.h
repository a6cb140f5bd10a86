// What makes the float32 values of a batch of an image's bytes: sizes, crops,
// flips, colours, mixtures. Everything random is a function of the run's seed,
// the epoch and the sample.
#ifndef LOCKSTEP_MODELS_DATA_TRANSFORM_H_
#define LOCKSTEP_MODELS_DATA_TRANSFORM_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/resize.h"

namespace lockstep {

// Names the random numbers of one sample. Neither rank nor worker nor batch nor
// position is part of it, so that pixels cannot depend on them.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t index = 0;  // In the data set.
};

// A part of the image, by torchvision's RandomResizedCrop.
struct ResizedCrop {
  double min_area = 0.08;  // Of the image's.
  double max_area = 1;
  double min_ratio = 3.0 / 4;  // Width over height, uniform in its logarithm.
  double max_ratio = 4.0 / 3;
};

// The most pixels on a side of a result.
inline constexpr int64_t kMostSide = 1 << 14;

// In the order in which they are applied. The default changes nothing but the
// type: value / 255.
struct TransformOptions {
  // Of every result; 0 and 0: of the data set's images, which are then of one
  // shape.
  int64_t height = 0;
  int64_t width = 0;
  // 0: as the data set has them, 3 for image files. Another number than an
  // image's: grey three times, or the luma of ITU-R 601-2 as Pillow's
  // convert("L").
  int64_t channels = 0;
  Interpolation interpolation = Interpolation::kBilinear;
  // A part is drawn and resized to height x width. Otherwise the image is
  // resized, to `shorter_side` pixels on its shorter side if that is not 0,
  // else to height x width, and its middle is cut out, or
  std::optional<ResizedCrop> resized_crop = {};
  int64_t shorter_side = 0;
  // any place of it with this many black pixels around it (RandomCrop). An
  // image that is smaller even so lies in the middle of black ones.
  std::optional<int64_t> crop_padding = {};
  double flip = 0;  // The probability of left for right.
  // As ColorJitter, in random order: factors from [max(0, 1 - x), 1 + x], and a
  // turn of the colours from [-hue, hue], hue at most 0.5.
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  // Of [0, 1], so (value / 255 - mean) / std, each operation rounded, as
  // Normalize. Of each channel, or one for all; empty: 0 and 1.
  std::vector<float> mean = {};
  std::vector<float> std = {};
  // The probability that a rectangle, of 2 to 33% of the area and a ratio of
  // 0.3 to 3.3, is set to 0 (RandomErasing). None in ten tries: nothing is.
  double erase = 0;
  // Mixtures with another image of the data set, by a share from Beta(alpha,
  // alpha), of all pixels or of a rectangle; 0: none; both: either, by a coin.
  // The other one is drawn from the data set by the sample's own key, and looks
  // as it does itself in that epoch before it is mixed. So it needs no
  // knowledge of the batch, and costs reading a second image.
  double mixup = 0;
  double cutmix = 0;
};

// The same without anything random: for evaluation.
TransformOptions WithoutAugmentation(TransformOptions options);

// Options as text. Errors: kInvalidArgument with one line that names the field
// at fault and what it must be.
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
// "224" or "192x256", height first; "0" leaves images as they are.
absl::Status ParseImageSize(absl::string_view text, TransformOptions& options);
// Means and deviations: each a number for all channels, one for each channel,
// separated by commas, or nothing. "imagenet" for both: those of torchvision's
// weights.
absl::Status ParseMeanAndStd(absl::string_view mean, absl::string_view std,
                             TransformOptions& options);

// What a sample counts as: its loss is share * loss(label) + (1 - share) *
// loss(other).
struct SampleLabel {
  int32_t label = 0;
  int32_t other = 0;
  float share = 1;

  bool operator==(const SampleLabel&) const = default;
};

// What one thread needs to transform samples, kept from one to the next, so
// that nothing is allocated once the largest image has been seen.
struct TransformScratch {
  AxisWeights down, across;
  Resizer resizer;
  std::vector<uint8_t> bytes;
  std::vector<float> partner;
};

// What is drawn for one image.
struct Drawn {
  ImageRegion crop;    // Of the image;
  int64_t height = 0;  // resized to this size,
  int64_t width = 0;   //
  int64_t top = 0;     // of which the result is the part from here on,
  int64_t left = 0;    // which may begin before it and end after it.
  bool flip = false;
  std::array<int, 4> color_order = {0, 1, 2, 3};
  std::array<float, 4> colors = {1, 1, 1, 0};  // Brightness to hue.
  ImageRegion erase;                           // Of the result; empty: nothing.
};

// Immutable: any number of threads may use one at once, each with a scratch of
// its own.
class Transform {
 public:
  // Errors: kInvalidArgument naming the option: a number out of its range;
  // sizes of 0 for a data set whose images have shapes of their own.
  static absl::StatusOr<Transform> Create(const TransformOptions& options,
                                          const Dataset& dataset);

  ImageShape shape() const { return shape_; }  // Of every result.
  bool mixes() const { return options_.mixup > 0 || options_.cutmix > 0; }

  // Reads the sample of the key from the data set and transforms it: a function
  // of key, data set and options alone.
  // out: host float32 [height, width, channels] of shape(); overwritten.
  // Errors: the data set's.
  absl::StatusOr<SampleLabel> Load(const Dataset& dataset, const SampleKey& key,
                                   TransformScratch& scratch,
                                   std::span<float> out) const;

  // What the key draws for an image of that size.
  Drawn Draw(const SampleKey& key, const ImageShape& image) const;

  // The other image of a mixture: which one, and what becomes of it.
  struct Mixture {
    int64_t partner = 0;  // In [0, size).
    float share = 1;      // Of the image itself.
    ImageRegion box;      // What is taken from the partner; empty: mixed.
  };
  std::optional<Mixture> DrawMixture(const SampleKey& key, int64_t size) const;

 private:
  Transform(const TransformOptions& options, const ImageShape& shape);

  // Without mixtures.
  absl::Status LoadOne(const Dataset& dataset, const SampleKey& key,
                       TransformScratch& scratch, std::span<float> out) const;
  // Where colours change or black is around: all bytes first, then the floats.
  void WriteByWayOfBytes(const Drawn& drawn, int64_t channels,
                         TransformScratch& scratch, std::span<float> out) const;
  // `count` pixels of bytes to floats. channels: of the bytes.
  void WriteRow(const uint8_t* bytes, int64_t channels, int64_t count,
                bool flip, float* row) const;
  void DrawColors(const SampleKey& key, Drawn& drawn) const;
  void AdjustColors(const Drawn& drawn, int64_t channels,
                    std::span<uint8_t> bytes) const;

  TransformOptions options_;
  ImageShape shape_;
  bool changes_colors_;
  // What each byte becomes, by channel.
  std::vector<std::array<float, 256>> values_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_TRANSFORM_H_
