// Gathering: order, repeats and the exact scale.
#include "models/data/dataset.h"

#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace lockstep
