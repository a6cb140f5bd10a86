// Compares decoded image files with Pillow's results. Checks that the readers
// of foreign bytes keep their rules for any bytes.
#include "models/data/image.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/data_check.h"
#include "models/data/jpeg.h"
#include "models/data/png.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

uint32_t Crc32(const std::vector<uint8_t>& bytes) {
  return static_cast<uint32_t>(
      crc32(0, bytes.data(), static_cast<unsigned>(bytes.size())));
}

// A line of testdata/golden_images.txt.
struct Golden {
  std::string name;
  ImageShape shape = {};
  uint32_t crc32 = 0, rgb_crc32 = 0, grey_crc32 = 0;
  std::string file = {};
};

const std::vector<Golden>& Goldens() {
  static const auto& goldens = *[] {
    auto* const all = new std::vector<Golden>;
    std::ifstream file("models/data/testdata/golden_images.txt");
    for (std::string line; std::getline(file, line);) {
      Golden& golden = all->emplace_back();
      std::string base64;
      std::istringstream(line) >> golden.name >> golden.shape.height >>
          golden.shape.width >> golden.shape.channels >> golden.crc32 >>
          golden.rgb_crc32 >> golden.grey_crc32 >> base64;
      EXPECT_TRUE(absl::Base64Unescape(base64, &golden.file)) << golden.name;
    }
    return all;
  }();
  return goldens;
}

std::string GoldenFile(const std::string& name) {
  const auto found =
      std::find_if(Goldens().begin(), Goldens().end(),
                   [&](const Golden& golden) { return golden.name == name; });
  EXPECT_NE(found, Goldens().end()) << name;
  return found->file;
}

TEST(GoldenImagesTest, AreDecodedAndConvertedAsPillowDoes) {
  ASSERT_EQ(Goldens().size(), 33u);
  for (const Golden& golden : Goldens()) {
    SCOPED_TRACE(golden.name);
    const absl::StatusOr<Image> image = DecodeImage(golden.file, golden.name);
    ASSERT_THAT(image, IsOk());
    EXPECT_EQ(image->shape(), golden.shape);
    EXPECT_EQ(Crc32(image->pixels), golden.crc32);
    EXPECT_EQ(Crc32(WithChannels(*image, 3).pixels), golden.rgb_crc32);
    EXPECT_EQ(Crc32(WithChannels(*image, 1).pixels), golden.grey_crc32);
  }
}

// A file that is cut off anywhere is rejected, with an error that names it.
TEST(GoldenImagesTest, AreRefusedWhenTheyAreCutOff) {
  for (const Golden& golden : Goldens()) {
    for (size_t size = 0; size < golden.file.size(); ++size) {
      const absl::Status status =
          DecodeImage(golden.file.substr(0, size), golden.name).status();
      ASSERT_EQ(CheckMessage(status, golden.name), "") << size;
      ASSERT_EQ(status.code(), size < 4 && (size < 2 || golden.name[0] == 'p')
                                   ? kInvalidArgument
                                   : kDataLoss)
          << golden.name << " " << size << " " << status;
    }
  }
}

// The pixels of a region equal the same pixels of the whole image, whether
// libjpeg computes other pixels or not. A file that is cut off after the region
// is rejected too.
TEST(GoldenImagesTest, HaveRegionsThatAreThePixelsOfTheWhole) {
  std::mt19937 random(3);
  std::vector<Golden> goldens = Goldens();
  // Two scans of ten. libjpeg guesses the missing coefficients from
  // neighbouring blocks, differently in each version, so this image is not
  // among Pillow's.
  const std::vector<std::string> scans =
      absl::StrSplit(GoldenFile("jpeg_progressive_large"), "\xff\xda");
  goldens.push_back({.name = "jpeg_partial",
                     .file = absl::StrCat(scans[0], "\xff\xda", scans[1],
                                          "\xff\xda", scans[2], "\xff\xd9")});
  const Image large = *DecodeImage(GoldenFile("jpeg_420_large"), "f");
  goldens.push_back({.name = "jpeg_grey_large",
                     .file = *EncodeJpeg(WithChannels(large, 1), 90)});
  for (const Golden& golden : goldens) {
    SCOPED_TRACE(golden.name);
    const Image whole = *DecodeImage(golden.file, golden.name);
    for (int i = 0; i < 300; ++i) {
      ImageRegion region;
      region.top = random() % whole.height;
      region.left = random() % whole.width;
      region.height = 1 + random() % (whole.height - region.top);
      region.width = 1 + random() % (whole.width - region.left);
      const auto choose = [&](const ImageShape& shape) {
        EXPECT_EQ(shape, whole.shape());
        return region;
      };
      Image part, want;
      ASSERT_THAT(DecodeImageRegion(
                      golden.file, golden.name, choose,
                      [&](const PixelRows& rows) { AppendRows(rows, part); }),
                  IsOk());
      AppendRows(RowsOf(whole, region), want);
      ASSERT_EQ(part, want) << region.top << " " << region.left << " "
                            << region.height << " " << region.width;
    }
    const auto first = [](const ImageShape&) {
      return ImageRegion{0, 0, 1, 1};
    };
    const auto drop = [](const PixelRows&) {};
    for (size_t size = 0; size < golden.file.size(); ++size) {
      const std::string cut = golden.file.substr(0, size);
      ASSERT_EQ(CheckMessage(DecodeImageRegion(cut, golden.name, first, drop),
                             golden.name),
                "")
          << size;
    }
    const auto beyond = [](const ImageShape& shape) {
      return ImageRegion{0, 1, 1, shape.width};
    };
    EXPECT_THAT(DecodeImageRegion(golden.file, golden.name, beyond, drop),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("at (1, 0)")));
  }
}

