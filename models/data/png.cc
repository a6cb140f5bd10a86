// PNG files through libpng, which reports errors by longjmp. Functions here
// that call setjmp therefore have no objects with destructors, and neither does
// any function between them and libpng.
#include "models/data/png.h"

#include <png.h>

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/data/image.h"

namespace lockstep {
namespace {

// The state of a decoder or an encoder. Functions that take libpng's structures
// return whether they succeeded; otherwise `message` is the error.
struct PngContext {
  char message[200] = "";
  absl::string_view input;  // The bytes that are not read yet.
};

[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  auto& context = *static_cast<PngContext*>(png_get_error_ptr(png));
  std::snprintf(context.message, sizeof(context.message), "%s", message);
  png_longjmp(png, 1);
}

// Ignores warnings, which concern no pixels: colour profiles, texts.
void OnWarning(png_structp, png_const_charp) {}

void ReadBytes(png_structp png, png_bytep to, size_t size) {
  auto& context = *static_cast<PngContext*>(png_get_io_ptr(png));
  if (context.input.size() < size) png_error(png, "it ends too early");
  std::memcpy(to, context.input.data(), size);
  context.input.remove_prefix(size);
}

struct Decoder {
  Decoder()
      : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &context, OnError,
                                   OnWarning)),
        info(png == nullptr ? nullptr : png_create_info_struct(png)) {}
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }

  bool ReadHeader(absl::string_view bytes) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    context.input = bytes;
    png_set_read_fn(png, &context, ReadBytes);
    png_read_info(png, info);
    png_set_expand(png);  // Palettes, and grey of less than 8 bits.
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }

  // out: `height` rows of png_get_rowbytes.
  bool ReadPixels(uint8_t* out, int64_t height) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    const size_t stride = png_get_rowbytes(png, info);
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t y = 0; y < height; ++y) {
        png_read_row(png, out + y * stride, nullptr);
      }
    }
    // Checks the checksum of the last data, and that the end exists.
    png_read_end(png, nullptr);
    return true;
  }

  PngContext context;
  int passes = 1;
  png_structp png;
  png_infop info;
};

void WriteBytes(png_structp png, png_bytep from, size_t size) {
  static_cast<std::string*>(png_get_io_ptr(png))
      ->append(reinterpret_cast<char*>(from), size);
}

struct Encoder {
  Encoder()
      : png(png_create_write_struct(PNG_LIBPNG_VER_STRING, &context, OnError,
                                    OnWarning)),
        info(png == nullptr ? nullptr : png_create_info_struct(png)) {}
  ~Encoder() { png_destroy_write_struct(&png, &info); }

  bool Write(const Image& image) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_set_write_fn(png, &bytes, WriteBytes, nullptr);
    png_set_IHDR(png, info, static_cast<png_uint_32>(image.width),
                 static_cast<png_uint_32>(image.height), 8,
                 image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int64_t y = 0; y < image.height; ++y) {
      png_write_row(png,
                    image.pixels.data() + y * image.width * image.channels);
    }
    png_write_end(png, info);
    return true;
  }

  PngContext context;
  std::string bytes;
  png_structp png;
  png_infop info;
};

absl::Status OutOfMemory(const std::string& name) {
  return absl::ResourceExhaustedError(
      absl::StrCat(name, ": out of memory in libpng"));
}

}  // namespace

absl::Status DecodePng(absl::string_view bytes, const std::string& name,
                       int64_t max_pixels, ChooseRegion choose, TakeRows take) {
  Decoder decoder;
  if (decoder.info == nullptr) return OutOfMemory(name);
  const auto fault = [&] {
    if (absl::StrContains(decoder.context.message, "memory")) {
      return OutOfMemory(name);
    }
    return absl::DataLossError(
        absl::StrCat(name, ": damaged PNG: ", decoder.context.message));
  };
  if (!decoder.ReadHeader(bytes)) return fault();
  Image image;
  image.height = png_get_image_height(decoder.png, decoder.info);
  image.width = png_get_image_width(decoder.png, decoder.info);
  image.channels = png_get_channels(decoder.png, decoder.info);
  LOCKSTEP_RETURN_IF_ERROR(CheckPixels(image.shape(), name, max_pixels));
  const ImageRegion region = choose(image.shape());
  LOCKSTEP_RETURN_IF_ERROR(CheckRegion(region, image.shape(), name));
  image.pixels.resize(image.shape().size());
  if (!decoder.ReadPixels(image.pixels.data(), image.height)) return fault();
  take(RowsOf(image, region));
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodePng(const Image& image) {
  Encoder encoder;
  if (encoder.info == nullptr) return OutOfMemory("a PNG");
  if (!encoder.Write(image)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", image.width, " x ", image.height,
                     " pixels as PNG: ", encoder.context.message));
  }
  return std::move(encoder.bytes);
}

}  // namespace lockstep
