// Compares pixels with torchvision's and Pillow's
// (testdata/torchvision_goldens.py). Tests the random draws and their keys, and
// options as text.
#include "models/data/transform.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/counter_random.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/color.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/resize.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Bytes = std::vector<uint8_t>;

Bytes Noise(int64_t n) {
  Bytes bytes(n);
  for (int64_t i = 0; i < n; ++i) {
    bytes[i] = static_cast<uint8_t>(MixBits(i + 1) >> 56);
  }
  return bytes;
}

// Returns `n` images of noise; all the same if `repeat`.
MemoryDataset NoiseDataset(ImageShape shape, int64_t n = 1,
                           bool repeat = false) {
  Bytes images = Noise(shape.size() * (repeat ? 1 : n));
  for (int64_t i = 1; repeat && i < n; ++i) {
    images.insert(images.end(), images.begin(), images.begin() + shape.size());
  }
  Bytes labels(n);
  for (int64_t i = 0; i < n; ++i) labels[i] = static_cast<uint8_t>(i % 7);
  return MemoryDataset(shape, 7, std::move(images), std::move(labels));
}

Transform MakeTransform(const TransformOptions& options,
                        const Dataset& dataset) {
  absl::StatusOr<Transform> transform = Transform::Create(options, dataset);
  EXPECT_THAT(transform, IsOk());
  return *std::move(transform);
}

std::vector<float> LoadOne(const Transform& transform, const Dataset& dataset,
                           const SampleKey& key, SampleLabel* label = nullptr) {
  TransformScratch scratch;
  std::vector<float> out(transform.shape().size(), NAN);
  const absl::StatusOr<SampleLabel> loaded =
      transform.Load(dataset, key, scratch, out);
  EXPECT_THAT(loaded, IsOk());
  if (label != nullptr && loaded.ok()) *label = *loaded;
  return out;
}

// Returns the bytes from which values / 255 were computed.
Bytes BytesOf(const std::vector<float>& values) {
  Bytes bytes;
  for (const float value : values) {
    bytes.push_back(static_cast<uint8_t>(std::lround(value * 255)));
  }
  return bytes;
}

int LargestDifference(const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

Interpolation ModeOf(const std::string& name) {
  return name == "bicubic" ? Interpolation::kBicubic : Interpolation::kBilinear;
}

Bytes ResizedPart(const Bytes& bytes, int64_t channels, const AxisPart& down,
                  const AxisPart& across, Interpolation interpolation,
                  bool use_vectors) {
  AxisWeights down_weights, across_weights;
  down_weights.Compute(down, interpolation);
  across_weights.Compute(across, interpolation);
  const Image image = {down.from, across.from, channels, bytes};
  Resizer resizer(use_vectors);
  resizer.Begin(down_weights, across_weights, channels);
  // Adds one, two and three rows at a time, each time in memory of their own,
  // so that asan detects a read beyond.
  int64_t most = 0;
  for (int64_t y = down_weights.needs_begin; y < down_weights.needs_end;
       y += most) {
    most = most % 3 + 1;
    Image piece;
    AppendRows(
        RowsOf(image, {y, across_weights.needs_begin,
                       std::min(most, down_weights.needs_end - y),
                       across_weights.needs_end - across_weights.needs_begin}),
        piece);
    piece.pixels.shrink_to_fit();
    resizer.Add(RowsOf(piece));
  }
  Bytes out;
  resizer.Finish([&](int64_t y, const uint8_t* row) {
    EXPECT_EQ(y * across.count * channels, static_cast<int64_t>(out.size()));
    out.insert(out.end(), row, row + across.count * channels);
  });
  return out;
}

Bytes Resized(const Bytes& bytes, const ImageShape& from, int64_t height,
              int64_t width, Interpolation interpolation,
              bool use_vectors = true) {
  return ResizedPart(bytes, from.channels, {from.height, height, 0, height},
                     {from.width, width, 0, width}, interpolation, use_vectors);
}

// Returns the lines of the file that begin with `kind`, without it.
std::vector<std::istringstream> Goldens(const std::string& kind) {
  std::ifstream file("models/data/testdata/torchvision_golden.txt");
  std::vector<std::istringstream> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.substr(0, kind.size() + 1) == kind + " ") {
      lines.emplace_back(line.substr(kind.size() + 1));
    }
  }
  EXPECT_FALSE(lines.empty()) << kind;
  return lines;
}

