#include "models/data/dataset.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/idx.h"

namespace lockstep {
namespace {

// All 256 quotients: a look-up is exact, and faster than a division.
constexpr std::array<float, 256> kUnitScale = [] {
  std::array<float, 256> table{};
  for (int value = 0; value < 256; ++value) {
    table[value] = static_cast<float>(value) / 255.0f;
  }
  return table;
}();

constexpr int64_t kSide = 28;
constexpr int kClasses = 10;

// Returns whether nothing exists at `path`. If the path exists but cannot be
// read, the reader reports the error.
bool IsMissing(const std::string& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() ==
         std::filesystem::file_type::not_found;
}

absl::StatusOr<std::string> FindFile(const std::string& dir,
                                     const std::string& name) {
  const std::string plain = absl::StrCat(dir, "/", name);
  for (const std::string& path : {plain, absl::StrCat(plain, ".gz")}) {
    if (!IsMissing(path)) return path;
  }
  return absl::NotFoundError(
      absl::StrCat(plain, ": no such file, and no .gz file of that name"));
}

absl::Status CheckDir(const std::string& dir) {
  if (!IsMissing(dir)) return absl::OkStatus();
  const std::string fault =
      absl::StrCat("data folder '", dir, "' does not exist");
  if (dir != kFashionMnistDir) return absl::NotFoundError(fault);
  return absl::NotFoundError(absl::StrCat(
      fault,
      ": install the package dataset-fashion-mnist (tools/setup.sh does), or "
      "name the folder of the four files with --data_dir"));
}

absl::StatusOr<MemoryDataset> LoadPart(const std::string& dir,
                                       const std::string& part) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string images_path,
      FindFile(dir, absl::StrCat(part, "-images-idx3-ubyte")));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string labels_path,
      FindFile(dir, absl::StrCat(part, "-labels-idx1-ubyte")));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<uint8_t> labels,
                            ReadIdxLabels(labels_path));
  LOCKSTEP_ASSIGN_OR_RETURN(IdxImages images, ReadIdxImages(images_path));
  if (images.height != kSide || images.width != kSide) {
    return absl::InvalidArgumentError(
        absl::StrCat(images_path, ": images are ", images.height, " x ",
                     images.width, ", must be 28 x 28"));
  }
  if (images.count != static_cast<int64_t>(labels.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(images_path, ": holds ", images.count, " images, but ",
                     labels_path, " holds ", labels.size(), " labels"));
  }
  const auto bad =
      std::find_if(labels.begin(), labels.end(),
                   [](uint8_t label) { return label >= kClasses; });
  if (bad != labels.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(labels_path, ": label ", bad - labels.begin(), " is ",
                     *bad, ", must be in [0, ", kClasses - 1, "]"));
  }
  return MemoryDataset({kSide, kSide, 1}, kClasses, std::move(images.pixels),
                       std::move(labels),
                       {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"});
}

}  // namespace

std::string Dataset::file(int64_t) const { return ""; }

std::string Dataset::class_name(int label) const { return absl::StrCat(label); }

absl::Status Dataset::ReadRegion(int64_t index, ChooseRegion choose,
                                 TakeRows take) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const Image image, Read(index));
  const ImageRegion region = choose(image.shape());
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRegion(region, image.shape(), absl::StrCat("image ", index)));
  take(RowsOf(image, region));
  return absl::OkStatus();
}

MemoryDataset::MemoryDataset(ImageShape shape, int num_classes,
                             std::vector<uint8_t> images,
                             std::vector<uint8_t> labels,
                             std::vector<std::string> class_names)
    : shape_(shape),
      num_classes_(num_classes),
      images_(std::move(images)),
      labels_(std::move(labels)),
      class_names_(std::move(class_names)) {
  assert(static_cast<int64_t>(images_.size()) == size() * image_size());
}

absl::StatusOr<Image> MemoryDataset::Read(int64_t index) const {
  assert(index >= 0 && index < size());
  const auto from = images_.begin() + index * image_size();
  return Image{shape_.height,
               shape_.width,
               shape_.channels,
               {from, from + image_size()}};
}

std::string MemoryDataset::class_name(int label) const {
  return class_names_.empty() ? Dataset::class_name(label)
                              : class_names_[label];
}

absl::Status MemoryDataset::ReadRegion(int64_t index, ChooseRegion choose,
                                       TakeRows take) const {
  assert(index >= 0 && index < size());
  const ImageRegion region = choose(shape_);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRegion(region, shape_, absl::StrCat("image ", index)));
  take({images_.data() + index * image_size() +
            (region.top * shape_.width + region.left) * shape_.channels,
        region.height, region.width, shape_.channels,
        shape_.width * shape_.channels});
  return absl::OkStatus();
}

void MemoryDataset::Truncate(int64_t n) {
  assert(n >= 0 && n <= size());
  images_.resize(n * image_size());
  labels_.resize(n);
}

void MemoryDataset::GatherImages(std::span<const int64_t> indices,
                                 std::span<float> out) const {
  const int64_t pixels = image_size();
  assert(static_cast<int64_t>(out.size()) ==
         static_cast<int64_t>(indices.size()) * pixels);
  float* to = out.data();
  for (const int64_t index : indices) {
    assert(index >= 0 && index < size());
    const uint8_t* const from = images_.data() + index * pixels;
    for (int64_t i = 0; i < pixels; ++i) to[i] = kUnitScale[from[i]];
    to += pixels;
  }
}

void MemoryDataset::GatherLabels(std::span<const int64_t> indices,
                                 std::span<int32_t> out) const {
  assert(out.size() == indices.size());
  int32_t* to = out.data();
  for (const int64_t index : indices) {
    assert(index >= 0 && index < size());
    *to++ = labels_[index];
  }
}

absl::StatusOr<FashionMnist> LoadFashionMnist(const std::string& dir) {
  LOCKSTEP_RETURN_IF_ERROR(CheckDir(dir));
  LOCKSTEP_ASSIGN_OR_RETURN(MemoryDataset train, LoadPart(dir, "train"));
  LOCKSTEP_ASSIGN_OR_RETURN(MemoryDataset test, LoadPart(dir, "t10k"));
  return FashionMnist{std::move(train), std::move(test)};
}

}  // namespace lockstep
