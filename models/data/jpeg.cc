// JPEG files through libjpeg, which reports errors by longjmp. Functions here
// that call setjmp therefore have no objects with destructors, and neither does
// any function between them and libjpeg.
#include "models/data/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

// jerror.h needs jpeglib.h before it.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/data/image.h"

namespace lockstep {
namespace {

// The largest number of scans. A file of a few kilobytes may hold many empty
// scans, and each costs a pass over the image. Real files have about ten.
constexpr int kMaxScans = 500;
constexpr int kExif = JPEG_APP0 + 1;

// The number of rows to read at a time. libjpeg mostly makes as many at once,
// and they are still in the cache when they are used.
constexpr int kRows = 16;

struct ErrorManager {
  jpeg_error_mgr base;  // Must be first: libjpeg passes a pointer to it.
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void Jump(j_common_ptr info) {
  auto* const errors = reinterpret_cast<ErrorManager*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

// Handles a message. Level -1 is a warning. Warnings about lost pixels are
// treated as errors. Good pictures often cause other warnings (odd versions,
// bytes between markers).
void OnMessage(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      Jump(info);
    default:
      break;
  }
}

void UseErrorManager(ErrorManager& errors, jpeg_error_mgr*& to) {
  to = jpeg_std_error(&errors.base);
  errors.base.error_exit = Jump;
  errors.base.emit_message = OnMessage;
}

void CheckScans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) {
    auto* const errors = reinterpret_cast<ErrorManager*>(info->err);
    std::snprintf(errors->message, sizeof(errors->message),
                  "more than %d scans", kMaxScans);
    std::longjmp(errors->jump, 1);
  }
}

// A decoder and its errors. ReadHeader and ReadPixels return whether they
// succeeded; otherwise `errors.message` is the error.
struct Decoder {
  Decoder() { UseErrorManager(errors, info.err); }
  ~Decoder() { jpeg_destroy_decompress(&info); }

  bool ReadHeader(absl::string_view bytes) {
    if (setjmp(errors.jump) != 0) return false;
    jpeg_create_decompress(&info);
    info.progress = &progress;
    progress.progress_monitor = CheckScans;
    jpeg_save_markers(&info, kExif, 0xffff);
    // The data are not const in some versions, but are only read.
    jpeg_mem_src(&info,
                 const_cast<unsigned char*>(
                     reinterpret_cast<const unsigned char*>(bytes.data())),
                 bytes.size());
    jpeg_read_header(&info, /*require_image=*/TRUE);
    return true;
  }

  // Reads the region of the image as it is stored. Unless `stop`, also reads
  // the rows below, to detect damage there.
  bool ReadPixels(const ImageRegion& region, bool stop, TakeRows take) {
    if (setjmp(errors.jump) != 0) return false;
    jpeg_start_decompress(&info);
    // Colours at half resolution are interpolated with their neighbours. Rows
    // keep their neighbours when libjpeg skips other rows. Columns at the edge
    // of a crop do not, so the decoded region has a margin of columns.
    constexpr int64_t kMargin = 2;
    JDIMENSION left = 0;
    if (!SmoothsBlocks()) {
      const int64_t right = std::min<int64_t>(
          info.output_width, region.left + region.width + kMargin);
      left =
          static_cast<JDIMENSION>(std::max<int64_t>(0, region.left - kMargin));
      auto width = static_cast<JDIMENSION>(right - left);
      if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
      if (region.top > 0) {
        jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(region.top));
      }
    }
    const int64_t stride = int64_t{info.output_width} * info.output_components;
    const auto rows = reinterpret_cast<uint8_t*>(info.mem->alloc_large(
        reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE, kRows * stride));
    const int64_t bottom = region.top + region.height;
    while (info.output_scanline < region.top) ReadRows(region.top, rows);
    while (info.output_scanline < bottom) {
      const int64_t count = ReadRows(bottom, rows);
      uint8_t* const first =
          rows + (region.left - left) * info.output_components;
      if (info.out_color_space == JCS_CMYK) {
        for (int64_t y = 0; y < count; ++y) {
          ConvertCmyk(first + y * stride, region.width);
        }
      }
      take({first, count, region.width, info.output_components == 1 ? 1 : 3,
            stride});
    }
    if (stop && bottom < info.output_height) {
      jpeg_abort_decompress(&info);
      return true;
    }
    // Reads the rows below, since libjpeg skips rows without checking them.
    while (info.output_scanline < info.output_height) {
      ReadRows(info.output_height, rows);
    }
    // Reads up to the marker of the image's end, which a truncated file does
    // not have.
    jpeg_finish_decompress(&info);
    return true;
  }

