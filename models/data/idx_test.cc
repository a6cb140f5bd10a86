#include "models/data/idx.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Everything in the file, read in pieces of `piece` bytes.
absl::StatusOr<Bytes> ReadAll(const std::string& path, int64_t piece) {
  LOCKSTEP_ASSIGN_OR_RETURN(GzipFile file, GzipFile::Open(path));
  Bytes content;
  while (true) {
    Bytes buffer(piece);
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, file.Read(buffer));
    content.insert(content.end(), buffer.begin(), buffer.begin() + count);
    if (count < piece) return content;
  }
}

TEST(GzipFileTest, ReadsPlainAndCompressedAlike) {
  const std::string dir = MakeTestDir();
  for (const int64_t size : {0, 1, 2, 3, 1000, 300000}) {
    const Bytes content = Ramp(size);
    WriteBytes(dir + "/plain", content);
    WriteGzip(dir + "/compressed", content);
    for (const int64_t piece : {1000, 4096, 1 << 20}) {
      EXPECT_THAT(ReadAll(dir + "/plain", piece), IsOkAndHolds(content));
      EXPECT_THAT(ReadAll(dir + "/compressed", piece), IsOkAndHolds(content));
    }
  }
}

TEST(GzipFileTest, NamesAMissingFile) {
  const std::string path = MakeTestDir() + "/absent";
  EXPECT_THAT(GzipFile::Open(path).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(StartsWith(path), HasSubstr("No such file"))));
}

TEST(GzipFileTest, RejectsADirectory) {
  const std::string dir = MakeTestDir();
  EXPECT_THAT(GzipFile::Open(dir).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(dir), HasSubstr("is a directory"))));
}

// Opening a pipe that nobody writes to would wait for ever.
TEST(GzipFileTest, RejectsAPipeWithoutWaiting) {
  const std::string path = MakeTestDir() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(GzipFile::Open(path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(path), HasSubstr("regular file"))));
}

TEST(GzipFileTest, RejectsEveryTruncation) {
  const std::string path = MakeTestDir() + "/cut.gz";
  WriteGzip(path, Ramp(2000));
  const Bytes whole = ReadBytes(path);
  // Up to three bytes of gzip, depending on zlib, are no gzip yet but a plain
  // file, which the IDX reader then finds too short.
  for (size_t size = 4; size < whole.size(); ++size) {
    WriteBytes(path, Bytes(whole.begin(), whole.begin() + size));
    ASSERT_THAT(ReadAll(path, 4096),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(StartsWith(path), HasSubstr("truncated"))))
        << size << " of " << whole.size() << " bytes";
  }
}

TEST(GzipFileTest, RejectsAWrongChecksumOrLength) {
  const std::string path = MakeTestDir() + "/damaged.gz";
  WriteGzip(path, Ramp(2000));
  const Bytes whole = ReadBytes(path);
  for (size_t from_end = 1; from_end <= 8; ++from_end) {
    Bytes damaged = whole;
    damaged[damaged.size() - from_end] ^= 1;
    WriteBytes(path, damaged);
    // The file is named once, although zlib's own message names it too.
    EXPECT_THAT(ReadAll(path, 4096),
                StatusIs(absl::StatusCode::kDataLoss,
                         StartsWith(path + ": its gzip data is damaged (inco")))
        << from_end << " bytes from the end";
  }
}

// IDX parsing: right files, every kind of wrong one, and mutations.

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// Moves the first bytes of `rest` to `out`.
int64_t Take(std::span<const uint8_t>& rest, std::span<uint8_t> out) {
  const size_t count = std::min(out.size(), rest.size());
  std::copy_n(rest.begin(), count, out.begin());
  rest = rest.subspan(count);
  return static_cast<int64_t>(count);
}

absl::StatusOr<IdxImages> Images(const Bytes& bytes) {
  std::span<const uint8_t> rest(bytes);
  return ParseIdxImages("some/images", [&rest](std::span<uint8_t> out) {
    return absl::StatusOr<int64_t>(Take(rest, out));
  });
}

absl::StatusOr<Bytes> Labels(const Bytes& bytes) {
  std::span<const uint8_t> rest(bytes);
  return ParseIdxLabels("some/labels", [&rest](std::span<uint8_t> out) {
    return absl::StatusOr<int64_t>(Take(rest, out));
  });
}

