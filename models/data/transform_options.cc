#include "models/data/transform_options.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("'", field, "' ", what));
}

// The syntax of an operation: its numbers' defaults, and where they are stored.
struct Syntax {
  absl::string_view name;
  std::vector<double> numbers;
  double most;  // Each number is in [0, most].
  void (*set)(const std::vector<double>& numbers, TransformOptions& options);
};

const std::vector<Syntax>& Syntaxes() {
  static const auto* const kSyntaxes = new std::vector<Syntax>{
      {"resized_crop",
       {0.08, 1},
       1,
       [](const auto& n, auto& o) {
         o.resized_crop = {.min_area = n[0], .max_area = n[1]};
       }},
      {"crop",
       {4},
       1 << 14,
       [](const auto& n, auto& o) {
         o.crop_padding = static_cast<int64_t>(n[0]);
       }},
      {"flip", {0.5}, 1, [](const auto& n, auto& o) { o.flip = n[0]; }},
      {"jitter",
       {0.4, 0.4, 0.4, 0.1},
       1e6,
       [](const auto& n, auto& o) {
         o.brightness = n[0];
         o.contrast = n[1];
         o.saturation = n[2];
         o.hue = n[3];
       }},
      {"erase", {0.25}, 1, [](const auto& n, auto& o) { o.erase = n[0]; }},
      {"mixup", {0.2}, 1e6, [](const auto& n, auto& o) { o.mixup = n[0]; }},
      {"cutmix", {1}, 1e6, [](const auto& n, auto& o) { o.cutmix = n[0]; }},
  };
  return *kSyntaxes;
}

absl::Status ParseOperation(absl::string_view field,
                            TransformOptions& options) {
  const std::vector<absl::string_view> parts = absl::StrSplit(field, ':');
  if (field == "none") return absl::OkStatus();
  if (field == "standard") {
    options.resized_crop.emplace();
    options.flip = 0.5;
    return absl::OkStatus();
  }
  for (const Syntax& syntax : Syntaxes()) {
    if (syntax.name != parts[0]) continue;
    std::vector<double> numbers = syntax.numbers;
    if (parts.size() - 1 > numbers.size()) {
      return Bad(field,
                 absl::StrCat("has more than ", numbers.size(), " numbers"));
    }
    for (size_t i = 1; i < parts.size(); ++i) {
      if (!absl::SimpleAtod(parts[i], &numbers[i - 1]) ||
          !(numbers[i - 1] >= 0 && numbers[i - 1] <= syntax.most)) {
        return Bad(field, absl::StrCat("has '", parts[i],
                                       "', must be a number in [0, ",
                                       syntax.most, "]"));
      }
    }
    syntax.set(numbers, options);
    return absl::OkStatus();
  }
  std::string known = "none, standard";
  for (const Syntax& syntax : Syntaxes()) {
    absl::StrAppend(&known, ", ", syntax.name);
  }
  return Bad(field, absl::StrCat("is not one of ", known));
}

absl::Status ParseNumbers(absl::string_view text, std::vector<float>& values) {
  values.clear();
  if (text.empty()) return absl::OkStatus();
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtof(field, &values.emplace_back())) {
      return Bad(field, "is not a number");
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool ChangesColors(const TransformOptions& options) {
  return options.brightness > 0 || options.contrast > 0 ||
         options.saturation > 0 || options.hue > 0;
}

bool Mixes(const TransformOptions& options) {
  return options.mixup > 0 || options.cutmix > 0;
}

TransformOptions WithoutAugmentation(TransformOptions options) {
  TransformOptions plain;
  plain.height = options.height;
  plain.width = options.width;
  plain.channels = options.channels;
  plain.interpolation = options.interpolation;
  plain.shorter_side = options.shorter_side;
  plain.mean = std::move(options.mean);
  plain.std = std::move(options.std);
  return plain;
}

absl::Status ParseAugmentation(absl::string_view text,
                               TransformOptions& options) {
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    LOCKSTEP_RETURN_IF_ERROR(ParseOperation(field, options));
  }
  if (options.resized_crop.has_value() && options.crop_padding.has_value()) {
    return Bad(text, "has both resized_crop and crop");
  }
  return absl::OkStatus();
}

absl::Status ParseImageSize(absl::string_view text, TransformOptions& options) {
  const std::pair<absl::string_view, absl::string_view> sides =
      absl::StrSplit(text, absl::MaxSplits('x', 1));
  const bool square = text.find('x') == absl::string_view::npos;
  int64_t height = 0, width = 0;
  const bool is_number =
      absl::SimpleAtoi(sides.first, &height) &&
      absl::SimpleAtoi(square ? sides.first : sides.second, &width);
  const int64_t least = square ? 0 : 1;
  if (!is_number || height < least || width < least || height > kMaxSide ||
      width > kMaxSide) {
    return Bad(text,
               absl::StrCat("must be 0, a size such as 224, or a height and a "
                            "width such as 192x256, at most ",
                            kMaxSide));
  }
  options.height = height;
  options.width = width;
  return absl::OkStatus();
}

absl::Status ParseMeanAndStd(absl::string_view mean, absl::string_view std,
                             TransformOptions& options) {
  if ((mean == "imagenet") != (std == "imagenet")) {
    return Bad("imagenet",
               "must be given for both mean and std, or for neither");
  }
  if (mean == "imagenet") {
    options.mean = {0.485f, 0.456f, 0.406f};
    options.std = {0.229f, 0.224f, 0.225f};
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(ParseNumbers(mean, options.mean));
  return ParseNumbers(std, options.std);
}

}  // namespace lockstep
