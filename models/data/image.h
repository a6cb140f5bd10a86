// Images as bytes, and the files that hold them: JPEG through libjpeg, PNG
// through libpng.
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

  // The values of one image.
  int64_t size() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// An image as files hold it: bytes, channels innermost, row by row from the
// top. One channel is grey, three are red, green and blue.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels].

  ImageShape shape() const { return {height, width, channels}; }
  bool operator==(const Image&) const = default;
};

// A part of an image; must lie within it and have at least one pixel.
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

// Says which part of an image of that shape is wanted.
using ChooseRegion = absl::FunctionRef<ImageRegion(const ImageShape&)>;

// Some rows of an image or of a region: host uint8, channels innermost,
// borrowed.
struct PixelRows {
  const uint8_t* data = nullptr;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int64_t stride = 0;  // From one row to the next, in bytes.
};

// Takes the rows of a region, from its first to its last one, in any number of
// calls; they are valid during the call.
using TakeRows = absl::FunctionRef<void(const PixelRows&)>;

// The rows of the image, or of a region within it.
PixelRows RowsOf(const Image& image);
PixelRows RowsOf(const Image& image, const ImageRegion& region);

// Puts the rows below those that the image has, whose width and channels
// become theirs.
void AppendRows(const PixelRows& rows, Image& image);

// The most pixels that an image may have unless a caller says otherwise: a
// quarter of a GiB as RGB, the size from which Pillow warns of a decompression
// bomb.
inline constexpr int64_t kMaxPixels = 89'478'485;

// The image in a JPEG or PNG file of those bytes, told apart by how they begin.
// Pixels are those that Pillow decodes and converts, with the same libraries to
// the bit:
// - JPEG: grey is one channel, all else three. CMYK and YCCK are taken to be
//   inverted, as Adobe writes them. The EXIF orientation, if there is a valid
//   one, is applied, as Pillow's exif_transpose does.
// - PNG: grey is one channel, all else three. Of 16 bits the upper 8 are kept;
//   alpha is dropped, whatever the colours under it; gamma is not applied.
//
// Memory: the image's, and of a progressive JPEG 6 bytes a pixel in libjpeg; of
// a JPEG with an orientation the image twice.
//
// Errors, one line that begins with `name`: kInvalidArgument if the bytes are
// neither, or the image has over `max_pixels` pixels, which is known before
// memory is taken; kDataLoss if they are cut off anywhere, damaged where pixels
// would be lost, or of a kind that the libraries do not decode;
// kResourceExhausted if memory ran out.
absl::StatusOr<Image> DecodeImage(absl::string_view bytes,
                                  const std::string& name,
                                  int64_t max_pixels = kMaxPixels);

// Hands over the part of the image that `choose` says, given its shape after
// rotation: the pixels of DecodeImage, of which a JPEG's others are mostly not
// computed. `choose` is called once, and before `take`.
// Memory: of a JPEG without an orientation, a few rows in place of the image.
// Errors: those of DecodeImage, perhaps after some rows, but damage below the
// region of a JPEG that ends as it should goes unnoticed; kInternal if the
// region is none of the image's.
absl::Status DecodeImageRegion(absl::string_view bytes, const std::string& name,
                               ChooseRegion choose, TakeRows take,
                               int64_t max_pixels = kMaxPixels);

// What decoders check before they take memory: DecodeImage's error for too many
// pixels, DecodeImageRegion's for a region.
absl::Status CheckPixels(const ImageShape& shape, const std::string& name,
                         int64_t max_pixels);
absl::Status CheckRegion(const ImageRegion& region, const ImageShape& shape,
                         const std::string& name);

// What DecodeImageRegion does for one format: anything else is kDataLoss.
absl::Status DecodeJpeg(absl::string_view bytes, const std::string& name,
                        int64_t max_pixels, ChooseRegion choose, TakeRows take);
absl::Status DecodePng(absl::string_view bytes, const std::string& name,
                       int64_t max_pixels, ChooseRegion choose, TakeRows take);

// The image with 1 or 3 channels, as Pillow's convert("L") and convert("RGB"):
// grey three times; or the luma of ITU-R 601-2, (19595 R + 38470 G + 7471 B +
// 2^15) / 2^16.
Image WithChannels(Image image, int64_t channels);

// A file of the image, which has 1 or 3 channels: a JPEG of that quality, in
// [1, 100], with libjpeg's defaults (so 4:2:0 for colour), or a PNG. Errors:
// kInvalidArgument if a side is 0 or longer than the format has room for
// (65,500 for JPEG, 1,000,000 for PNG).
absl::StatusOr<std::string> EncodeJpeg(const Image& image, int quality);
absl::StatusOr<std::string> EncodePng(const Image& image);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IMAGE_H_
