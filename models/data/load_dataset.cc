#include "models/data/load_dataset.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/counter_random.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/image_files.h"
#include "models/data/split.h"

namespace lockstep {
namespace {

// CIFAR-10 (Krizhevsky 2009).

constexpr int64_t kCifarPixels = kCifarSide * kCifarSide;
constexpr int64_t kCifarRecord = 1 + 3 * kCifarPixels;
constexpr int64_t kCifarMostBytes = kMaxCifarRecords * kCifarRecord;

absl::StatusOr<MemoryDataset> LoadCifar10Files(
    const std::string& dir, const std::vector<std::string>& names) {
  std::vector<uint8_t> images, labels;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir, "/", name);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes,
                              ReadForeignFile(path, kCifarMostBytes));
    LOCKSTEP_RETURN_IF_ERROR(AppendCifar10(bytes, path, images, labels));
  }
  return MemoryDataset({kCifarSide, kCifarSide, 3}, kCifarClasses,
                       std::move(images), std::move(labels),
                       {"airplane", "automobile", "bird", "cat", "deer", "dog",
                        "frog", "horse", "ship", "truck"});
}

// Returns the first samples of both parts, as many as the options say.
absl::StatusOr<DatasetParts> TakeFirstSamples(MemoryDataset train,
                                              MemoryDataset test,
                                              const DatasetOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t train_size,
      SampleCount("--train_samples", options.train_samples, train.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t test_size,
      SampleCount("--test_samples", options.test_samples, test.size()));
  train.Truncate(train_size);
  test.Truncate(test_size);
  return DatasetParts{std::make_unique<MemoryDataset>(std::move(train)),
                      std::make_unique<MemoryDataset>(std::move(test)),
                      {}};
}

absl::StatusOr<DatasetParts> LoadCifar10(const std::string& dir,
                                         const DatasetOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      MemoryDataset train,
      LoadCifar10Files(
          dir, {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                "data_batch_4.bin", "data_batch_5.bin"}));
  if (options.test_fraction > 0) {
    return DatasetParts{
        std::make_unique<MemoryDataset>(std::move(train)), nullptr, {}};
  }
  LOCKSTEP_ASSIGN_OR_RETURN(MemoryDataset test,
                            LoadCifar10Files(dir, {"test_batch.bin"}));
  return TakeFirstSamples(std::move(train), std::move(test), options);
}

absl::StatusOr<DatasetParts> LoadIdx(const std::string& dir,
                                     const DatasetOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      FashionMnist data,
      LoadFashionMnist(dir.empty() ? kFashionMnistDir : dir));
  return TakeFirstSamples(std::move(data.train), std::move(data.test), options);
}

// The largest number of channels of a synthetic image.
constexpr int64_t kMaxSyntheticChannels = 64;

// Images that are computed when they are read. Each class has a pattern of 4 x
// 4 fields of one colour each, in noise of half their range. A sample depends
// only on the seed, the part and its index.
class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(ImageShape shape, int num_classes, int64_t size,
                   uint64_t seed, uint64_t part)
      : shape_(shape),
        num_classes_(num_classes),
        size_(size),
        seed_(seed),
        part_(part) {}

  int64_t size() const override { return size_; }
  int num_classes() const override { return num_classes_; }
  std::optional<ImageShape> shape() const override { return shape_; }

  int label(int64_t index) const override {
    return static_cast<int>(CounterRandom(seed_, kLabels, part_, index)
                                .UniformInt(0, num_classes_));
  }

  absl::StatusOr<Image> Read(int64_t index) const override {
    constexpr int64_t kFields = 4;
    const CounterRandom pattern(seed_, kPatterns, label(index));
    const int64_t colors = std::max(shape_.channels, int64_t{3});
    std::vector<uint8_t> fields(kFields * kFields * colors);
    for (size_t i = 0; i < fields.size(); ++i) {
      fields[i] = static_cast<uint8_t>(pattern.UniformInt(i, 128));
    }
    const CounterRandom noise(seed_, kNoise, part_, index);
    Image image = {shape_.height, shape_.width, shape_.channels, {}};
    image.pixels.reserve(shape_.size());
    uint64_t bits = 0;
    for (int64_t y = 0; y < shape_.height; ++y) {
      const int64_t row = y * kFields / shape_.height;
      for (int64_t x = 0; x < shape_.width; ++x) {
        const int64_t column = x * kFields / shape_.width;
        for (int64_t c = 0; c < shape_.channels; ++c) {
          const size_t i = image.pixels.size();
          if (i % 8 == 0) bits = noise.Bits(i / 8);
          image.pixels.push_back(static_cast<uint8_t>(
              fields[(row * kFields + column) * colors + c] + (bits & 127)));
          bits >>= 8;
        }
      }
    }
    return image;
  }

 private:
  // The random streams.
  static constexpr uint64_t kLabels = 0, kPatterns = 1, kNoise = 2;

  const ImageShape shape_;
  const int num_classes_;
  const int64_t size_;
  const uint64_t seed_, part_;
};

