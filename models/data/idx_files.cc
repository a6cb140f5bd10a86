#include "models/data/idx_files.h"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr uint32_t kSide = 28;

void WritePart(const std::string& dir, const std::string& part, uint32_t count,
               std::mt19937& generator) {
  Bytes images;
  Bytes labels;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t label = generator() % 10;
    labels.push_back(static_cast<uint8_t>(label));
    for (uint32_t row = 0; row < kSide; ++row) {
      const uint32_t base = row == 2 * label + 4 ? 192 : 0;
      for (uint32_t column = 0; column < kSide; ++column) {
        images.push_back(static_cast<uint8_t>(base + generator() % 64));
      }
    }
  }
  WriteBytes(absl::StrCat(dir, "/", part, "-images-idx3-ubyte"),
             IdxBytes({count, kSide, kSide}, images));
  WriteBytes(absl::StrCat(dir, "/", part, "-labels-idx1-ubyte"),
             IdxBytes({count}, labels));
}

}  // namespace

Bytes IdxBytes(const std::vector<uint32_t>& dimensions, const Bytes& payload) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(dimensions.size())};
  for (const uint32_t dimension : dimensions) {
    for (const int shift : {24, 16, 8, 0}) {
      bytes.push_back(static_cast<uint8_t>(dimension >> shift));
    }
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

Bytes Ramp(int64_t size, int modulus) {
  Bytes bytes;
  for (int64_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<uint8_t>(i * 7 % modulus));
  }
  return bytes;
}

std::string MakeTestDir() {
  const testing::TestInfo* const info =
      testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) /
                                    info->test_suite_name() / info->name();
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir.string();
}

void WriteBytes(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush()) << path;
}

void WriteGzip(const std::string& path, const Bytes& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  const auto size = static_cast<unsigned>(bytes.size());
  if (size > 0) {
    EXPECT_EQ(gzwrite(file, bytes.data(), size), static_cast<int>(size));
  }
  ASSERT_EQ(gzclose(file), Z_OK) << path;
}

Bytes ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test) {
  std::mt19937 generator(7);
  WritePart(dir, "train", static_cast<uint32_t>(train), generator);
  WritePart(dir, "t10k", static_cast<uint32_t>(test), generator);
}

}  // namespace lockstep
