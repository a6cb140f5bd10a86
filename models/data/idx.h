// IDX files, plain or compressed. An IDX file consists of two zero bytes, a
// type, a rank (the number of dimensions), each dimension as a big-endian
// uint32, and the values, the last dimension fastest. Only unsigned bytes, type
// 8, are supported.
#ifndef LOCKSTEP_MODELS_DATA_IDX_H_
#define LOCKSTEP_MODELS_DATA_IDX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

struct IdxImages {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [count, height, width].
};

// Read a regular file of images (rank 3) or labels (rank 1). A file that begins
// with gzip's magic bytes is decompressed, whatever its name. Memory grows with
// the bytes that arrive, not with the size in the header. Bytes after the end
// of the last gzip member are ignored, as gzip does.
//
// Errors, all starting with `path`: kNotFound if the path does not exist.
// kInvalidArgument if the path is not a regular file, or if the file is not
// IDX, is empty, or has another type or rank (such as labels in place of
// images). kDataLoss if the file is too short or too long, its dimensions are
// impossible, or compressed data or its checksum is damaged. Otherwise the code
// of the system's errno.
absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path);
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IDX_H_