absl::StatusOr<DatasetParts> MakeSynthetic(const DatasetOptions& options) {
  const ImageShape& shape = options.shape;
  if (shape.height < 1 || shape.width < 1 ||
      shape.height > kMaxPixels / shape.width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--image_size: ", shape.height, " x ", shape.width,
        ": sides must be at least 1, and pixels at most ", kMaxPixels));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--in_channels", shape.channels, 1, kMaxSyntheticChannels));
  constexpr int64_t kMany = int64_t{1} << 40;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t train,
      SampleCount("--train_samples", options.train_samples.value_or(10'000),
                  kMany));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t test,
      SampleCount("--test_samples", options.test_samples.value_or(1'000),
                  kMany));
  const int classes = options.num_classes == 0 ? 10 : options.num_classes;
  return DatasetParts{std::make_unique<SyntheticDataset>(
                          shape, classes, train, options.seed, /*part=*/0),
                      std::make_unique<SyntheticDataset>(
                          shape, classes, test, options.seed, /*part=*/1),
                      {}};
}

absl::Status CheckTestFraction(double fraction, bool synthetic) {
  if (!(fraction > 0 && fraction < 1)) {
    return FlagError("test_fraction", fraction,
                     "must be above 0 and below 1, or 0");
  }
  if (!synthetic) return absl::OkStatus();
  return FlagError("test_fraction", fraction,
                   "synthetic makes images for testing, and --test_samples "
                   "is their number");
}

// Splits parts.train into two parts.
absl::StatusOr<DatasetParts> Split(DatasetParts parts,
                                   const DatasetOptions& options) {
  const std::shared_ptr<const Dataset> whole = std::move(parts.train);
  if (whole->size() < 2) {
    return FlagError("test_fraction", options.test_fraction,
                     "one image cannot be split");
  }
  const SplitIndices split =
      DrawSplit(whole->size(), options.test_fraction, options.seed);
  const auto part = [&](absl::string_view flag,
                        const std::optional<int64_t>& samples,
                        const std::vector<int64_t>& indices)
      -> absl::StatusOr<std::unique_ptr<const Dataset>> {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const int64_t count,
        SampleCount(flag, samples, static_cast<int64_t>(indices.size())));
    std::vector<int64_t> chosen =
        SpreadIndices(count, static_cast<int64_t>(indices.size()));
    for (int64_t& index : chosen) index = indices[index];
    return std::make_unique<SubsetDataset>(whole, std::move(chosen));
  };
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.train, part("--train_samples", options.train_samples, split.train));
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.test, part("--test_samples", options.test_samples, split.test));
  return parts;
}

}  // namespace

std::vector<int64_t> SpreadIndices(int64_t count, int64_t size) {
  std::vector<int64_t> indices;
  indices.reserve(count);
  for (int64_t i = 0; i < count; ++i) indices.push_back(i * size / count);
  return indices;
}

absl::StatusOr<int64_t> SampleCount(absl::string_view flag,
                                    const std::optional<int64_t>& samples,
                                    int64_t size) {
  if (!samples.has_value()) return size;
  if (*samples >= 1 && *samples <= size) return *samples;
  return absl::OutOfRangeError(
      absl::StrCat(flag, "=", *samples, ": must be in [1, ", size, "]"));
}

