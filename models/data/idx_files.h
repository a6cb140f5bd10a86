// Small IDX files, right and wrong, for tests.
#ifndef LOCKSTEP_MODELS_DATA_IDX_FILES_H_
#define LOCKSTEP_MODELS_DATA_IDX_FILES_H_

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {

using Bytes = std::vector<uint8_t>;

// The content of an IDX file of unsigned bytes.
inline Bytes IdxBytes(const std::vector<uint32_t>& dimensions,
                      const Bytes& payload) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(dimensions.size())};
  for (const uint32_t dimension : dimensions) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<uint8_t>(dimension >> shift));
    }
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

// `size` bytes that are not all alike: i * 7 modulo `modulus`.
inline Bytes Ramp(int64_t size, int modulus = 251) {
  Bytes bytes;
  for (int64_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<uint8_t>(i * 7 % modulus));
  }
  return bytes;
}

// An empty folder of the running test case's own.
inline std::string MakeTestDir() {
  const testing::TestInfo* const info =
      testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) /
                                    info->test_suite_name() / info->name();
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir.string();
}

inline void WriteBytes(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush()) << path;
}

inline void WriteGzip(const std::string& path, const Bytes& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  const auto size = static_cast<unsigned>(bytes.size());
  if (size > 0) {
    EXPECT_EQ(gzwrite(file, bytes.data(), size), static_cast<int>(size));
  }
  ASSERT_EQ(gzclose(file), Z_OK) << path;
}

inline Bytes ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// A small data set in files of the kind that Fashion-MNIST comes in.

// Writes the four files, plain, to an existing folder: images of noise in which
// a bright row, 2 * label + 4, tells the label. The same numbers give the same
// bytes.
void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IDX_FILES_H_