std::string Replaced(std::string bytes, size_t at, absl::string_view by) {
  return bytes.replace(at, by.size(), by.data(), by.size());
}

TEST(DecodeImageTest, NamesTheFileAndTheFault) {
  const std::string jpeg = GoldenFile("jpeg_420");
  const std::string png = GoldenFile("png_rgb");
  const size_t frame = jpeg.find("\xff\xc0");  // Length, bits, height, width.
  const std::string large = Replaced(jpeg, frame + 5, "\x27\x10\x27\x10");
  std::string large_png =
      Replaced(png, 16, absl::string_view("\0\0\x27\x10\0\0\x27\x10", 8));
  const auto crc = static_cast<uint32_t>(crc32(
      0, reinterpret_cast<const unsigned char*>(large_png.data()) + 12, 17));
  for (int i = 0; i < 4; ++i) {
    large_png[29 + i] = static_cast<char>(crc >> 8 * (3 - i));
  }
  const struct {
    const char* what;
    std::string bytes;
    absl::StatusCode code;
    std::string message;
  } cases[] = {
      {"nothing", "", kInvalidArgument, "neither JPEG nor PNG: it is empty"},
      {"GIF", "GIF89a", kInvalidArgument, "starts with 0x47 0x49 0x46 0x38"},
      {"JPEG of 100 megapixels", large, kInvalidArgument,
       "has 10000 x 10000 pixels; at most 89478485"},
      {"PNG of 100 megapixels", large_png, kInvalidArgument,
       "has 10000 x 10000 pixels; at most 89478485"},
      {"12 bits", Replaced(jpeg, frame + 4, "\x0c"), kDataLoss,
       "Unsupported JPEG data precision 12"},
      {"no rows", Replaced(jpeg, frame + 5, absl::string_view("\0\0", 2)),
       kDataLoss, "damaged JPEG: "},
      {"no quantisation tables",
       Replaced(jpeg, jpeg.find("\xff\xdb"), "\xff\xef"), kDataLoss,
       "Quantization table 0x00 was not defined"},
      {"a marker in the pixels", Replaced(jpeg, jpeg.size() - 40, "\xff\xd3"),
       kDataLoss, "Corrupt JPEG data"},
      {"a checksum", Replaced(png, png.size() - 14, "\x55"), kDataLoss,
       "CRC error"},
      {"no compressed data", Replaced(png, png.find("IDAT") + 4, "\xff"),
       kDataLoss, "damaged PNG: "}};
  for (const auto& [what, bytes, code, message] : cases) {
    const absl::Status status = DecodeImage(bytes, "dir/a file").status();
    EXPECT_THAT(status, StatusIs(code, AllOf(StartsWith("dir/a file: "),
                                             HasSubstr(message))))
        << what;
    EXPECT_EQ(CheckMessage(status, "dir/a file"), "");
  }
  // The limit itself is allowed.
  EXPECT_THAT(DecodeImage(jpeg, "f", 11 * 19), IsOk());
  EXPECT_THAT(DecodeImage(jpeg, "f", 11 * 19 - 1),
              StatusIs(kInvalidArgument, HasSubstr("x")));
}