absl::Status AppendCifar10(absl::string_view bytes, const std::string& name,
                           std::vector<uint8_t>& images,
                           std::vector<uint8_t>& labels) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0 || size % kCifarRecord != 0) {
    return absl::DataLossError(absl::StrCat(
        name, ": has ", size, " bytes, which is not a multiple of CIFAR-10's ",
        kCifarRecord, " bytes for each image"));
  }
  images.reserve(images.size() + size);
  for (int64_t record = 0; record < size / kCifarRecord; ++record) {
    const auto* const from =
        reinterpret_cast<const uint8_t*>(bytes.data()) + record * kCifarRecord;
    if (from[0] >= kCifarClasses) {
      return absl::DataLossError(absl::StrCat(name, ": label ", record, " is ",
                                              from[0], ", must be in [0, ",
                                              kCifarClasses - 1, "]"));
    }
    labels.push_back(from[0]);
    for (int64_t i = 1; i <= kCifarPixels; ++i) {
      for (int64_t plane = 0; plane < 3; ++plane) {
        images.push_back(from[i + plane * kCifarPixels]);
      }
    }
  }
  return absl::OkStatus();
}

void AppendCifar10Record(const Image& image, int label, std::string& bytes) {
  bytes += static_cast<char>(label);
  for (int64_t plane = 0; plane < 3; ++plane) {
    for (int64_t i = 0; i < kCifarPixels; ++i) {
      bytes += static_cast<char>(image.pixels[3 * i + plane]);
    }
  }
}

std::string SkippedText(const std::vector<std::string>& skipped) {
  if (skipped.empty()) return "";
  if (skipped.size() == 1) {
    return absl::StrCat("1 bad image is left out: ", skipped[0]);
  }
  return absl::StrCat(skipped.size(), " bad images are left out, such as ",
                      skipped[0]);
}

absl::StatusOr<DatasetParts> LoadDataset(const std::string& name,
                                         const std::string& dir,
                                         const DatasetOptions& options) {
  enum class Kind { kIdx, kCifar10, kFolder, kList, kSynthetic };
  LOCKSTEP_ASSIGN_OR_RETURN(const Kind kind,
                            ParseName<Kind>("--dataset", name,
                                            {{"fashion_mnist", Kind::kIdx},
                                             {"cifar10", Kind::kCifar10},
                                             {"image_folder", Kind::kFolder},
                                             {"image_list", Kind::kList},
                                             {"synthetic", Kind::kSynthetic}}));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--num_classes", options.num_classes, 0, kMaxClasses));
  const bool splits = options.test_fraction != 0;
  DatasetOptions whole = options;  // The options for loading before the split.
  if (splits) {
    LOCKSTEP_RETURN_IF_ERROR(
        CheckTestFraction(options.test_fraction, kind == Kind::kSynthetic));
    whole.train_samples = std::nullopt;
    whole.test_samples = std::nullopt;
  }
  const auto load = [&]() -> absl::StatusOr<DatasetParts> {
    if (kind == Kind::kIdx) return LoadIdx(dir, whole);
    if (kind == Kind::kSynthetic) return MakeSynthetic(options);
    if (dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data_dir: ", name, " needs the folder of its files"));
    }
    if (kind == Kind::kCifar10) return LoadCifar10(dir, whole);
    if (options.channels != 1 && options.channels != 3) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--in_channels: ", options.channels, " is neither 1 nor 3"));
    }
    return kind == Kind::kFolder ? LoadImageFolder(dir, whole)
                                 : LoadImageList(dir, whole);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(DatasetParts parts, load());
  if (splits) {
    LOCKSTEP_ASSIGN_OR_RETURN(parts, Split(std::move(parts), options));
  }
  const int classes = parts.train->num_classes();
  if (options.num_classes != 0 && options.num_classes != classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_classes=", options.num_classes, ": ", name,
                     dir.empty() ? "" : absl::StrCat(" in ", dir), " has ",
                     classes, " classes"));
  }
  return parts;
}

}  // namespace lockstep
