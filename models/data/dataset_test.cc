#include "models/data/dataset.h"

#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Image i holds the bytes 8i, 8i + 1, ..., 8i + 7.
Dataset CountingDataset() {
  Dataset dataset;
  dataset.size = 32;
  dataset.channels = dataset.height = dataset.width = 2;
  dataset.num_classes = 32;
  for (int value = 0; value < 256; ++value) dataset.images.push_back(value);
  for (int label = 0; label < 32; ++label) dataset.labels.push_back(label);
  return dataset;
}

TEST(DatasetTest, GathersImagesInTheGivenOrderWithRepeats) {
  const std::vector<int64_t> indices = {31, 0, 2, 0};
  std::vector<float> out(4 * 8);
  CountingDataset().GatherImages(indices, out);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 8; ++j) {
      const auto value = static_cast<float>(8 * indices[i] + j);
      EXPECT_EQ(out[8 * i + j], value / 255.0f) << i << " " << j;
    }
  }
}

// The checksum is that of torch.arange(256,
// dtype=torch.uint8).float().div(255), which is what torchvision's ToTensor
// does, as 1024 little-endian bytes.
TEST(DatasetTest, ScalesEveryByteAsTorchvisionDoes) {
  std::vector<int64_t> all(32);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> out(256);
  CountingDataset().GatherImages(all, out);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 0.003921568859368563f);
  EXPECT_EQ(out[255], 1.0f);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(out.data());
  EXPECT_EQ(crc32(0, bytes, 1024), 3023629315u);
  out[77] = std::nextafter(out[77], 1.0f);
  EXPECT_NE(crc32(0, bytes, 1024), 3023629315u);
}

TEST(DatasetTest, GathersLabels) {
  const std::vector<int64_t> indices = {5, 31, 5, 0};
  std::vector<int32_t> out(4, -1);
  CountingDataset().GatherLabels(indices, out);
  EXPECT_THAT(out, ElementsAre(5, 31, 5, 0));
}

TEST(DatasetTest, GathersNothingForNoIndices) {
  const Dataset dataset = CountingDataset();
  EXPECT_EQ(dataset.image_size(), 8);
  dataset.GatherImages({}, {});
  dataset.GatherLabels({}, {});
}

// Loading the four files: the real ones, and small ones with every fault.

constexpr char kTrainImages[] = "/train-images-idx3-ubyte";
constexpr char kTrainLabels[] = "/train-labels-idx1-ubyte";
constexpr char kTestImages[] = "/t10k-images-idx3-ubyte";
constexpr char kTestLabels[] = "/t10k-labels-idx1-ubyte";

Bytes ImagesOf(uint32_t count) {
  return IdxBytes({count, 28, 28}, Ramp(count * 784));
}

Bytes LabelsOf(uint32_t count) { return IdxBytes({count}, Ramp(count, 10)); }

// A folder with 12 images to train on and 5 to test with.
std::string MakeDataDir() {
  const std::string dir = MakeTestDir();
  WriteBytes(dir + kTrainImages, ImagesOf(12));
  WriteGzip(dir + kTrainLabels + ".gz", LabelsOf(12));
  WriteGzip(dir + kTestImages + ".gz", ImagesOf(5));
  WriteBytes(dir + kTestLabels, LabelsOf(5));
  return dir;
}

absl::Status LoadError(const std::string& dir) {
  return LoadFashionMnist(dir).status();
}

uint32_t Crc32(const std::vector<uint8_t>& bytes) {
  return static_cast<uint32_t>(
      crc32(0, bytes.data(), static_cast<unsigned>(bytes.size())));
}

TEST(FashionMnistTest, ReadsPlainAndCompressedFiles) {
  const absl::StatusOr<FashionMnist> data = LoadFashionMnist(MakeDataDir());
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->train.size, 12);
  EXPECT_EQ(data->train.images, Ramp(12 * 784));
  EXPECT_EQ(data->train.labels, Ramp(12, 10));
  EXPECT_EQ(data->test.size, 5);
  EXPECT_EQ(data->test.images, Ramp(5 * 784));
  EXPECT_EQ(data->test.labels, Ramp(5, 10));
}

