// Reads a file that may or may not be compressed with gzip.
#ifndef LOCKSTEP_MODELS_DATA_GZIP_FILE_H_
#define LOCKSTEP_MODELS_DATA_GZIP_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_GZIP_FILE_H_