  // Reads the next rows into `rows`, at most kRows and none from `end` on.
  // Returns their number.
  int64_t ReadRows(int64_t end, uint8_t* rows) {
    uint8_t* pointers[kRows];
    const size_t stride = size_t{info.output_width} * info.output_components;
    for (int y = 0; y < kRows; ++y) pointers[y] = rows + y * stride;
    const auto most = static_cast<JDIMENSION>(
        std::min<int64_t>(kRows, end - info.output_scanline));
    JDIMENSION count = 0;
    while (count < most) {
      count += jpeg_read_scanlines(&info, pointers + count, most - count);
    }
    return count;
  }

  // Returns whether libjpeg guesses coefficients that a progressive file leaves
  // out from neighbouring blocks. A region of such a file is not decoded alone.
  bool SmoothsBlocks() const {
    bool smooths = false;
    for (int c = 0; info.progressive_mode && c < info.num_components; ++c) {
      for (int k = 1; k < DCTSIZE2; ++k) {
        smooths |= info.coef_bits[c][k] != 0;
      }
    }
    return smooths;
  }

  // Converts inverted CMYK to RGB, in place: white - (255 - colour) * white /
  // 255, where white is the inverted black. The product is rounded as in
  // Pillow's conversion: x * y / 255 to nearest.
  static void ConvertCmyk(uint8_t* row, int64_t width) {
    uint8_t* out = row;
    for (int64_t x = 0; x < width; ++x, row += 4, out += 3) {
      const int white = row[3];
      for (int c = 0; c < 3; ++c) {
        const int product = (255 - row[c]) * white + 128;
        out[c] =
            static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));
      }
    }
  }

  jpeg_decompress_struct info = {};
  jpeg_progress_mgr progress = {};
  ErrorManager errors = {};
};

// Returns the EXIF orientation in an APP1 marker, 1 to 8. A missing or invalid
// orientation is 1, since the pixels are valid without it.
int Orientation(absl::string_view exif) {
  constexpr absl::string_view kHead("Exif\0\0", 6);
  if (exif.substr(0, kHead.size()) != kHead) return 1;
  const absl::string_view tiff = exif.substr(kHead.size());
  const bool little = tiff.substr(0, 2) == "II";
  if (!little && tiff.substr(0, 2) != "MM") return 1;
  // Returns the number in `size` bytes from `at`, or 0 if the bytes do not
  // exist.
  const auto number = [&](size_t at, int size) -> uint32_t {
    if (at > tiff.size() || tiff.size() - at < static_cast<size_t>(size)) {
      return 0;
    }
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      const auto byte = static_cast<uint8_t>(tiff[at + i]);
      value |= uint32_t{byte} << 8 * (little ? i : size - 1 - i);
    }
    return value;
  };
  constexpr uint32_t kOrientationTag = 0x0112, kShort = 3, kEntryBytes = 12;
  const size_t directory = number(4, 4);
  const uint32_t entries = number(directory, 2);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{i} * kEntryBytes;
    if (entry >= tiff.size()) break;
    if (number(entry, 2) != kOrientationTag) continue;
    const uint32_t value = number(entry + 8, 2);
    const bool valid =
        number(entry + 2, 2) == kShort && value >= 1 && value <= 8;
    return valid ? static_cast<int>(value) : 1;
  }
  return 1;
}

int Orientation(const jpeg_decompress_struct& info) {
  for (auto* marker = info.marker_list; marker != nullptr;
       marker = marker->next) {
    const absl::string_view data(reinterpret_cast<const char*>(marker->data),
                                 marker->data_length);
    if (data.substr(0, 4) == "Exif") return Orientation(data);
  }
  return 1;
}

// The change from an image as it is stored to the image as viewers show it:
// rows and columns are exchanged, and read from the opposite ends.
struct ImageTurn {
  explicit ImageTurn(int orientation)
      : exchange(orientation >= 5),
        from_bottom(orientation == 3 || orientation == 4 || orientation == 6 ||
                    orientation == 7),
        from_right(orientation == 2 || orientation == 3 || orientation == 7 ||
                   orientation == 8) {}

  bool exchange, from_bottom, from_right;
};

