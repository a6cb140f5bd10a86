#include "models/data/image.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/data/jpeg.h"
#include "models/data/png.h"

namespace lockstep {

absl::StatusOr<Image> DecodeImage(absl::string_view bytes,
                                  const std::string& name, int64_t max_pixels) {
  Image image;
  LOCKSTEP_RETURN_IF_ERROR(DecodeImageRegion(
      bytes, name,
      [&](const ImageShape& shape) {
        image.pixels.reserve(shape.size());
        return ImageRegion{0, 0, shape.height, shape.width};
      },
      [&](const PixelRows& rows) { AppendRows(rows, image); }, max_pixels));
  return image;
}

absl::Status DecodeImageRegion(absl::string_view bytes, const std::string& name,
                               ChooseRegion choose, TakeRows take,
                               int64_t max_pixels) {
  if (absl::StartsWith(bytes, "\xff\xd8")) {
    return DecodeJpeg(bytes, name, max_pixels, choose, take);
  }
  if (absl::StartsWith(bytes, "\x89PNG")) {
    return DecodePng(bytes, name, max_pixels, choose, take);
  }
  std::string start;
  for (const char byte : bytes.substr(0, 4)) {
    absl::StrAppend(&start, " 0x",
                    absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": neither JPEG nor PNG: ",
      bytes.empty() ? "it is empty" : absl::StrCat("it starts with", start)));
}

absl::Status CheckPixels(const ImageShape& shape, const std::string& name,
                         int64_t max_pixels) {
  if (shape.height * shape.width <= max_pixels) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": has ", shape.width, " x ", shape.height,
                   " pixels; at most ", max_pixels, " are allowed"));
}

absl::Status CheckRegion(const ImageRegion& region, const ImageShape& shape,
                         const std::string& name) {
  if (region.IsWithin(shape)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(name, ": has ", shape.width, " x ", shape.height,
                   " pixels, without the requested ", region.width, " x ",
                   region.height, " at (", region.left, ", ", region.top, ")"));
}

PixelRows RowsOf(const Image& image) {
  return RowsOf(image, {0, 0, image.height, image.width});
}

PixelRows RowsOf(const Image& image, const ImageRegion& region) {
  const int64_t stride = image.width * image.channels;
  return {
      image.pixels.data() + region.top * stride + region.left * image.channels,
      region.height, region.width, image.channels, stride};
}

void AppendRows(const PixelRows& rows, Image& image) {
  image.height += rows.height;
  image.width = rows.width;
  image.channels = rows.channels;
  for (int64_t y = 0; y < rows.height; ++y) {
    const uint8_t* const row = rows.data + y * rows.stride;
    image.pixels.insert(image.pixels.end(), row,
                        row + rows.width * rows.channels);
  }
}

Image WithChannels(Image image, int64_t channels) {
  if (image.channels == channels) return image;
  Image out = {image.height, image.width, channels, {}};
  out.pixels.reserve(out.shape().size());
  if (channels == 3) {
    for (const uint8_t grey : image.pixels) {
      out.pixels.insert(out.pixels.end(), 3, grey);
    }
    return out;
  }
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const uint8_t* const rgb = image.pixels.data() + i;
    out.pixels.push_back(static_cast<uint8_t>(
        (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16));
  }
  return out;
}

}  // namespace lockstep
