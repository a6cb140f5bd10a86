// Images as bytes, and how they are decoded from files.
#ifndef LOCKSTEP_MODELS_DATA_IMAGE_H_
#define LOCKSTEP_MODELS_DATA_IMAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct ImageShape {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;

  // The number of values of one image.
  int64_t size() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// An image as files hold it: bytes, channels innermost, row by row from the
// top. One channel is grey; three channels are red, green and blue.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels].

  ImageShape shape() const { return {height, width, channels}; }
  bool operator==(const Image&) const = default;
};

// A part of an image. A region must lie within the image and have at least one
// pixel.
struct ImageRegion {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;

  bool IsWithin(const ImageShape& shape) const {
    return top >= 0 && left >= 0 && height > 0 && width > 0 &&
           height <= shape.height - top && width <= shape.width - left;
  }
  bool operator==(const ImageRegion&) const = default;
};

// Returns the region to read of an image with the given shape.
using ChooseRegion = absl::FunctionRef<ImageRegion(const ImageShape&)>;

// Some rows of an image or of a region: host uint8, channels innermost,
// borrowed.
struct PixelRows {
  const uint8_t* data = nullptr;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t stride = 0;  // Bytes from one row to the next.
};

// Receives the rows of a region, from first to last, in any number of calls.
// The rows are valid during the call.
using TakeRows = absl::FunctionRef<void(const PixelRows&)>;

// Return the rows of the image, or of a region within it.
PixelRows RowsOf(const Image& image);
PixelRows RowsOf(const Image& image, const ImageRegion& region);

// Appends the rows at the bottom of the image. The image takes their width and
// channels.
void AppendRows(const PixelRows& rows, Image& image);

// The default limit on an image's pixels: a quarter of a GiB as RGB. Pillow
// warns of a decompression bomb from this size on.
inline constexpr int64_t kMaxPixels = 89'478'485;

// Decodes a JPEG or PNG file with these bytes; the first bytes tell the format.
// With the same libraries, pixels are bit for bit those that Pillow decodes and
// converts:
// - JPEG: grey has one channel, other colours three. CMYK and YCCK are taken as
//   inverted, as Adobe writes them. A valid EXIF orientation is applied, as
//   Pillow's exif_transpose does.
// - PNG: grey has one channel, other colours three. Of 16 bits the upper 8 are
//   kept. Alpha is dropped, whatever the colours under it. Gamma is not
//   applied.
//
// Memory: the image; for a progressive JPEG, 6 more bytes a pixel in libjpeg;
// for a JPEG with an orientation, the image twice.
//
// Errors, one line that begins with `name`: kInvalidArgument if the bytes are
// neither JPEG nor PNG, or the image has over `max_pixels` pixels, which is
// checked before allocating; kDataLoss if the bytes are cut off, damaged so
// that pixels are lost, or of a kind that the libraries do not decode;
// kResourceExhausted if memory ran out.
absl::StatusOr<Image> DecodeImage(absl::string_view bytes,
                                  const std::string& name,
                                  int64_t max_pixels = kMaxPixels);

// Decodes a region of the image and passes its rows to `take`. `choose` is
// called once, before `take`, with the image's shape after rotation. Pixels
// equal those of DecodeImage. Most pixels of a JPEG outside the region are not
// computed. Memory: for a JPEG without an orientation, a few rows instead of
// the image. Errors: those of DecodeImage, perhaps after some rows. If a JPEG
// is not cut off, damage below the region is not detected. kInternal if the
// region is not within the image.
absl::Status DecodeImageRegion(absl::string_view bytes, const std::string& name,
                               ChooseRegion choose, TakeRows take,
                               int64_t max_pixels = kMaxPixels);

// Check before a decoder allocates. CheckPixels returns DecodeImage's error for
// too many pixels, CheckRegion returns DecodeImageRegion's error for a region.
absl::Status CheckPixels(const ImageShape& shape, const std::string& name,
                         int64_t max_pixels);
absl::Status CheckRegion(const ImageRegion& region, const ImageShape& shape,
                         const std::string& name);

// Returns the image with 1 or 3 channels, as Pillow's convert("L") and
// convert("RGB"). Grey is repeated three times. Colours become the luma of
// ITU-R 601-2, (19595 R + 38470 G + 7471 B + 2^15) / 2^16.
Image WithChannels(Image image, int64_t channels);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IMAGE_H_