// Returns the position of a region of the turned image in the stored image,
// which has shape `shape`.
ImageRegion StoredRegion(ImageRegion region, const ImageTurn& turn,
                         const ImageShape& shape) {
  if (turn.exchange) {
    std::swap(region.top, region.left);
    std::swap(region.height, region.width);
  }
  if (turn.from_bottom) region.top = shape.height - region.top - region.height;
  if (turn.from_right) region.left = shape.width - region.left - region.width;
  return region;
}

Image TurnImage(const Image& image, const ImageTurn& turn) {
  Image out = image;
  if (turn.exchange) std::swap(out.height, out.width);
  uint8_t* to = out.pixels.data();
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      int64_t row = turn.exchange ? x : y, column = turn.exchange ? y : x;
      if (turn.from_bottom) row = image.height - 1 - row;
      if (turn.from_right) column = image.width - 1 - column;
      const uint8_t* const from =
          image.pixels.data() + (row * image.width + column) * image.channels;
      for (int64_t c = 0; c < image.channels; ++c) *to++ = from[c];
    }
  }
  return out;
}

// An encoder and its errors, used as Decoder.
struct Encoder {
  Encoder() { UseErrorManager(errors, info.err); }
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }

  bool Write(const Image& image, int quality) {
    if (setjmp(errors.jump) != 0) return false;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &size);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.input_components = static_cast<int>(image.channels);
    info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, /*force_baseline=*/TRUE);
    jpeg_start_compress(&info, /*write_all_tables=*/TRUE);
    const size_t stride = image.width * image.channels;
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPROW>(image.pixels.data() +
                                       info.next_scanline * stride);
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    return true;
  }

  jpeg_compress_struct info = {};
  ErrorManager errors = {};
  unsigned char* bytes = nullptr;  // Allocated by libjpeg with malloc.
  unsigned long size = 0;          // NOLINT: libjpeg's type.
};

}  // namespace

absl::Status DecodeJpeg(absl::string_view bytes, const std::string& name,
                        int64_t max_pixels, ChooseRegion choose,
                        TakeRows take) {
  Decoder decoder;
  const auto fault = [&] {
    const std::string message =
        absl::StrCat(name, ": damaged JPEG: ", decoder.errors.message);
    return decoder.errors.base.msg_code == JERR_OUT_OF_MEMORY
               ? absl::ResourceExhaustedError(message)
               : absl::DataLossError(message);
  };
  if (!decoder.ReadHeader(bytes)) return fault();
  jpeg_decompress_struct& info = decoder.info;
  switch (info.num_components) {
    case 1:
      info.out_color_space = JCS_GRAYSCALE;
      break;
    case 3:
      info.out_color_space = JCS_RGB;
      break;
    case 4:
      info.out_color_space = JCS_CMYK;
      break;
    default:
      return absl::DataLossError(absl::StrCat(name, ": JPEG of ",
                                              info.num_components,
                                              " components, not 1, 3 or 4"));
  }
  const ImageShape stored = {info.image_height, info.image_width,
                             info.num_components == 1 ? 1 : 3};
  LOCKSTEP_RETURN_IF_ERROR(CheckPixels(stored, name, max_pixels));
  const int orientation = Orientation(info);
  const ImageTurn turn(orientation);
  ImageShape shape = stored;
  if (turn.exchange) std::swap(shape.height, shape.width);
  ImageRegion region = choose(shape);
  LOCKSTEP_RETURN_IF_ERROR(CheckRegion(region, shape, name));
  region = StoredRegion(region, turn, stored);

  // A file that ends with the end marker is not cut off, so reading on is not
  // needed.
  const bool stop = absl::EndsWith(bytes, "\xff\xd9");
  if (orientation == 1) {
    return decoder.ReadPixels(region, stop, take) ? absl::OkStatus() : fault();
  }
  Image image;
  if (!decoder.ReadPixels(region, stop, [&](const PixelRows& rows) {
        AppendRows(rows, image);
      })) {
    return fault();
  }
  image = TurnImage(image, turn);
  take(RowsOf(image));
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeJpeg(const Image& image, int quality) {
  Encoder encoder;
  if (!encoder.Write(image, quality)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", image.width, " x ", image.height,
                     " pixels as JPEG: ", encoder.errors.message));
  }
  return std::string(reinterpret_cast<char*>(encoder.bytes), encoder.size);
}

}  // namespace lockstep