absl::Status ImagesError(const Bytes& bytes) { return Images(bytes).status(); }

auto ImagesFault(absl::StatusCode code, const std::string& what) {
  return StatusIs(code, AllOf(StartsWith("some/images: "), HasSubstr(what)));
}

TEST(IdxTest, ReadsImages) {
  const Bytes pixels = Ramp(2 * 3 * 4);
  const absl::StatusOr<IdxImages> images = Images(IdxBytes({2, 3, 4}, pixels));
  ASSERT_THAT(images, IsOk());
  EXPECT_EQ(images->count, 2);
  EXPECT_EQ(images->height, 3);
  EXPECT_EQ(images->width, 4);
  EXPECT_EQ(images->pixels, pixels);
}

TEST(IdxTest, ReadsLabels) {
  EXPECT_THAT(Labels(IdxBytes({5}, {9, 0, 3, 3, 1})),
              IsOkAndHolds(Bytes{9, 0, 3, 3, 1}));
}

// More than one chunk of the growing buffer, and not a whole number of them.
TEST(IdxTest, ReadsLargePayloads) {
  const Bytes pixels = Ramp((3 << 20) + 5);
  const auto count = static_cast<uint32_t>(pixels.size());
  const absl::StatusOr<IdxImages> images =
      Images(IdxBytes({count, 1, 1}, pixels));
  ASSERT_THAT(images, IsOk());
  EXPECT_EQ(images->pixels, pixels);
}

TEST(IdxTest, RejectsAnEmptyFile) {
  EXPECT_THAT(ImagesError({}), ImagesFault(kDataLoss, "is empty"));
}

TEST(IdxTest, RejectsAnotherFormat) {
  EXPECT_THAT(ImagesError({0x89, 'P', 'N', 'G', 1, 2, 3, 4}),
              ImagesFault(kInvalidArgument, "starts with bytes 0x89 0x50"));
}

TEST(IdxTest, RejectsAnotherType) {
  Bytes bytes = IdxBytes({1, 1, 4}, Ramp(4));
  bytes[2] = 0x0d;
  EXPECT_THAT(ImagesError(bytes),
              ImagesFault(kInvalidArgument, "IDX type is 0x0d"));
}

TEST(IdxTest, RejectsAnotherRank) {
  EXPECT_THAT(ImagesError(IdxBytes({2, 2}, Ramp(4))),
              ImagesFault(kInvalidArgument, "holds values of 2 dimensions"));
}

TEST(IdxTest, RejectsLabelsWhereImagesAreExpectedAndTheOtherWayRound) {
  EXPECT_THAT(ImagesError(IdxBytes({20}, Ramp(20))),
              ImagesFault(kInvalidArgument,
                          "holds labels (1 dimension), must hold images"));
  EXPECT_THAT(Labels(IdxBytes({1, 2, 2}, Ramp(4))).status(),
              StatusIs(kInvalidArgument,
                       AllOf(StartsWith("some/labels: "),
                             HasSubstr("holds images (3 dimensions), must "
                                       "hold labels"))));
}

TEST(IdxTest, RejectsEveryTruncation) {
  const Bytes whole = IdxBytes({2, 2, 2}, Ramp(8));
  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_THAT(ImagesError(Bytes(whole.begin(), whole.begin() + size)),
                ImagesFault(kDataLoss, "truncated"))
        << size;
  }
  EXPECT_THAT(ImagesError(IdxBytes({2, 2, 2}, Ramp(5))),
              ImagesFault(kDataLoss, "data needs 8 bytes, got 5"));
}

TEST(IdxTest, RejectsTrailingBytes) {
  EXPECT_THAT(ImagesError(IdxBytes({2, 2, 2}, Ramp(9))),
              ImagesFault(kDataLoss, "too long: bytes follow the 8 bytes"));
}

TEST(IdxTest, RejectsDimensionsOfZero) {
  for (const std::vector<uint32_t>& dimensions :
       {std::vector<uint32_t>{0, 28, 28}, {1, 0, 28}, {1, 28, 0}}) {
    EXPECT_THAT(ImagesError(IdxBytes(dimensions, {})),
                ImagesFault(kInvalidArgument, "holds nothing"));
  }
}