Bytes ReadHex(std::istringstream& line) {
  std::string hex;
  line >> hex;
  const std::string bytes = absl::HexStringToBytes(hex);
  return {bytes.begin(), bytes.end()};
}

// A whole image of noise, resized.
struct ResizeGolden {
  Interpolation mode = Interpolation::kBilinear;
  ImageShape from;
  int64_t height = 0, width = 0;
  Bytes want = {};
};

ResizeGolden ReadResize(std::istringstream& line) {
  std::string mode;
  ResizeGolden golden;
  line >> mode >> golden.from.channels >> golden.from.height >>
      golden.from.width >> golden.height >> golden.width;
  golden.mode = ModeOf(mode);
  golden.want = ReadHex(line);
  return golden;
}

Bytes ResizedAs(const ResizeGolden& golden, Interpolation mode,
                bool use_vectors = true) {
  return Resized(Noise(golden.from.size()), golden.from, golden.height,
                 golden.width, mode, use_vectors);
}

Interpolation OtherThan(Interpolation mode) {
  return mode == Interpolation::kBicubic ? Interpolation::kBilinear
                                         : Interpolation::kBicubic;
}

TEST(TorchvisionTest, ResizesToTheSameBytes) {
  int told_apart = 0;
  for (std::istringstream& line : Goldens("resize")) {
    SCOPED_TRACE(line.str().substr(0, 40));
    const ResizeGolden golden = ReadResize(line);
    for (const bool use_vectors : {false, true}) {
      EXPECT_EQ(ResizedAs(golden, golden.mode, use_vectors), golden.want);
    }
    const Bytes other = ResizedAs(golden, OtherThan(golden.mode));
    told_apart += LargestDifference(other, golden.want) > 1;
  }
  EXPECT_GE(told_apart, 24);  // Out of 28; images of one pixel do not differ.
}

// Returns whether Pillow 13 resizes down before across. Pillow up to 12 and
// torchvision always resize across first.
bool PillowGoesDownFirst(const ResizeGolden& golden) {
  const int64_t rows_less = golden.from.height - golden.height;
  const int64_t columns_less = golden.from.width - golden.width;
  return rows_less > 0 && rows_less > 2 * columns_less;
}

// Returns the result of our two passes in Pillow's order.
Bytes ResizedInPillowsOrder(const ResizeGolden& golden) {
  if (!PillowGoesDownFirst(golden)) return ResizedAs(golden, golden.mode);
  ImageShape between = golden.from;
  between.height = golden.height;
  const Bytes down = Resized(Noise(golden.from.size()), golden.from,
                             between.height, between.width, golden.mode);
  return Resized(down, between, golden.height, golden.width, golden.mode);
}

// Returns the largest allowed difference between Pillow's values and ours, in
// levels. Pillow rounds weights to 22 bits, ATen to 16. A bicubic pass has
// negative weights, and so can enlarge the first pass's difference.
int PillowLevels(Interpolation mode) {
  return mode == Interpolation::kBicubic ? 2 : 1;
}

// Returns whether all values are within PillowLevels of Pillow's.
bool IsNearPillow(const Bytes& got, const ResizeGolden& golden) {
  return LargestDifference(got, golden.want) <= PillowLevels(golden.mode);
}

TEST(PillowTest, ResizesAlmostToTheSameBytes) {
  int told_apart = 0, differ_in_order = 0;
  for (std::istringstream& line : Goldens("pillow")) {
    SCOPED_TRACE(line.str().substr(0, 40));
    const ResizeGolden golden = ReadResize(line);
    EXPECT_TRUE(IsNearPillow(ResizedInPillowsOrder(golden), golden));
    const bool is_near = IsNearPillow(ResizedAs(golden, golden.mode), golden);
    differ_in_order += !is_near;
    if (golden.mode == Interpolation::kBilinear ||
        !PillowGoesDownFirst(golden)) {
      EXPECT_TRUE(is_near);
    }
    told_apart +=
        !IsNearPillow(ResizedAs(golden, OtherThan(golden.mode)), golden);
  }
  EXPECT_EQ(differ_in_order, 1);  // 40 x 50 to 39 x 51, bicubic.
  EXPECT_GE(told_apart, 24);      // Out of 28, as above.
}

