#include "models/data/transform_draws.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <utility>

#include "base/counter_random.h"
#include "models/data/image.h"
#include "models/data/transform_options.h"

namespace lockstep {
namespace {

// Each operation's numbers are a separate stream, so that adding or removing
// another operation does not change them. The values are part of a seed's
// meaning: append new ones, never renumber.
enum class Operation : uint64_t {
  kResizedCrop,
  kCrop,
  kFlip,
  kColors,
  kErase,
  kMixture,
};

CounterRandom Stream(const SampleKey& key, Operation operation) {
  return CounterRandom(key.seed, static_cast<uint64_t>(key.epoch),
                       static_cast<uint64_t>(key.index),
                       static_cast<uint64_t>(operation));
}

// Rounds to nearest, halves to even, as Python's round.
int64_t Round(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

// Draws numbers of a stream in order.
class Draws {
 public:
  explicit Draws(CounterRandom stream) : stream_(stream) {}

  double Uniform(double low, double high) {
    return low + (high - low) * stream_.Uniform(next_++);
  }
  double LogUniform(double low, double high) {
    return std::exp(Uniform(std::log(low), std::log(high)));
  }
  int64_t UniformBelow(int64_t n) { return stream_.UniformInt(next_++, n); }

  // Returns the logarithm of a draw from Gamma(alpha, 1). The logarithm keeps
  // draws with a small alpha from rounding to 0 (Marsaglia & Tsang 2000, with
  // their step for alpha < 1).
  double LogGamma(double alpha) {
    const double boost = alpha < 1 ? std::log(1 - Uniform(0, 1)) / alpha : 0;
    const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = Normal(), v = std::pow(1 + c * x, 3);
      if (v <= 0) continue;
      const double u = 1 - Uniform(0, 1);
      if (std::log(u) < x * x / 2 + d - d * v + d * std::log(v)) {
        return std::log(d * v) + boost;
      }
    }
  }

  double Beta(double alpha) {
    const double a = LogGamma(alpha), b = LogGamma(alpha);
    return 1 / (1 + std::exp(b - a));
  }

 private:
  double Normal() {  // Box & Muller 1958.
    const double radius = std::sqrt(-2 * std::log(1 - Uniform(0, 1)));
    return radius * std::cos(2 * std::numbers::pi * Uniform(0, 1));
  }

  const CounterRandom stream_;
  uint64_t next_ = 0;
};

// Draws as torchvision's RandomResizedCrop.get_params.
ImageRegion DrawResizedCrop(Draws draws, const ResizedCrop& crop,
                            const ImageShape& image) {
  const auto area = static_cast<double>(image.height * image.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * draws.Uniform(crop.min_area, crop.max_area);
    const double ratio = draws.LogUniform(crop.min_ratio, crop.max_ratio);
    const int64_t width = Round(std::sqrt(target * ratio));
    const int64_t height = Round(std::sqrt(target / ratio));
    if (width < 1 || width > image.width || height < 1 ||
        height > image.height) {
      continue;
    }
    const int64_t top = draws.UniformBelow(image.height - height + 1);
    return {top, draws.UniformBelow(image.width - width + 1), height, width};
  }
  // The largest middle part with an allowed ratio.
  const auto width = static_cast<double>(image.width);
  const auto height = static_cast<double>(image.height);
  ImageRegion part = {0, 0, image.height, image.width};
  if (width / height < crop.min_ratio) {
    part.height =
        std::clamp(Round(width / crop.min_ratio), int64_t{1}, image.height);
  } else if (width / height > crop.max_ratio) {
    part.width =
        std::clamp(Round(height * crop.max_ratio), int64_t{1}, image.width);
  }
  part.top = (image.height - part.height) / 2;
  part.left = (image.width - part.width) / 2;
  return part;
}

// Draws as torchvision's RandomErasing.get_params.
ImageRegion DrawErase(Draws draws, const ImageShape& shape) {
  const auto area = static_cast<double>(shape.height * shape.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * draws.Uniform(0.02, 0.33);
    const double ratio = draws.LogUniform(0.3, 3.3);
    const int64_t height = Round(std::sqrt(target * ratio));
    const int64_t width = Round(std::sqrt(target / ratio));
    if (height >= shape.height || width >= shape.width) continue;
    const int64_t top = draws.UniformBelow(shape.height - height + 1);
    return {top, draws.UniformBelow(shape.width - width + 1), height, width};
  }
  return {};
}

// Returns where the middle `part` of `whole` pixels begins, as in torchvision's
// CenterCrop, which pads images that are too small.
int64_t CenterBegin(int64_t whole, int64_t part) {
  if (whole < part) return -((part - whole) / 2);
  return Round(static_cast<double>(whole - part) / 2);
}

// Draws where `part` of `whole` pixels with `padding` on both sides begins.
int64_t DrawBegin(Draws& draws, int64_t whole, int64_t part, int64_t padding) {
  const int64_t places = whole + 2 * padding - part + 1;
  // A number is drawn in every case, so that the other axis's number does not
  // depend on this axis.
  const int64_t begin =
      draws.UniformBelow(std::max(places, int64_t{1})) - padding;
  return places < 1 ? CenterBegin(whole, part) : begin;
}

void DrawColors(const TransformOptions& options, const SampleKey& key,
                SampleDraws& drawn) {
  Draws draws(Stream(key, Operation::kColors));
  int at = 0;
  for (const double most :
       {options.brightness, options.contrast, options.saturation}) {
    drawn.colors[at++] =
        static_cast<float>(draws.Uniform(std::max(0.0, 1 - most), 1 + most));
  }
  drawn.colors[at] =
      static_cast<float>(draws.Uniform(-options.hue, options.hue));
  for (int left = 4; left > 1; --left) {  // Fisher & Yates.
    std::swap(drawn.color_order[left - 1],
              drawn.color_order[draws.UniformBelow(left)]);
  }
}

}  // namespace

SampleDraws DrawSample(const TransformOptions& options,
                       const ImageShape& result, const SampleKey& key,
                       const ImageShape& image) {
  SampleDraws drawn;
  drawn.crop = {0, 0, image.height, image.width};
  drawn.height = result.height;
  drawn.width = result.width;
  if (options.resized_crop.has_value()) {
    drawn.crop = DrawResizedCrop(Draws(Stream(key, Operation::kResizedCrop)),
                                 *options.resized_crop, image);
  } else if (options.shorter_side > 0) {
    const int64_t shorter = std::min(image.height, image.width);
    drawn.height = options.shorter_side * image.height / shorter;
    drawn.width = options.shorter_side * image.width / shorter;
  }
  if (options.crop_padding.has_value()) {
    Draws draws(Stream(key, Operation::kCrop));
    drawn.top =
        DrawBegin(draws, drawn.height, result.height, *options.crop_padding);
    drawn.left =
        DrawBegin(draws, drawn.width, result.width, *options.crop_padding);
  } else {
    drawn.top = CenterBegin(drawn.height, result.height);
    drawn.left = CenterBegin(drawn.width, result.width);
  }
  if (options.flip > 0) {
    Draws draws(Stream(key, Operation::kFlip));
    drawn.flip = draws.Uniform(0, 1) < options.flip;
  }
  if (ChangesColors(options)) DrawColors(options, key, drawn);
  if (options.erase > 0) {
    Draws draws(Stream(key, Operation::kErase));
    if (draws.Uniform(0, 1) < options.erase) {
      drawn.erase = DrawErase(draws, result);
    }
  }
  return drawn;
}

std::optional<Mixture> DrawMixture(const TransformOptions& options,
                                   const ImageShape& result,
                                   const SampleKey& key, int64_t size) {
  if (!Mixes(options)) return std::nullopt;
  Draws draws(Stream(key, Operation::kMixture));
  Mixture mixture = {draws.UniformBelow(size), 1, {}};
  const bool cut = draws.Uniform(0, 1) < (options.mixup == 0    ? 1
                                          : options.cutmix == 0 ? 0
                                                                : 0.5);
  const double share = draws.Beta(cut ? options.cutmix : options.mixup);
  mixture.share = static_cast<float>(share);
  if (!cut) return mixture;
  // torchvision's CutMix: the box has that share around a random point
  // and is cut off at the image's edges. The share is then computed from the
  // box.
  const double half = std::sqrt(1 - share) / 2;
  const auto side = [&](int64_t size_of_side, int64_t& begin, int64_t& count) {
    const int64_t middle = draws.UniformBelow(size_of_side);
    const auto reach =
        static_cast<int64_t>(half * static_cast<double>(size_of_side));
    begin = std::max(middle - reach, int64_t{0});
    count = std::min(middle + reach, size_of_side) - begin;
  };
  side(result.width, mixture.box.left, mixture.box.width);
  side(result.height, mixture.box.top, mixture.box.height);
  const int64_t area = mixture.box.height * mixture.box.width;
  mixture.share = static_cast<float>(
      1 - static_cast<double>(area) /
              static_cast<double>(result.height * result.width));
  return mixture;
}

}  // namespace lockstep
