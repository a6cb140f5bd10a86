// JPEG files, through libjpeg.
#ifndef LOCKSTEP_MODELS_DATA_JPEG_H_
#define LOCKSTEP_MODELS_DATA_JPEG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/data/image.h"

namespace lockstep {

// Decodes a JPEG file for DecodeImageRegion. Errors: those of
// DecodeImageRegion; kDataLoss if the bytes are of another format.
absl::Status DecodeJpeg(absl::string_view bytes, const std::string& name,
                        int64_t max_pixels, ChooseRegion choose, TakeRows take);

// Returns a file of the image, which has 1 or 3 channels, with libjpeg's
// defaults (so 4:2:0 for colour). quality: in [1, 100]. Errors:
// kInvalidArgument if a side is 0 or longer than 65,500.
absl::StatusOr<std::string> EncodeJpeg(const Image& image, int quality);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_JPEG_H_
