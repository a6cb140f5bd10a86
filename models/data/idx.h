// The IDX format: the files of MNIST and of the data sets that follow it.
#ifndef LOCKSTEP_MODELS_DATA_IDX_H_
#define LOCKSTEP_MODELS_DATA_IDX_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace lockstep {

// A file is two zero bytes, a type, a rank (the number of dimensions), each
// dimension as a big-endian uint32, and the values, the last dimension fastest.
// Unsigned bytes, type 8, are the only type read here.

struct IdxImages {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [count, height, width].
};

// Reads up to out.size() bytes and returns how many; fewer only at the end of
// the content (GzipFile::Read).
using ReadFn =
    absl::FunctionRef<absl::StatusOr<int64_t>(std::span<uint8_t> out)>;

// Parse a file's content: images, rank 3, or labels, rank 1. `name` is what the
// messages call it. Memory grows with the bytes that arrive, never with what a
// header claims.
//
// Errors, all starting with `name`: kInvalidArgument if it is not IDX, or holds
// labels where images are expected or the other way round, or another type or
// rank, or nothing; kDataLoss if it ends too early or goes on too long, or its
// dimensions cannot be true; those of `read`.
absl::StatusOr<IdxImages> ParseIdxImages(const std::string& name, ReadFn read);
absl::StatusOr<std::vector<uint8_t>> ParseIdxLabels(const std::string& name,
                                                    ReadFn read);

// The same from a file, plain or compressed with gzip; also GzipFile's errors.
absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path);
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IDX_H_
