// PNG files, through libpng.
#ifndef LOCKSTEP_MODELS_DATA_PNG_H_
#define LOCKSTEP_MODELS_DATA_PNG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/data/image.h"

namespace lockstep {

// Decodes a PNG file for DecodeImageRegion. Errors: those of
// DecodeImageRegion; kDataLoss if the bytes are of another format.
absl::Status DecodePng(absl::string_view bytes, const std::string& name,
                       int64_t max_pixels, ChooseRegion choose, TakeRows take);

// Returns a file of the image, which has 1 or 3 channels. Errors:
// kInvalidArgument if a side is 0 or longer than 1,000,000.
absl::StatusOr<std::string> EncodePng(const Image& image);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_PNG_H_
