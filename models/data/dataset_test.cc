// Tests the bytes of a data set, from files to batches.
#include "models/data/dataset.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx.h"
#include "models/data/idx_files.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// Image i holds the bytes 8i, 8i + 1, ..., 8i + 7.
MemoryDataset CountingDataset() {
  std::vector<uint8_t> images(256), labels(32);
  std::iota(images.begin(), images.end(), 0);
  std::iota(labels.begin(), labels.end(), 0);
  return MemoryDataset({2, 2, 2}, 32, images, labels);
}

TEST(DatasetTest, GathersInTheGivenOrderWithRepeats) {
  const MemoryDataset dataset = CountingDataset();
  const std::vector<int64_t> indices = {31, 0, 2, 0};
  std::vector<float> images(4 * 8);
  dataset.GatherImages(indices, images);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 8; ++j) {
      const auto value = static_cast<float>(8 * indices[i] + j);
      EXPECT_EQ(images[8 * i + j], value / 255.0f) << i << " " << j;
    }
  }
  std::vector<int32_t> labels(4, -1);
  dataset.GatherLabels(indices, labels);
  EXPECT_THAT(labels, ElementsAre(31, 0, 2, 0));
  EXPECT_EQ(dataset.image_size(), 8);
  dataset.GatherImages({}, {});
  dataset.GatherLabels({}, {});
}

// The checksum is that of torch.arange(256, dtype=torch.uint8).float().div(255)
// as 1024 little-endian bytes. torchvision's ToTensor computes the same.
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

// Tests of loading the four files: real files, and small ones with every fault.

constexpr char kTrainImages[] = "/train-images-idx3-ubyte";
constexpr char kTrainLabels[] = "/train-labels-idx1-ubyte";
constexpr char kTestImages[] = "/t10k-images-idx3-ubyte";
constexpr char kTestLabels[] = "/t10k-labels-idx1-ubyte";

Bytes ImagesOf(uint32_t count) {
  return IdxBytes({count, 28, 28}, Ramp(count * 784));
}

Bytes LabelsOf(uint32_t count) { return IdxBytes({count}, Ramp(count, 10)); }

// Creates a folder with 12 images for training and 5 for testing.
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
  EXPECT_EQ(data->train.size(), 12);
  EXPECT_EQ(data->train.images(), Ramp(12 * 784));
  EXPECT_EQ(data->train.labels(), Ramp(12, 10));
  EXPECT_EQ(data->test.size(), 5);
  EXPECT_EQ(data->test.images(), Ramp(5 * 784));
  EXPECT_EQ(data->test.labels(), Ramp(5, 10));
}

TEST(FashionMnistTest, NamesAMissingFolderAndEachMissingFile) {
  const std::string absent = MakeTestDir() + "/absent";
  EXPECT_THAT(LoadError(absent),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr(absent), HasSubstr("does not exist"))));
  for (const std::string name :
       {kTrainImages, kTrainLabels, kTestImages, kTestLabels}) {
    const std::string dir = MakeDataDir();
    std::filesystem::remove(dir + name);
    std::filesystem::remove(dir + name + ".gz");
    EXPECT_THAT(LoadError(dir),
                StatusIs(absl::StatusCode::kNotFound, StartsWith(dir + name)));
  }
}