// The control of the test above.
TEST(PillowTest, AnyValueALevelFurtherAwayIsRejected) {
  for (std::istringstream& line : Goldens("pillow")) {
    SCOPED_TRACE(line.str().substr(0, 40));
    const ResizeGolden golden = ReadResize(line);
    const int most = PillowLevels(golden.mode);
    for (const size_t i : {size_t{0}, golden.want.size() - 1}) {
      for (const int levels : {most, most + 1}) {
        Bytes changed = golden.want;
        const int sign = changed[i] < 128 ? 1 : -1;
        changed[i] = static_cast<uint8_t>(changed[i] + sign * levels);
        EXPECT_EQ(IsNearPillow(changed, golden), levels == most);
      }
    }
  }
}

TEST(TorchvisionTest, ResizesTheShorterSideAndCutsTheMiddle) {
  for (std::istringstream& line : Goldens("shorter")) {
    std::string mode;
    ImageShape from;
    TransformOptions options;
    line >> mode >> from.channels >> from.height >> from.width >>
        options.shorter_side >> options.height;
    SCOPED_TRACE(line.str().substr(0, 40));
    options.width = options.height;
    options.interpolation = ModeOf(mode);
    const MemoryDataset dataset = NoiseDataset(from);
    EXPECT_EQ(
        BytesOf(LoadOne(MakeTransform(options, dataset), dataset, {0, 0, 0})),
        ReadHex(line));
  }
}

TEST(TorchvisionTest, ChangesColorsWithinOneLevel) {
  for (std::istringstream& line : Goldens("color")) {
    std::string name;
    float factor = 0;
    ImageShape shape;
    line >> name >> factor >> shape.channels >> shape.height >> shape.width;
    SCOPED_TRACE(line.str().substr(0, 40));
    Bytes bytes = Noise(shape.size());
    if (name == "brightness") AdjustBrightness(bytes, factor);
    if (name == "contrast") AdjustContrast(bytes, shape.channels, factor);
    if (name == "saturation") AdjustSaturation(bytes, shape.channels, factor);
    if (name == "hue") AdjustHue(bytes, shape.channels, factor);
    const Bytes want = ReadHex(line);
    EXPECT_LE(LargestDifference(bytes, want), 1);
    // The control: the unchanged image differs, unless saturation or hue change
    // an image of one channel.
    if (shape.channels == 3 || name == "brightness" || name == "contrast") {
      EXPECT_GT(LargestDifference(Noise(shape.size()), want), 20);
    }
  }
}

TEST(TorchvisionTest, NormalizesToTheSameFloats) {
  for (std::istringstream& line : Goldens("normalize")) {
    ImageShape shape = {0, 0, 3};
    line >> shape.height >> shape.width;
    TransformOptions options;
    ASSERT_THAT(ParseMeanAndStd("imagenet", "imagenet", options), IsOk());
    const MemoryDataset dataset = NoiseDataset(shape);
    std::vector<float> want;
    for (std::string value; line >> value;) {
      want.push_back(std::strtof(value.c_str(), nullptr));
    }
    EXPECT_EQ(LoadOne(MakeTransform(options, dataset), dataset, {0, 0, 0}),
              want);
  }
}

// Images of five channels keep them, and have no colours to change.
TEST(TransformTest, TakesTheDataSetsOwnChannels) {
  const ImageShape shape = {3, 4, 5};
  const MemoryDataset dataset = NoiseDataset(shape);
  const Bytes bytes = Noise(shape.size());
  for (const double flip : {0.0, 1.0}) {
    TransformOptions options;
    options.flip = flip;
    const std::vector<float> got =
        LoadOne(MakeTransform(options, dataset), dataset, {0, 0, 0});
    for (int64_t i = 0; i < shape.size(); ++i) {
      const int64_t x = i / shape.channels % shape.width;
      const int64_t from =
          flip > 0 ? i + (shape.width - 1 - 2 * x) * shape.channels : i;
      EXPECT_EQ(got[i], static_cast<float>(bytes[from]) / 255.0f) << i;
    }
  }
  TransformOptions colors;
  colors.hue = 0.1f;
  EXPECT_THAT(Transform::Create(colors, dataset).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("jitter needs images of 1 or 3 channels")));
  for (const int64_t channels : {1, 2, 3}) {
    EXPECT_THAT(
        Transform::Create({.channels = channels}, dataset).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("channels is ", channels,
                                        ", must be the data set's 5"))));
  }
  EXPECT_THAT(
      Transform::Create({.channels = 2}, NoiseDataset({3, 4, 3})).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("channels is 2, must be 1 or 3")));
}

