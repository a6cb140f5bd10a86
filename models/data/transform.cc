#include "models/data/transform.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/data/color.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/resize.h"

namespace lockstep {
namespace {

// Returns the part of a resized axis that the result needs.
AxisPart PartOf(int64_t from, int64_t to, int64_t begin, int64_t count) {
  const int64_t first = std::clamp(begin, int64_t{0}, to);
  return {from, to, first, std::clamp(begin + count, first, to) - first};
}

absl::Status InRange(absl::string_view what, double value, double least,
                     double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " is ", value, ", must be in [", least, ", ", most, "]"));
}

// Checks the ranges of all numbers; rejects NaN.
absl::Status CheckNumbers(const TransformOptions& options) {
  constexpr double kMost = 1e6;
  for (const auto& [what, value, most] :
       {std::tuple<const char*, double, double>("flip", options.flip, 1),
        {"erase", options.erase, 1},
        {"brightness", options.brightness, kMost},
        {"contrast", options.contrast, kMost},
        {"saturation", options.saturation, kMost},
        {"hue", options.hue, 0.5},
        {"mixup", options.mixup, kMost},
        {"cutmix", options.cutmix, kMost}}) {
    LOCKSTEP_RETURN_IF_ERROR(InRange(what, value, 0, most));
  }
  if (options.resized_crop.has_value()) {
    const ResizedCrop& crop = *options.resized_crop;
    LOCKSTEP_RETURN_IF_ERROR(
        InRange("resized_crop's least area", crop.min_area, 1e-6, 1));
    LOCKSTEP_RETURN_IF_ERROR(InRange("resized_crop's largest area",
                                     crop.max_area, crop.min_area, 1));
    LOCKSTEP_RETURN_IF_ERROR(
        InRange("resized_crop's least ratio", crop.min_ratio, 1e-3, 1e3));
    LOCKSTEP_RETURN_IF_ERROR(InRange("resized_crop's largest ratio",
                                     crop.max_ratio, crop.min_ratio, 1e3));
  }
  return absl::OkStatus();
}

absl::Status CheckChannelValues(absl::string_view what,
                                std::span<const float> values, int64_t channels,
                                bool is_std) {
  if (values.size() > 1 && static_cast<int64_t>(values.size()) != channels) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " has ", values.size(), " values for ", channels, " channels"));
  }
  for (const float value : values) {
    if (!std::isfinite(value) || (is_std && value <= 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " has ", value, ", must be ", is_std ? "positive" : "finite"));
    }
  }
  return absl::OkStatus();
}

// Images of one or three channels can be converted into each other. Any other
// number must be the data set's own.
absl::Status CheckChannels(const TransformOptions& options, int64_t channels,
                           const std::optional<ImageShape>& known) {
  const auto has_colors = [](int64_t n) { return n == 1 || n == 3; };
  if (has_colors(channels) &&
      (!known.has_value() || has_colors(known->channels))) {
    return absl::OkStatus();
  }
  if (!known.has_value() || known->channels != channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("channels is ", channels, ", must be ",
                     known.has_value() && !has_colors(known->channels)
                         ? absl::StrCat("the data set's ", known->channels)
                         : "1 or 3"));
  }
  if (ChangesColors(options)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "jitter needs images of 1 or 3 channels, not of ", channels));
  }
  return absl::OkStatus();
}

// Returns channel c's value; `values` has one for each channel, one for all, or
// none.
float ValueOf(std::span<const float> values, int64_t c, float none) {
  if (values.empty()) return none;
  return values[values.size() == 1 ? 0 : c];
}

}  // namespace

