#include "collectives/algorithms/stream_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr std::byte kGuard{0x5a};

using Copier = void (*)(const std::byte* from, std::byte* to, int64_t bytes);

// Whether a copy of `size` bytes, between memory at these offsets from a line,
// copies them and nothing else.
bool Copies(Copier copier, int64_t size, int64_t from_offset,
            int64_t to_offset) {
  alignas(kCacheLineBytes) std::byte from[8 * kCacheLineBytes];
  alignas(kCacheLineBytes) std::byte to[8 * kCacheLineBytes];
  for (size_t i = 0; i < sizeof(from); ++i) from[i] = std::byte(i % 251);
  std::fill(std::begin(to), std::end(to), kGuard);
  std::vector<std::byte> want(std::begin(to), std::end(to));
  std::copy_n(from + from_offset, size, want.begin() + to_offset);
  copier(from + from_offset, to + to_offset, size);
  FinishStreaming();
  return std::equal(want.begin(), want.end(), to);
}

TEST(StreamCopyTest, EverySizeAndAlignment) {
  for (int64_t size = 0; size <= 5 * kCacheLineBytes; ++size) {
    for (int64_t to = 0; to < kCacheLineBytes; ++to) {
      for (const int64_t from : {0, 1, 16, 63}) {
        ASSERT_TRUE(Copies(StreamCopy, size, from, to))
            << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

// The controls.
TEST(StreamCopyTest, RejectsAByteTooFewOrTooMany) {
  const Copier too_few = [](const std::byte* from, std::byte* to,
                            int64_t bytes) { StreamCopy(from, to, bytes - 1); };
  const Copier too_many = [](const std::byte* from, std::byte* to,
                             int64_t bytes) {
    StreamCopy(from, to, bytes + 1);
  };
  EXPECT_TRUE(Copies(StreamCopy, 100, 1, 3));
  EXPECT_FALSE(Copies(too_few, 100, 1, 3));
  EXPECT_FALSE(Copies(too_many, 100, 1, 3));
}

}  // namespace
}  // namespace lockstep