// Resizes every part of small images. A part reads only the pixels that it
// declares.
TEST(ResizerTest, PartsArePartsOfTheWhole) {
  constexpr int64_t kWidth = 4;
  for (const int64_t channels : {1, 3}) {
    for (const int64_t from : {1, 5, 13}) {
      const Bytes bytes = Noise(from * kWidth * channels);
      for (const int64_t to : {1, 4, 5, 9}) {
        for (const Interpolation mode :
             {Interpolation::kBilinear, Interpolation::kBicubic}) {
          const Bytes down =
              Resized(bytes, {from, kWidth, channels}, to, kWidth, mode);
          const Bytes across =
              Resized(bytes, {kWidth, from, channels}, kWidth, to, mode);
          for (int64_t begin = 0; begin < to; ++begin) {
            for (int64_t count = 1; begin + count <= to; ++count) {
              const AxisPart part = {from, to, begin, count};
              const AxisPart all = {kWidth, kWidth, 0, kWidth};
              const int64_t row = kWidth * channels;
              EXPECT_EQ(ResizedPart(bytes, channels, part, all, mode, true),
                        Bytes(down.begin() + begin * row,
                              down.begin() + (begin + count) * row));
              const Bytes got =
                  ResizedPart(bytes, channels, all, part, mode, true);
              for (int64_t y = 0; y < kWidth; ++y) {
                EXPECT_TRUE(
                    std::equal(got.begin() + y * count * channels,
                               got.begin() + (y + 1) * count * channels,
                               across.begin() + (y * to + begin) * channels));
              }
            }
          }
        }
      }
    }
  }
}

TEST(TransformTest, ChangesNothingButTheTypeByDefault) {
  for (const int64_t channels : {1, 3}) {
    const MemoryDataset dataset = NoiseDataset({5, 4, channels}, 3);
    std::vector<float> want(dataset.image_size());
    dataset.GatherImages(std::vector<int64_t>{2}, want);
    SampleLabel label;
    EXPECT_EQ(LoadOne(MakeTransform({}, dataset), dataset, {9, 9, 2}, &label),
              want);
    EXPECT_EQ(label, (SampleLabel{2, 2, 1}));
  }
}

TEST(TransformTest, MakesGreyOfColorsAndColorsOfGrey) {
  const MemoryDataset color({1, 2, 3}, 7, {255, 0, 0, 10, 20, 30}, {0});
  EXPECT_THAT(
      BytesOf(LoadOne(MakeTransform({.channels = 1}, color), color, {})),
      ElementsAre(76, 18));
  const MemoryDataset grey({1, 2, 1}, 7, {5, 9}, {0});
  EXPECT_THAT(BytesOf(LoadOne(MakeTransform({.channels = 3}, grey), grey, {})),
              ElementsAre(5, 5, 5, 9, 9, 9));
}

// Returns options with all random operations.
TransformOptions Everything() {
  TransformOptions options = {.height = 6, .width = 8};
  EXPECT_THAT(
      ParseAugmentation("standard,jitter,erase:0.5,mixup,cutmix", options),
      IsOk());
  return options;
}

TEST(TransformTest, IsAFunctionOfSeedEpochAndSample) {
  // All images are the same, so only the draws can distinguish the results.
  const MemoryDataset dataset = NoiseDataset({9, 11, 3}, 20, /*repeat=*/true);
  const Transform transform = MakeTransform(Everything(), dataset);
  std::set<std::vector<float>> results;
  TransformScratch scratch;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      for (int64_t index = 0; index < 20; ++index) {
        const SampleKey key = {seed, epoch, index};
        std::vector<float> again(transform.shape().size());
        ASSERT_THAT(transform.Load(dataset, key, scratch, again), IsOk());
        // The result does not depend on earlier uses of the scratch.
        EXPECT_EQ(LoadOne(transform, dataset, key), again);
        results.insert(std::move(again));
      }
    }
  }
  EXPECT_EQ(results.size(), 180u);
}

