// A generator and a writer of IDX files.
#include "models/data/idx_files.h"

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr uint32_t kSide = 28;

void WriteIdx(const std::string& path, const std::vector<uint32_t>& dimensions,
              const std::string& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(dimensions.size())};
  for (const uint32_t dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(dimension >> shift & 0xff));
    }
  }
  std::ofstream(path, std::ios::binary) << bytes << values;
}

void WritePart(const std::string& dir, const std::string& part, uint32_t count,
               std::mt19937& generator) {
  std::string images;
  std::string labels;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t label = generator() % 10;
    labels.push_back(static_cast<char>(label));
    for (uint32_t row = 0; row < kSide; ++row) {
      const uint32_t base = row == 2 * label + 4 ? 192 : 0;
      for (uint32_t column = 0; column < kSide; ++column) {
        images.push_back(static_cast<char>(base + generator() % 64));
      }
    }
  }
  WriteIdx(absl::StrCat(dir, "/", part, "-images-idx3-ubyte"),
           {count, kSide, kSide}, images);
  WriteIdx(absl::StrCat(dir, "/", part, "-labels-idx1-ubyte"), {count}, labels);
}

}  // namespace

void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test) {
  std::mt19937 generator(7);
  WritePart(dir, "train", static_cast<uint32_t>(train), generator);
  WritePart(dir, "t10k", static_cast<uint32_t>(test), generator);
}

}  // namespace lockstep