TEST(IdxTest, RejectsAbsurdDimensions) {
  const uint32_t most = 0xffffffff;
  // The second product is 2^64, which would wrap to 0.
  for (const std::vector<uint32_t>& dimensions :
       {std::vector<uint32_t>{most, most, most},
        {1u << 31, 1u << 31, 4},
        {most, 257, 1}}) {
    EXPECT_THAT(ImagesError(IdxBytes(dimensions, Ramp(100))),
                ImagesFault(kDataLoss, "absurd dimensions"));
  }
}

// 2^40 bytes claimed and 100 there: fails on the bytes, not on the memory.
TEST(IdxTest, DoesNotAllocateWhatAHeaderClaims) {
  EXPECT_THAT(
      ImagesError(IdxBytes({1u << 20, 1u << 10, 1u << 10}, Ramp(100))),
      ImagesFault(kDataLoss, "data needs 1099511627776 bytes, got 100"));
}

TEST(IdxTest, PassesOnWhatTheReaderSays) {
  const auto broken = [](std::span<uint8_t>) -> absl::StatusOr<int64_t> {
    return absl::UnavailableError("disk on fire");
  };
  EXPECT_THAT(ParseIdxImages("some/images", broken).status(),
              StatusIs(absl::StatusCode::kUnavailable, "disk on fire"));
}

TEST(IdxTest, ReadsFilesPlainAndCompressed) {
  const std::string dir = MakeTestDir();
  const Bytes labels = {1, 2, 3};
  WriteBytes(dir + "/plain", IdxBytes({3}, labels));
  WriteGzip(dir + "/compressed", IdxBytes({3}, labels));
  WriteGzip(dir + "/images", IdxBytes({1, 1, 3}, labels));
  EXPECT_THAT(ReadIdxLabels(dir + "/plain"), IsOkAndHolds(labels));
  EXPECT_THAT(ReadIdxLabels(dir + "/compressed"), IsOkAndHolds(labels));
  const absl::StatusOr<IdxImages> images = ReadIdxImages(dir + "/images");
  ASSERT_THAT(images, IsOk());
  EXPECT_EQ(images->pixels, labels);
}

// The end of the gzip stream, where its checksum is, lies behind the last
// pixel: it must be read although the parser has all it needs.
TEST(IdxTest, NoticesAWrongGzipChecksum) {
  const std::string path = MakeTestDir() + "/labels.gz";
  WriteGzip(path, IdxBytes({3}, {1, 2, 3}));
  Bytes bytes = ReadBytes(path);
  bytes[bytes.size() - 8] ^= 1;
  WriteBytes(path, bytes);
  EXPECT_THAT(ReadIdxLabels(path).status(),
              StatusIs(kDataLoss, AllOf(StartsWith(path),
                                        HasSubstr("gzip data is damaged"))));
}

// A random edit: bytes changed, cut off, added, or repeated.
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

// Whatever the bytes, the parser either names a fault or returns exactly what
// the header describes.
TEST(IdxTest, SurvivesMutations) {
  std::mt19937 random(20240607);
  int accepted = 0, rejected = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = round % 2 == 0 ? IdxBytes({3, 4, 5}, Ramp(60))
                                 : IdxBytes({64}, Ramp(64, 10));
    const int edits = static_cast<int>(random() % 4);
    for (int i = 0; i < edits; ++i) Mutate(random, bytes);
    const absl::StatusOr<IdxImages> images = Images(bytes);
    const absl::StatusOr<Bytes> labels = Labels(bytes);
    if (images.ok()) {
      const auto size =
          static_cast<size_t>(images->count * images->height * images->width);
      ASSERT_EQ(images->pixels.size(), size);
      ASSERT_EQ(bytes.size(), 16 + size);
    } else {
      ASSERT_THAT(std::string(images.status().message()),
                  StartsWith("some/images: "));
    }
    if (labels.ok()) {
      ASSERT_EQ(bytes.size(), 8 + labels->size());
    }
    ASSERT_FALSE(images.ok() && labels.ok());
    ++(images.ok() || labels.ok() ? accepted : rejected);
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 1000);
}

// The same through gzip: a mutated stream never yields a wrong label unnoticed.
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
      ASSERT_EQ(*read, labels);  // In gzip's header, some bytes do not matter.
    } else {
      ++rejected;
      ASSERT_THAT(std::string(read.status().message()), StartsWith(path));
    }
  }
  EXPECT_GT(rejected, 500);
}

}  // namespace
}  // namespace lockstep