TEST(TransformTest, DrawsEachOperationByItself) {
  const MemoryDataset dataset = NoiseDataset({9, 11, 3});
  TransformOptions less = Everything();
  less.flip = less.hue = less.brightness = 0;
  const Transform all = MakeTransform(Everything(), dataset);
  const Transform some = MakeTransform(less, dataset);
  for (int64_t index = 0; index < 20; ++index) {
    const SampleDraws a = all.Draw({0, 0, index}, {9, 11, 3});
    const SampleDraws b = some.Draw({0, 0, index}, {9, 11, 3});
    EXPECT_EQ(a.crop, b.crop);
    EXPECT_EQ(a.erase, b.erase);
    EXPECT_EQ(a.colors[1], b.colors[1]);
  }
}

TEST(TransformTest, FlipsErasesAndPads) {
  constexpr int64_t kSide = 5;
  const ImageShape shape = {kSide, kSide, 3};
  const MemoryDataset dataset = NoiseDataset(shape);
  const std::vector<float> plain =
      LoadOne(MakeTransform({}, dataset), dataset, {});
  const Transform transform =
      MakeTransform({.crop_padding = 2, .flip = 0.5, .erase = 0.5}, dataset);
  int flips = 0, erased = 0;
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const SampleDraws drawn = transform.Draw({1, epoch, 0}, shape);
    flips += drawn.flip;
    erased += drawn.erase.height > 0;
    places.emplace(drawn.top, drawn.left);
    std::vector<float> want(plain.size());
    for (int64_t y = 0; y < kSide; ++y) {
      for (int64_t x = 0; x < kSide; ++x) {
        const int64_t row = y + drawn.top;
        const int64_t column = (drawn.flip ? kSide - 1 - x : x) + drawn.left;
        const bool inside =
            row >= 0 && row < kSide && column >= 0 && column < kSide;
        const ImageRegion& box = drawn.erase;
        const bool is_erased = y >= box.top && y < box.top + box.height &&
                               x >= box.left && x < box.left + box.width;
        for (int64_t c = 0; inside && !is_erased && c < 3; ++c) {
          want[(y * kSide + x) * 3 + c] = plain[(row * kSide + column) * 3 + c];
        }
      }
    }
    ASSERT_EQ(LoadOne(transform, dataset, {1, epoch, 0}), want);
  }
  // All of them; one is missing for one seed in 120.
  EXPECT_EQ(places.size(), 25u);
  // Each count is outside by chance once in 10,000: 3.9 deviations of 7.1.
  EXPECT_NEAR(flips, 100, 28);
  EXPECT_NEAR(erased, 100, 28);
}

TEST(TransformTest, ResizesTheCropThatIsDrawn) {
  const ImageShape shape = {19, 23, 3};
  const MemoryDataset dataset = NoiseDataset(shape);
  TransformOptions options = {.height = 7, .width = 6};
  options.resized_crop.emplace();
  const Transform transform = MakeTransform(options, dataset);
  double area = 0, log_ratio = 0;
  constexpr int kDraws = 2000;
  for (int64_t epoch = 0; epoch < kDraws; ++epoch) {
    const ImageRegion crop = transform.Draw({3, epoch, 0}, shape).crop;
    area += static_cast<double>(crop.height * crop.width) / (19 * 23) / kDraws;
    log_ratio += std::log(static_cast<double>(crop.width) /
                          static_cast<double>(crop.height)) /
                 kDraws;
    if (epoch >= 50) continue;
    Image image;
    AppendRows(RowsOf(dataset.Read(0).value(), crop), image);
    EXPECT_EQ(
        BytesOf(LoadOne(transform, dataset, {3, epoch, 0})),
        Resized(image.pixels, image.shape(), 7, 6, Interpolation::kBilinear));
  }
  // The means of 100,000 of torchvision's draws for this shape. The tolerance
  // is 3.9 deviations of the two means' difference, which is exceeded once in
  // 10,000.
  EXPECT_NEAR(area, 0.4785, 0.0211);
  EXPECT_NEAR(log_ratio, 0.0246, 0.0147);
}

