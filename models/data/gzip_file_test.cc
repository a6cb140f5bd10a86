// GzipFile on plain, compressed, damaged and missing files.
#include "models/data/gzip_file.h"

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_test_util.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Everything in the file, read in pieces of `piece` bytes.
absl::StatusOr<Bytes> ReadAll(const std::string& path, int64_t piece) {
  LOCKSTEP_ASSIGN_OR_RETURN(GzipFile file, GzipFile::Open(path));
  Bytes content;
  while (true) {
    Bytes buffer(piece);
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, file.Read(buffer));
    content.insert(content.end(), buffer.begin(), buffer.begin() + count);
    if (count < piece) return content;
  }
}

TEST(GzipFileTest, ReadsPlainAndCompressedAlike) {
  const std::string dir = MakeTestDir();
  for (const int64_t size : {0, 1, 2, 3, 1000, 300000}) {
    const Bytes content = Ramp(size);
    WriteBytes(dir + "/plain", content);
    WriteGzip(dir + "/compressed", content);
    for (const int64_t piece : {1000, 4096, 1 << 20}) {
      EXPECT_THAT(ReadAll(dir + "/plain", piece), IsOkAndHolds(content));
      EXPECT_THAT(ReadAll(dir + "/compressed", piece), IsOkAndHolds(content));
    }
  }
}

TEST(GzipFileTest, NamesAMissingFile) {
  const std::string path = MakeTestDir() + "/absent";
  EXPECT_THAT(GzipFile::Open(path).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(StartsWith(path), HasSubstr("No such file"))));
}

TEST(GzipFileTest, RejectsADirectory) {
  const std::string dir = MakeTestDir();
  EXPECT_THAT(GzipFile::Open(dir).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(dir), HasSubstr("is a directory"))));
}

// Opening a pipe that nobody writes to would wait for ever.
TEST(GzipFileTest, RejectsAPipeWithoutWaiting) {
  const std::string path = MakeTestDir() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(GzipFile::Open(path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(path), HasSubstr("regular file"))));
}

TEST(GzipFileTest, RejectsEveryTruncation) {
  const std::string path = MakeTestDir() + "/cut.gz";
  WriteGzip(path, Ramp(2000));
  const Bytes whole = ReadBytes(path);
  // Up to three bytes of gzip, depending on zlib, are no gzip yet but a plain
  // file, which the IDX reader then finds too short.
  for (size_t size = 4; size < whole.size(); ++size) {
    WriteBytes(path, Bytes(whole.begin(), whole.begin() + size));
    ASSERT_THAT(ReadAll(path, 4096),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(StartsWith(path), HasSubstr("truncated"))))
        << size << " of " << whole.size() << " bytes";
  }
}

TEST(GzipFileTest, RejectsAWrongChecksumOrLength) {
  const std::string path = MakeTestDir() + "/damaged.gz";
  WriteGzip(path, Ramp(2000));
  const Bytes whole = ReadBytes(path);
  for (size_t from_end = 1; from_end <= 8; ++from_end) {
    Bytes damaged = whole;
    damaged[damaged.size() - from_end] ^= 1;
    WriteBytes(path, damaged);
    EXPECT_THAT(ReadAll(path, 4096),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(StartsWith(path), HasSubstr("damaged"))))
        << from_end << " bytes from the end";
  }
}

}  // namespace
}  // namespace lockstep