absl::StatusOr<Transform> Transform::Create(const TransformOptions& options,
                                            const Dataset& dataset) {
  LOCKSTEP_RETURN_IF_ERROR(CheckNumbers(options));
  const std::optional<ImageShape> known = dataset.shape();
  ImageShape shape = {options.height, options.width, options.channels};
  if (shape.height == 0 && shape.width == 0) {
    if (!known.has_value()) {
      return absl::InvalidArgumentError(
          "image_size is 0, but the images of this data set have sizes of "
          "their own");
    }
    shape.height = known->height;
    shape.width = known->width;
  }
  if (shape.channels == 0) shape.channels = known ? known->channels : 3;
  for (const auto& [what, value, least] :
       {std::tuple("image_size's height", shape.height, 1),
        {"image_size's width", shape.width, 1},
        {"the shorter side", options.shorter_side, 0}}) {
    LOCKSTEP_RETURN_IF_ERROR(
        InRange(what, static_cast<double>(value), least, kMaxSide));
  }
  // With this limit a crop always has a pixel of the image.
  LOCKSTEP_RETURN_IF_ERROR(InRange(
      "crop's padding", static_cast<double>(options.crop_padding.value_or(0)),
      0, static_cast<double>(std::min(shape.height, shape.width) - 1)));
  LOCKSTEP_RETURN_IF_ERROR(CheckChannels(options, shape.channels, known));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckChannelValues("mean", options.mean, shape.channels, false));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckChannelValues("std", options.std, shape.channels, true));
  return Transform(options, shape);
}

Transform::Transform(const TransformOptions& options, const ImageShape& shape)
    : options_(options), shape_(shape), values_(shape.channels) {
  for (int64_t c = 0; c < shape.channels; ++c) {
    const float mean = ValueOf(options.mean, c, 0);
    const float std = ValueOf(options.std, c, 1);
    for (int value = 0; value < 256; ++value) {
      values_[c][value] = (static_cast<float>(value) / 255.0f - mean) / std;
    }
  }
}

void Transform::WriteRow(const uint8_t* bytes, int64_t channels, int64_t count,
                         bool flip, float* row) const {
  // If flipped, writes backwards from the last pixel.
  const int64_t step = flip ? -shape_.channels : shape_.channels;
  float* to = flip ? row + (count - 1) * shape_.channels : row;
  const float* const values = values_[0].data();
  if (shape_.channels == 3) {
    const int64_t green = channels == 1 ? 0 : 1, blue = channels == 1 ? 0 : 2;
    for (int64_t x = 0; x < count; ++x, bytes += channels, to += step) {
      to[0] = values[bytes[0]];
      to[1] = values_[1][bytes[green]];
      to[2] = values_[2][bytes[blue]];
    }
  } else if (shape_.channels > 1) {
    for (int64_t x = 0; x < count; ++x, bytes += channels, to += step) {
      for (int64_t c = 0; c < channels; ++c) to[c] = values_[c][bytes[c]];
    }
  } else if (channels == 3) {
    for (int64_t x = 0; x < count; ++x, bytes += 3, to += step) {
      *to = values[(bytes[0] * 19595 + bytes[1] * 38470 + bytes[2] * 7471 +
                    0x8000) >>
                   16];
    }
  } else if (flip) {
    for (int64_t x = 0; x < count; ++x) to[-x] = values[bytes[x]];
  } else {
    for (int64_t x = 0; x < count; ++x) to[x] = values[bytes[x]];
  }
}

void Transform::AdjustColors(const SampleDraws& drawn, int64_t channels,
                             std::span<uint8_t> bytes) const {
  for (const int change : drawn.color_order) {
    const float by = drawn.colors[change];
    if (change == 0 && options_.brightness > 0) AdjustBrightness(bytes, by);
    if (change == 1 && options_.contrast > 0) {
      AdjustContrast(bytes, channels, by);
    }
    if (change == 2 && options_.saturation > 0) {
      AdjustSaturation(bytes, channels, by);
    }
    if (change == 3 && options_.hue > 0) AdjustHue(bytes, channels, by);
  }
}