TEST(FashionMnistTest, NamesTheFileAndTheFault) {
  Bytes cut = ImagesOf(12);
  cut.pop_back();
  const struct {
    const char* file;
    Bytes bytes;
    absl::StatusCode code;
    const char* named;
    std::string what;
  } cases[] = {
      {kTestLabels, ImagesOf(5), kInvalidArgument, kTestLabels, "holds images"},
      {kTrainImages, cut, kDataLoss, kTrainImages, "truncated"},
      {kTestLabels, LabelsOf(6), kInvalidArgument, kTestImages,
       "holds 5 images"},
      {kTestLabels, LabelsOf(6), kInvalidArgument, kTestImages,
       "/t10k-labels-idx1-ubyte holds 6 labels"},
      {kTestLabels, IdxBytes({5}, {0, 9, 3, 10, 255}), kInvalidArgument,
       kTestLabels, "label 3 is 10"},
      {kTrainImages, IdxBytes({12, 32, 28}, Ramp(12 * 32 * 28)),
       kInvalidArgument, kTrainImages, "32 x 28"}};
  for (const auto& [file, bytes, code, named, what] : cases) {
    const std::string dir = MakeDataDir();
    WriteBytes(dir + file, bytes);
    EXPECT_THAT(LoadError(dir), StatusIs(code, AllOf(StartsWith(dir + named),
                                                     HasSubstr(what))));
  }
}

// The results of Python's gzip, zlib.crc32 and sum for the four files.
struct Published {
  int64_t size;
  uint32_t images_crc32;
  uint32_t labels_crc32;
  int64_t pixel_sum;
};

void ExpectPublished(const MemoryDataset& dataset, const Published& published) {
  EXPECT_EQ(dataset.size(), published.size);
  EXPECT_EQ(dataset.shape(), (ImageShape{28, 28, 1}));
  EXPECT_EQ(dataset.num_classes(), 10);
  EXPECT_EQ(Crc32(dataset.images()), published.images_crc32);
  EXPECT_EQ(Crc32(dataset.labels()), published.labels_crc32);
  EXPECT_EQ(std::accumulate(dataset.images().begin(), dataset.images().end(),
                            int64_t{0}),
            published.pixel_sum);
  std::vector<int64_t> counts(10, 0);
  for (const uint8_t label : dataset.labels()) ++counts.at(label);
  EXPECT_EQ(counts, std::vector<int64_t>(10, published.size / 10));
}

TEST(FashionMnistTest, ReadsThePublishedDataSet) {
  const absl::StatusOr<FashionMnist> data = LoadFashionMnist();
  ASSERT_THAT(data, IsOk());
  ExpectPublished(data->train, {60000, 2925911245, 785835114, 3431114169});
  ExpectPublished(data->test, {10000, 309494841, 606848831, 573469082});
}

// Tests of IDX files, plain and compressed: valid ones, every kind of invalid
// one, and mutations.

TEST(IdxTest, ReadsPlainAndCompressedAlike) {
  const std::string path = MakeTestDir() + "/file";
  // The last size is more than one chunk of the growing buffer, and not a whole
  // number of chunks.
  for (const uint32_t size : {1u, 2u, 3u, 1000u, 300000u, (3u << 20) + 5}) {
    const Bytes labels = Ramp(size);
    WriteBytes(path, IdxBytes({size}, labels));
    EXPECT_THAT(ReadIdxLabels(path), IsOkAndHolds(labels));
    WriteGzip(path, IdxBytes({size}, labels));
    EXPECT_THAT(ReadIdxLabels(path), IsOkAndHolds(labels));
  }
  WriteGzip(path, {});
  EXPECT_THAT(ReadIdxLabels(path), StatusIs(kDataLoss, path + ": is empty"));
  WriteBytes(path, IdxBytes({2, 3, 4}, Ramp(24)));
  const absl::StatusOr<IdxImages> images = ReadIdxImages(path);
  ASSERT_THAT(images, IsOk());
  EXPECT_EQ(images->count, 2);
  EXPECT_EQ(images->height, 3);
  EXPECT_EQ(images->width, 4);
  EXPECT_EQ(images->pixels, Ramp(24));
}