TEST(FashionMnistTest, NamesAMissingFolder) {
  const std::string dir = MakeTestDir() + "/absent";
  EXPECT_THAT(LoadError(dir),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr(dir), HasSubstr("does not exist"))));
}

TEST(FashionMnistTest, NamesEachMissingFile) {
  for (const std::string name :
       {kTrainImages, kTrainLabels, kTestImages, kTestLabels}) {
    const std::string dir = MakeDataDir();
    std::filesystem::remove(dir + name);
    std::filesystem::remove(dir + name + ".gz");
    EXPECT_THAT(LoadError(dir),
                StatusIs(absl::StatusCode::kNotFound, StartsWith(dir + name)));
  }
}

TEST(FashionMnistTest, RejectsSwappedImagesAndLabels) {
  const std::string dir = MakeDataDir();
  WriteBytes(dir + kTestLabels, ImagesOf(5));
  EXPECT_THAT(LoadError(dir), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(StartsWith(dir + kTestLabels),
                                             HasSubstr("holds images"))));
}

TEST(FashionMnistTest, RejectsATruncatedFile) {
  const std::string dir = MakeDataDir();
  Bytes images = ImagesOf(12);
  images.pop_back();
  WriteBytes(dir + kTrainImages, images);
  EXPECT_THAT(LoadError(dir), StatusIs(absl::StatusCode::kDataLoss,
                                       AllOf(StartsWith(dir + kTrainImages),
                                             HasSubstr("truncated"))));
}

TEST(FashionMnistTest, RejectsCountsThatDiffer) {
  const std::string dir = MakeDataDir();
  WriteBytes(dir + kTestLabels, LabelsOf(6));
  EXPECT_THAT(
      LoadError(dir),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith(dir + kTestImages), HasSubstr("holds 5 images"),
                     HasSubstr(dir + kTestLabels + " holds 6 labels"))));
}

TEST(FashionMnistTest, RejectsALabelAboveNine) {
  const std::string dir = MakeDataDir();
  WriteBytes(dir + kTestLabels, IdxBytes({5}, {0, 9, 3, 10, 255}));
  EXPECT_THAT(LoadError(dir), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(StartsWith(dir + kTestLabels),
                                             HasSubstr("label 3 is 10"))));
}

TEST(FashionMnistTest, RejectsImagesOfAnotherSize) {
  const std::string dir = MakeDataDir();
  WriteBytes(dir + kTrainImages, IdxBytes({12, 32, 28}, Ramp(12 * 32 * 28)));
  EXPECT_THAT(LoadError(dir), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(StartsWith(dir + kTrainImages),
                                             HasSubstr("32 x 28"))));
}

// What Python's gzip, zlib.crc32 and sum say of the four files.
struct Published {
  int64_t size;
  uint32_t images_crc32;
  uint32_t labels_crc32;
  int64_t pixel_sum;
};

void ExpectPublished(const Dataset& dataset, const Published& published) {
  EXPECT_EQ(dataset.size, published.size);
  EXPECT_EQ(dataset.channels, 1);
  EXPECT_EQ(dataset.height, 28);
  EXPECT_EQ(dataset.width, 28);
  EXPECT_EQ(dataset.num_classes, 10);
  EXPECT_EQ(Crc32(dataset.images), published.images_crc32);
  EXPECT_EQ(Crc32(dataset.labels), published.labels_crc32);
  EXPECT_EQ(
      std::accumulate(dataset.images.begin(), dataset.images.end(), int64_t{0}),
      published.pixel_sum);
  std::vector<int64_t> counts(10, 0);
  for (const uint8_t label : dataset.labels) ++counts.at(label);
  EXPECT_EQ(counts, std::vector<int64_t>(10, published.size / 10));
}

TEST(FashionMnistTest, ReadsThePublishedDataSet) {
  const absl::StatusOr<FashionMnist> data = LoadFashionMnist();
  ASSERT_THAT(data, IsOk());
  ExpectPublished(data->train, {60000, 2925911245, 785835114, 3431114169});
  ExpectPublished(data->test, {10000, 309494841, 606848831, 573469082});
}

}  // namespace
}  // namespace lockstep
