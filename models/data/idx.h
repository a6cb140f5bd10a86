// The IDX format, the files of MNIST and of the data sets that follow it, and
// files that may or may not be compressed with gzip.
#ifndef LOCKSTEP_MODELS_DATA_IDX_H_
#define LOCKSTEP_MODELS_DATA_IDX_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// A sequential reader of a regular file's content, decompressed if it starts
// with gzip's magic bytes, whatever the file is called. Not thread safe. Bytes
// after the end of the last gzip member are ignored, as gzip does.
class GzipFile {
 public:
  // Errors, all with the path in the message: kNotFound if nothing is there,
  // kInvalidArgument if it is a directory or anything else but a regular file,
  // otherwise the code of the system's errno.
  static absl::StatusOr<GzipFile> Open(const std::string& path);

  // Reads up to out.size() bytes and returns how many; fewer only at the end of
  // the content, and 0 after it. The checksum at the end of gzip's data is
  // verified by the read that meets the end, so read until 0.
  //
  // out: host bytes; borrowed; unspecified after an error.
  // Errors: kDataLoss, with the path, if the compressed data is damaged or cut
  // off; the code of errno if the system cannot read.
  absl::StatusOr<int64_t> Read(std::span<uint8_t> out);

 private:
  struct Closer {
    void operator()(void* file) const;
  };

  GzipFile(const std::string& path, void* file) : path_(path), file_(file) {}

  // What zlib holds against the file, or OK.
  absl::Status Fault() const;

  std::string path_;
  std::unique_ptr<void, Closer> file_;  // A gzFile; zlib.h stays out of here.
};

// An IDX file is two zero bytes, a type, a rank (the number of dimensions),
// each dimension as a big-endian uint32, and the values, the last dimension
// fastest. Unsigned bytes, type 8, are the only type read here.

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