// An invalid orientation does not affect the pixels. The tag is the directory's
// second entry of 12 bytes.
TEST(DecodeImageTest, IgnoresDamagedOrientations) {
  const std::string file = GoldenFile("jpeg_orientation_6");  // "II".
  const std::string upright = GoldenFile("jpeg_orientation_1");
  const absl::StatusOr<Image> want = DecodeImage(upright, "f");
  ASSERT_THAT(want, IsOk());
  const size_t tiff = file.find("Exif") + 6;
  const size_t entry = file.find("\x12\x01", tiff);
  const struct {
    const char* what;
    size_t at;
    std::string bytes;
  } cases[] = {{"no EXIF", tiff - 6, "exif"},
               {"no byte order", tiff, "IM"},
               {"a directory far away", tiff + 4, "\xff\xff\xff\xff"},
               {"a directory at the end", tiff + 4, "\x40"},
               {"more entries than there are, without the tag", entry, "\x13"},
               {"another type", entry + 2, "\x04"},
               {"nought", entry + 8, std::string(1, '\0')},
               {"nine", entry + 8, "\x09"}};
  for (const auto& [what, at, bytes] : cases) {
    SCOPED_TRACE(what);
    const absl::StatusOr<Image> image =
        DecodeImage(Replaced(file, at, bytes), "f");
    ASSERT_THAT(image, IsOk());
    EXPECT_EQ(*image, *want);
  }
  // The undamaged orientation changes the image; otherwise the cases would test
  // nothing.
  EXPECT_NE(*DecodeImage(file, "f"), *want);
}

TEST(EncodeTest, ComesBackThePngToTheBitTheJpegNearly) {
  for (const int64_t channels : {1, 3}) {
    for (const int64_t height : {1, 2, 8, 17}) {
      for (const int64_t width : {1, 7, 16, 33}) {
        Image image = {height, width, channels, {}};
        for (int64_t i = 0; i < image.shape().size(); ++i) {
          image.pixels.push_back(static_cast<uint8_t>(
              100 + i / channels % width * 3 + i / channels / width * 2));
        }
        const absl::StatusOr<std::string> png = EncodePng(image);
        ASSERT_THAT(png, IsOk());
        EXPECT_EQ(*DecodeImage(*png, "f"), image);
        const absl::StatusOr<std::string> jpeg = EncodeJpeg(image, 100);
        ASSERT_THAT(jpeg, IsOk());
        const absl::StatusOr<Image> back = DecodeImage(*jpeg, "f");
        ASSERT_THAT(back, IsOk());
        ASSERT_EQ(back->shape(), image.shape());
        for (size_t i = 0; i < image.pixels.size(); ++i) {
          ASSERT_LE(std::abs(back->pixels[i] - image.pixels[i]), 3) << i;
        }
      }
    }
  }
  const Image empty = {0, 3, 3, {}};
  EXPECT_THAT(EncodePng(empty), StatusIs(kInvalidArgument, HasSubstr("x")));
  EXPECT_THAT(EncodeJpeg(empty, 90),
              StatusIs(kInvalidArgument, HasSubstr("x")));
  const Image wide = {1, 65501, 1, std::vector<uint8_t>(65501)};
  EXPECT_THAT(EncodeJpeg(wide, 90),
              StatusIs(kInvalidArgument, HasSubstr("65501 x 1")));
}

// Runs the checks of the fuzzers on seeds and on mutations, in every build: the
// readers of images, lists and CIFAR-10.
TEST(DataCheckTest, ReadersKeepTheirPromisesOnMutations) {
  constexpr int kMutations = 5000;
  for (DataCheck& check : DataChecks()) {
    SCOPED_TRACE(check.name);
    for (const Golden& golden : Goldens()) {
      if (absl::StartsWith(golden.name, check.name)) {
        check.seeds.push_back(golden.file);
      }
    }
    std::mt19937 random(17);
    int accepted = 0;
    for (int i = 0; i < kMutations && !HasFailure(); ++i) {
      SCOPED_TRACE(i);
      bool ok = false;
      EXPECT_EQ(check.check(MutateSeed(check.seeds, random), ok), "");
      accepted += ok ? 1 : 0;
    }
    // Both outcomes must occur often: otherwise the mutations would test only
    // rejection or only acceptance.
    EXPECT_GT(accepted, kMutations / 200);
    EXPECT_LT(accepted, kMutations - kMutations / 20);
  }
}

}  // namespace
}  // namespace lockstep