absl::Status Transform::LoadOne(const Dataset& dataset, const SampleKey& key,
                                TransformScratch& scratch,
                                std::span<float> out) const {
  SampleDraws drawn;
  AxisWeights& down = scratch.down;
  AxisWeights& across = scratch.across;
  int64_t channels = 0;
  const auto choose = [&](const ImageShape& image) {
    drawn = Draw(key, image);
    down.Compute(
        PartOf(drawn.crop.height, drawn.height, drawn.top, shape_.height),
        options_.interpolation);
    across.Compute(
        PartOf(drawn.crop.width, drawn.width, drawn.left, shape_.width),
        options_.interpolation);
    channels = image.channels;
    scratch.resizer.Begin(down, across, channels);
    return ImageRegion{drawn.crop.top + down.needs_begin,
                       drawn.crop.left + across.needs_begin,
                       down.needs_end - down.needs_begin,
                       across.needs_end - across.needs_begin};
  };
  LOCKSTEP_RETURN_IF_ERROR(dataset.ReadRegion(
      key.index, choose,
      [&](const PixelRows& rows) { scratch.resizer.Add(rows); }));
  const bool whole =
      down.part.count == shape_.height && across.part.count == shape_.width;
  if (ChangesColors(options_) || !whole) {
    WriteThroughBytes(drawn, channels, scratch, out);
  } else {
    scratch.resizer.Finish([&](int64_t y, const uint8_t* bytes) {
      WriteRow(bytes, channels, shape_.width, drawn.flip,
               out.data() + y * shape_.width * shape_.channels);
    });
  }
  for (int64_t y = 0; y < drawn.erase.height; ++y) {
    std::fill_n(
        out.data() + ((drawn.erase.top + y) * shape_.width + drawn.erase.left) *
                         shape_.channels,
        drawn.erase.width * shape_.channels, 0.0f);
  }
  return absl::OkStatus();
}

void Transform::WriteThroughBytes(const SampleDraws& drawn, int64_t channels,
                                  TransformScratch& scratch,
                                  std::span<float> out) const {
  const int64_t row_bytes = shape_.width * channels;
  scratch.bytes.assign(shape_.height * row_bytes, 0);
  uint8_t* const first = scratch.bytes.data() +
                         std::max(-drawn.top, int64_t{0}) * row_bytes +
                         std::max(-drawn.left, int64_t{0}) * channels;
  scratch.resizer.Finish([&](int64_t y, const uint8_t* bytes) {
    std::copy_n(bytes, scratch.across.part.count * channels,
                first + y * row_bytes);
  });
  if (ChangesColors(options_)) AdjustColors(drawn, channels, scratch.bytes);
  for (int64_t y = 0; y < shape_.height; ++y) {
    WriteRow(scratch.bytes.data() + y * row_bytes, channels, shape_.width,
             drawn.flip, out.data() + y * shape_.width * shape_.channels);
  }
}

absl::StatusOr<SampleLabel> Transform::Load(const Dataset& dataset,
                                            const SampleKey& key,
                                            TransformScratch& scratch,
                                            std::span<float> out) const {
  assert(static_cast<int64_t>(out.size()) == shape_.size());
  LOCKSTEP_RETURN_IF_ERROR(LoadOne(dataset, key, scratch, out));
  const int32_t label = dataset.label(key.index);
  const std::optional<Mixture> mixture = DrawMixture(key, dataset.size());
  if (!mixture.has_value() || mixture->share == 1) {
    return SampleLabel{label, label, 1};
  }
  scratch.partner.resize(out.size());
  LOCKSTEP_RETURN_IF_ERROR(LoadOne(dataset,
                                   {key.seed, key.epoch, mixture->partner},
                                   scratch, scratch.partner));
  const ImageRegion& box = mixture->box;
  for (int64_t y = box.top; y < box.top + box.height; ++y) {
    const int64_t begin = (y * shape_.width + box.left) * shape_.channels;
    std::copy_n(scratch.partner.data() + begin, box.width * shape_.channels,
                out.data() + begin);
  }
  if (box.height == 0) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] =
          mixture->share * out[i] + (1 - mixture->share) * scratch.partner[i];
    }
  }
  return SampleLabel{label, dataset.label(mixture->partner), mixture->share};
}

}  // namespace lockstep