TEST(TransformTest, TakesTheMiddleOfImagesThatNoCropFits) {
  const MemoryDataset dataset = NoiseDataset({1, 1, 1});
  TransformOptions options = {.height = 2, .width = 2};
  options.resized_crop = ResizedCrop{.min_area = 1};
  const Transform transform = MakeTransform(options, dataset);
  EXPECT_EQ(transform.Draw({}, {4, 100, 3}).crop, (ImageRegion{0, 47, 4, 5}));
  EXPECT_EQ(transform.Draw({}, {100, 4, 3}).crop, (ImageRegion{47, 0, 5, 4}));
  EXPECT_THAT(BytesOf(LoadOne(transform, dataset, {})), Each(Noise(1)[0]));
}

TEST(TransformTest, MixesWithAnotherImageAsItLooksItself) {
  constexpr int64_t kSize = 40;
  const MemoryDataset dataset = NoiseDataset({6, 7, 1}, kSize);
  const Transform plain = MakeTransform({.flip = 0.5}, dataset);
  const Transform mixing =
      MakeTransform({.flip = 0.5, .mixup = 1, .cutmix = 1}, dataset);
  int boxes = 0;
  double share = 0;
  std::set<int64_t> partners;
  constexpr int kDraws = 400;
  for (int64_t i = 0; i < kDraws; ++i) {
    const SampleKey key = {5, i / kSize, i % kSize};
    const auto mixture = mixing.DrawMixture(key, kSize);
    ASSERT_TRUE(mixture.has_value());
    partners.insert(mixture->partner);
    const ImageRegion& box = mixture->box;
    SampleLabel label;
    const std::vector<float> got = LoadOne(mixing, dataset, key, &label);
    const std::vector<float> own = LoadOne(plain, dataset, key);
    const std::vector<float> other =
        LoadOne(plain, dataset, {key.seed, key.epoch, mixture->partner});
    boxes += box.height > 0;
    share += box.height > 0 ? 0 : mixture->share;
    EXPECT_EQ(label.label, dataset.label(key.index));
    EXPECT_EQ(label.share, mixture->share);
    if (label.share < 1) {
      EXPECT_EQ(label.other, dataset.label(mixture->partner));
    }
    double from_other = 0;
    for (int64_t k = 0; k < 42; ++k) {
      const bool in_box = k / 7 >= box.top && k / 7 < box.top + box.height &&
                          k % 7 >= box.left && k % 7 < box.left + box.width;
      from_other += in_box / 42.0;
      const float mixed = label.share * own[k] + (1 - label.share) * other[k];
      const float want = box.height == 0 ? mixed : in_box ? other[k] : own[k];
      ASSERT_NEAR(got[k], want, 1e-6);
    }
    if (box.height > 0) {
      EXPECT_NEAR(label.share, 1 - from_other, 1e-6);
    }
  }
  // A box, unless it is empty, has probability 1/2. At alpha 1 a share is
  // uniform. Each value is outside by chance once in 10,000.
  EXPECT_NEAR(boxes, 195, 45);
  EXPECT_NEAR(share / (kDraws - boxes), 0.5, 0.09);
  EXPECT_GT(partners.size(), 38u);
}

// Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)). The mean of 4,000
// draws is outside 3.9 deviations once in 10,000. The variance, whose deviation
// is at most 1/4 * 1/sqrt(4000) * 1/sqrt(2), is within 0.011.
TEST(TransformTest, DrawsSharesFromBeta) {
  const MemoryDataset dataset = NoiseDataset({4, 4, 1});
  for (const double alpha : {0.01, 0.2, 1.0, 8.0}) {
    const Transform transform = MakeTransform({.mixup = alpha}, dataset);
    double sum = 0, squares = 0;
    constexpr int kDraws = 4000;
    for (int64_t i = 0; i < kDraws; ++i) {
      const double share = transform.DrawMixture({7, 0, i}, 10)->share - 0.5;
      ASSERT_TRUE(share >= -0.5 && share <= 0.5);
      sum += share / kDraws;
      squares += share * share / kDraws;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(sum, 0, 3.9 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(squares, variance, 0.011) << alpha;
  }
}

TEST(TransformOptionsTest, ReadsText) {
  TransformOptions options;
  ASSERT_THAT(ParseAugmentation("standard,jitter:0.1:0.2,crop:3", options),
              Not(IsOk()));
  options = {};
  ASSERT_THAT(
      ParseAugmentation("crop:3,flip:0.25,jitter:0.1:0.2,mixup", options),
      IsOk());
  EXPECT_EQ(options.crop_padding, 3);
  EXPECT_EQ(options.flip, 0.25);
  EXPECT_EQ(options.contrast, 0.2);
  EXPECT_EQ(options.saturation, 0.4);
  EXPECT_EQ(options.mixup, 0.2);
  ASSERT_THAT(ParseImageSize("192x256", options), IsOk());
  ASSERT_THAT(ParseMeanAndStd("0.5", "0.1,0.2,0.3", options), IsOk());
  EXPECT_EQ(options.width, 256);
  EXPECT_THAT(options.mean, ElementsAre(0.5f));
  options = WithoutAugmentation(options);
  EXPECT_EQ(options.height, 192);
  EXPECT_THAT(options.std, ElementsAre(0.1f, 0.2f, 0.3f));
  EXPECT_EQ(options.flip + options.contrast + options.mixup, 0);
  EXPECT_FALSE(options.crop_padding.has_value());
}

TEST(TransformOptionsTest, NamesTheFieldAtFault) {
  TransformOptions options;
  for (const auto& [text, message] :
       {std::pair("flop", "'flop' is not one of none, standard, resized_crop"),
        {"flip,", "'' is not one of"},
        {"flip:2", "'flip:2' has '2', must be a number in [0, 1]"},
        {"flip:nan", "'flip:nan' has 'nan'"},
        {"flip:0.1:0.2", "'flip:0.1:0.2' has more than 1 numbers"},
        {"erase:", "'erase:' has ''"},
        {"crop,resized_crop", "has both resized_crop and crop"}}) {
    EXPECT_THAT(
        ParseAugmentation(text, options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    options = {};
  }
  for (const char* size : {"", "-1", "x", "3x", "0x3", "3x4x5", "100000"}) {
    EXPECT_THAT(ParseImageSize(size, options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("'", size, "' must be"))));
  }
  for (const auto& [mean, std, message] :
       {std::tuple("imagenet", "",
                   "'imagenet' must be given for both mean and std"),
        {"0.1,b,1", "", "'b' is not a number"},
        {"", "1,x", "'x' is not a number"}}) {
    EXPECT_THAT(
        ParseMeanAndStd(mean, std, options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

// A data set of files, whose shapes are not known.
class ShapelessDataset : public Dataset {
 public:
  int64_t size() const override { return 1; }
  int num_classes() const override { return 1; }
  int label(int64_t) const override { return 0; }
  absl::StatusOr<Image> Read(int64_t) const override {
    return absl::DataLossError("a.jpg: damaged");
  }
  std::optional<ImageShape> shape() const override { return std::nullopt; }
};

TEST(TransformTest, RefusesOptionsThatCannotBe) {
  const MemoryDataset dataset = NoiseDataset({6, 7, 1});
  for (const auto& [options, message] :
       {std::pair(TransformOptions{.height = 4}, "image_size's width is 0"),
        {TransformOptions{.height = 99999, .width = 1}, "height is 99999"},
        {TransformOptions{.channels = 2}, "channels is 2"},
        {TransformOptions{.shorter_side = -1}, "shorter side is -1"},
        {TransformOptions{.crop_padding = 6}, "padding is 6, must be in [0, 5"},
        {TransformOptions{.flip = NAN}, "flip is nan"},
        {TransformOptions{.hue = 0.6}, "hue is 0.6"},
        {TransformOptions{.resized_crop = ResizedCrop{.min_area = 2}},
         "least area is 2"},
        {TransformOptions{.mean = {1, 2, 3}}, "mean has 3 values for 1"},
        {TransformOptions{.std = {0}}, "std has 0, must be positive"}}) {
    EXPECT_THAT(
        Transform::Create(options, dataset).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  const ShapelessDataset files;
  EXPECT_THAT(Transform::Create({}, files).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("image_size is 0")));
  const Transform transform = MakeTransform({.height = 2, .width = 2}, files);
  EXPECT_EQ(transform.shape(), (ImageShape{2, 2, 3}));
  TransformScratch scratch;
  std::vector<float> out(12);
  EXPECT_THAT(transform.Load(files, {}, scratch, out).status(),
              StatusIs(absl::StatusCode::kDataLoss, "a.jpg: damaged"));
}

}  // namespace
}  // namespace lockstep