TEST(IdxTest, NamesWhatIsNoRegularFile) {
  const std::string dir = MakeTestDir();
  // Opening a pipe without a writer would wait forever.
  ASSERT_EQ(mkfifo((dir + "/pipe").c_str(), 0600), 0);
  for (const auto& [name, code, what] :
       {std::tuple("/absent", absl::StatusCode::kNotFound, "No such file"),
        {"", kInvalidArgument, "is a directory"},
        {"/pipe", kInvalidArgument, "regular file"}}) {
    EXPECT_THAT(ReadIdxLabels(dir + name),
                StatusIs(code, AllOf(StartsWith(dir + name), HasSubstr(what))));
  }
}

// gzip data of up to three bytes (depending on zlib) count as a plain file,
// which is not IDX.
TEST(IdxTest, RejectsEveryTruncation) {
  const std::string path = MakeTestDir() + "/cut";
  for (const bool compressed : {false, true}) {
    (compressed ? WriteGzip : WriteBytes)(path,
                                          IdxBytes({2, 20, 5}, Ramp(200)));
    const Bytes whole = ReadBytes(path);
    for (size_t size = compressed ? 4 : 1; size < whole.size(); ++size) {
      WriteBytes(path, Bytes(whole.begin(), whole.begin() + size));
      ASSERT_THAT(ReadIdxImages(path),
                  StatusIs(kDataLoss, AllOf(StartsWith(path + ": "),
                                            HasSubstr("truncated"))))
          << size << " of " << whole.size() << " bytes";
    }
  }
}

// The gzip stream ends with checksum and length, after the last value. The
// reader must read them although it needs no more values.
TEST(IdxTest, RejectsAWrongGzipChecksumOrLength) {
  const std::string path = MakeTestDir() + "/damaged.gz";
  WriteGzip(path, IdxBytes({200}, Ramp(200)));
  const Bytes whole = ReadBytes(path);
  for (size_t from_end = 1; from_end <= 8; ++from_end) {
    Bytes damaged = whole;
    damaged[damaged.size() - from_end] ^= 1;
    WriteBytes(path, damaged);
    // The error names the file once, although zlib's own message names it too.
    EXPECT_THAT(ReadIdxLabels(path),
                StatusIs(kDataLoss,
                         StartsWith(path + ": its gzip data is damaged (inco")))
        << from_end << " bytes from the end";
  }
}

TEST(IdxTest, NamesWhatIsWrong) {
  const std::string path = MakeTestDir() + "/images";
  Bytes floats = IdxBytes({1, 1, 4}, Ramp(4));
  floats[2] = 0x0d;
  constexpr uint32_t kMost = 0xffffffff;
  const struct {
    Bytes bytes;
    absl::StatusCode code;
    const char* what;
  } cases[] = {
      {{}, kDataLoss, "is empty"},
      {{0x89, 'P', 'N', 'G', 1, 2, 3, 4},
       kInvalidArgument,
       "starts with bytes 0x89 0x50"},
      {floats, kInvalidArgument, "IDX type is 0x0d"},
      {IdxBytes({2, 2}, Ramp(4)), kInvalidArgument,
       "holds values of 2 dimensions"},
      {IdxBytes({2, 2, 2}, Ramp(9)), kDataLoss,
       "too long: bytes follow the 8 bytes"},
      {IdxBytes({0, 28, 28}, {}), kInvalidArgument, "holds nothing"},
      {IdxBytes({1, 0, 28}, {}), kInvalidArgument, "holds nothing"},
      {IdxBytes({1, 28, 0}, {}), kInvalidArgument, "holds nothing"},
      {IdxBytes({kMost, kMost, kMost}, Ramp(100)), kDataLoss,
       "are over 2^40 bytes"},
      // The product is 2^64, which would wrap to 0.
      {IdxBytes({1u << 31, 1u << 31, 4}, Ramp(100)), kDataLoss,
       "are over 2^40 bytes"},
      {IdxBytes({kMost, 257, 1}, Ramp(100)), kDataLoss, "are over 2^40 bytes"},
      // The header claims 2^40 bytes, and the file has 100. The reader must
      // fail on the bytes, not on memory.
      {IdxBytes({1u << 20, 1u << 10, 1u << 10}, Ramp(100)), kDataLoss,
       "data needs 1099511627776 bytes, got 100"},
      {IdxBytes({2, 2, 2}, Ramp(5)), kDataLoss, "data needs 8 bytes, got 5"},
      {IdxBytes({20}, Ramp(20)), kInvalidArgument,
       "holds labels (1 dimension), must hold images"}};
  for (const auto& [bytes, code, what] : cases) {
    WriteBytes(path, bytes);
    EXPECT_THAT(
        ReadIdxImages(path),
        StatusIs(code, AllOf(StartsWith(path + ": "), HasSubstr(what))));
  }
  WriteBytes(path, IdxBytes({1, 2, 2}, Ramp(4)));
  EXPECT_THAT(ReadIdxLabels(path),
              StatusIs(kInvalidArgument,
                       StartsWith(path + ": holds images (3 dimensions), must "
                                         "hold labels")));
}

