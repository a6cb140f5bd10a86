#include "models/data/data_check.h"

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/image.h"
#include "models/data/image_files.h"
#include "models/data/image_index.h"
#include "models/data/jpeg.h"
#include "models/data/load_dataset.h"
#include "models/data/png.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep {
namespace {

constexpr char kName[] = "file";
// The limit on pixels keeps an input of a few bytes from taking a long time.
constexpr int64_t kFuzzPixels = 1 << 16;

std::string CheckRejection(const absl::Status& status) {
  if (!absl::IsDataLoss(status) && !absl::IsInvalidArgument(status)) {
    return absl::StrCat("an error of another kind: ", status.ToString());
  }
  return CheckMessage(status, kName);
}

std::string CheckDecoder(const std::string& bytes, const auto& decoder,
                         bool& accepted) {
  const auto decode = [&](ChooseRegion choose) -> absl::StatusOr<Image> {
    Image image;
    LOCKSTEP_RETURN_IF_ERROR(
        decoder(bytes, kName, kFuzzPixels, choose,
                [&](const PixelRows& rows) { AppendRows(rows, image); }));
    return image;
  };
  const auto all = [](const ImageShape& shape) {
    return ImageRegion{0, 0, shape.height, shape.width};
  };
  const absl::StatusOr<Image> image = decode(all);
  accepted = image.ok();
  if (!accepted) return CheckRejection(image.status());
  if (image->channels != 1 && image->channels != 3) return "odd channels";
  if (image->height < 1 || image->width < 1 ||
      image->height > kFuzzPixels / image->width) {
    return "an image of another size than allowed";
  }
  if (image->shape().size() != static_cast<int64_t>(image->pixels.size())) {
    return "pixels that are not as many as the shape says";
  }
  const absl::StatusOr<Image> again = decode(all);
  if (!again.ok() || *again != *image) return "other pixels the second time";
  const ImageRegion region = {image->height / 3, image->width / 3,
                              (image->height + 2) / 3, (image->width + 2) / 3};
  const absl::StatusOr<Image> part =
      decode([&](const ImageShape&) { return region; });
  Image want;
  AppendRows(RowsOf(*image, region), want);
  if (!part.ok() || *part != want) return "other pixels in a region";
  const absl::StatusOr<std::string> png = EncodePng(*image);
  if (!png.ok()) return "an image that cannot be written";
  const absl::StatusOr<Image> back = DecodeImage(*png, kName);
  return back.ok() && *back == *image ? "" : "another image after writing";
}

// Returns the PNG with the right checksum for every whole chunk. A chunk is a
// length, a name and data, followed by the checksum of name and data.
std::string FixChecksums(std::string png) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(png.data());
  for (size_t at = 8; at + 12 <= png.size();) {
    const size_t length = size_t{bytes[at]} << 24 | bytes[at + 1] << 16 |
                          bytes[at + 2] << 8 | bytes[at + 3];
    if (length > png.size() - at - 12) break;
    const auto crc =
        crc32(0, bytes + at + 4, static_cast<unsigned>(length + 4));
    at += length + 8;
    for (const int shift : {24, 16, 8, 0}) {
      png[at++] = static_cast<char>(crc >> shift);
    }
  }
  return png;
}

// Returns an image whose colours change along both sides.
Image Example(int64_t height, int64_t width, int64_t channels) {
  Image image = {height, width, channels, {}};
  for (int64_t i = 0; i < image.shape().size(); ++i) {
    image.pixels.push_back(static_cast<uint8_t>(i * i / 7 + 5 * i));
  }
  return image;
}

std::vector<std::string> ImageSeeds(bool jpeg) {
  std::vector<std::string> seeds;
  for (const Image& image :
       {Example(9, 17, 3), Example(16, 16, 1), Example(1, 1, 3)}) {
    const absl::StatusOr<std::string> bytes =
        jpeg ? EncodeJpeg(image, 80) : EncodePng(image);
    if (bytes.ok()) seeds.push_back(*bytes);
  }
  seeds.push_back(seeds[0].substr(0, seeds[0].size() / 2));
  return seeds;
}

std::string CifarRecord(char label) {
  std::string record(1, label);
  for (int i = 0; i < 3072; ++i) record += static_cast<char>(i * 31 / 7);
  return record;
}

std::string WrittenList(const ImageIndex& files) {
  std::string text;
  for (int64_t i = 0; i < files.size(); ++i) {
    absl::StrAppend(&text, files.path(i), " ", files.label(i), "\n");
  }
  return text;
}

}  // namespace

std::string CheckJpeg(const std::string& bytes, bool& accepted) {
  return CheckDecoder(bytes, DecodeJpeg, accepted);
}

std::string CheckPng(const std::string& bytes, bool& accepted) {
  return CheckDecoder(FixChecksums(bytes), DecodePng, accepted);
}

std::string CheckImageList(const std::string& text, bool& accepted) {
  const auto files = ParseImageList(text, kName, /*num_classes=*/0);
  accepted = files.ok();
  if (!accepted) return CheckRejection(files.status());
  for (int64_t i = 0; i < files->size(); ++i) {
    const auto [path, label] = (*files)[i];
    if (path.empty() || label < 0 || label >= kMaxClasses) {
      return "a line without a path or a label";
    }
  }
  const std::string written = WrittenList(*files);
  const auto again = ParseImageList(written, kName, /*num_classes=*/0);
  if (!again.ok()) return "a written list that is refused";
  return WrittenList(*again) == written ? "" : "another list after writing";
}

std::string CheckCifar10(const std::string& bytes, bool& accepted) {
  std::vector<uint8_t> images, labels;
  const absl::Status status = AppendCifar10(bytes, kName, images, labels);
  accepted = status.ok();
  if (!accepted) return CheckRejection(status);
  if (labels.size() * 3073 != bytes.size()) return "records left over";
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t record = i / 3073, at = i % 3073;
    const uint8_t got =
        at == 0 ? labels[record]
                : images[record * 3072 + (at - 1) % 1024 * 3 + (at - 1) / 1024];
    if (got != static_cast<uint8_t>(bytes[i])) return "a byte out of place";
    if (at == 0 && got > 9) return "a label out of range";
  }
  return "";
}

std::vector<DataCheck> DataChecks() {
  return {{"jpeg", CheckJpeg, ImageSeeds(/*jpeg=*/true)},
          {"png", CheckPng, ImageSeeds(/*jpeg=*/false)},
          {"image_list",
           CheckImageList,
           {"train/a.jpg 0\ntrain/b c.jpg\t17\r\n", "x 999999", "x -1\n", "\n",
            "/abs/\xc3\xa9.png 3\n\ny 4\n", "y 1e3\n"}},
          {"cifar10",
           CheckCifar10,
           {CifarRecord(3), CifarRecord(0) + CifarRecord(9), CifarRecord(10),
            "short"}}};
}

}  // namespace lockstep