// Makes a random edit: bytes changed, cut off, added, or repeated.
void Mutate(std::mt19937& random, Bytes& bytes) {
  const size_t at = bytes.empty() ? 0 : random() % bytes.size();
  switch (random() % 4) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.insert(bytes.begin() + at, static_cast<uint8_t>(random()));
      break;
    default:
      const Bytes copy = bytes;
      bytes.insert(bytes.begin() + at, copy.begin(), copy.end());
  }
}

// For any bytes, the reader either names a fault or returns exactly the content
// that the header describes.
TEST(IdxTest, SurvivesMutations) {
  const std::string path = MakeTestDir() + "/file";
  std::mt19937 random(20240607);
  int accepted = 0, rejected = 0;
  for (int round = 0; round < 5000; ++round) {
    Bytes bytes = round % 2 == 0 ? IdxBytes({3, 4, 5}, Ramp(60))
                                 : IdxBytes({64}, Ramp(64, 10));
    const int edits = static_cast<int>(random() % 4);
    for (int i = 0; i < edits; ++i) Mutate(random, bytes);
    WriteBytes(path, bytes);
    const absl::StatusOr<IdxImages> images = ReadIdxImages(path);
    const absl::StatusOr<Bytes> labels = ReadIdxLabels(path);
    if (images.ok()) {
      const auto size =
          static_cast<size_t>(images->count * images->height * images->width);
      ASSERT_EQ(images->pixels.size(), size);
      ASSERT_EQ(bytes.size(), 16 + size);
    } else {
      ASSERT_THAT(std::string(images.status().message()),
                  StartsWith(path + ": "));
    }
    if (labels.ok()) {
      ASSERT_EQ(bytes.size(), 8 + labels->size());
    }
    ASSERT_FALSE(images.ok() && labels.ok());
    ++(images.ok() || labels.ok() ? accepted : rejected);
  }
  EXPECT_GT(accepted, 250);
  EXPECT_GT(rejected, 250);
}

// Through gzip, a mutated stream never yields a wrong label without an error.
TEST(IdxTest, SurvivesMutationsOfCompressedFiles) {
  const std::string path = MakeTestDir() + "/labels.gz";
  const Bytes labels = Ramp(200, 10);
  WriteGzip(path, IdxBytes({200}, labels));
  const Bytes whole = ReadBytes(path);
  std::mt19937 random(20240608);
  int rejected = 0;
  for (int round = 0; round < 1000; ++round) {
    Bytes bytes = whole;
    bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    WriteBytes(path, bytes);
    const absl::StatusOr<Bytes> read = ReadIdxLabels(path);
    if (read.ok()) {
      ASSERT_EQ(*read, labels);  // Some bytes of gzip's header do not matter.
    } else {
      ++rejected;
      ASSERT_THAT(std::string(read.status().message()), StartsWith(path));
    }
  }
  EXPECT_GT(rejected, 500);
}

}  // namespace
}  // namespace lockstep
