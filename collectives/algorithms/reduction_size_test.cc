// A reduction of more than 2^31 elements, in a few MiB of memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "collectives/algorithms/reduction.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A file of one chunk that is mapped over and over, so that a range has more
// addresses than memory; its last chunk has memory of its own.
class Repeated {
 public:
  Repeated(int64_t size, std::byte value)
      : size_(static_cast<size_t>(size)), file_(memfd_create("chunk", 0)) {
    void* const range =
        mmap(nullptr, size_, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (file_ < 0 || range == MAP_FAILED) return;
    begin_ = static_cast<std::byte*>(range);
    good_ = ftruncate(file_, 2 * kChunk) == 0;
    for (size_t at = 0; at < size_; at += kChunk) {
      const bool last = at + kChunk >= size_;
      good_ &=
          mmap(begin_ + at, kChunk, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file_, last ? kChunk : 0) != MAP_FAILED;
    }
    if (!good_) return;
    std::memset(begin_, static_cast<int>(value), kChunk);
    std::memset(last_chunk().data(), static_cast<int>(value), kChunk);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() {
    if (begin_ != nullptr) munmap(begin_, size_);
    if (file_ >= 0) close(file_);
  }

  static constexpr size_t kChunk = 4 << 20;
  bool good() const { return good_; }
  std::byte* data() const { return begin_; }
  std::span<std::byte> first_chunk() const { return {begin_, kChunk}; }
  std::span<std::byte> last_chunk() const {
    return {begin_ + size_ - kChunk, kChunk};
  }

 private:
  size_t size_;
  int file_;
  std::byte* begin_ = nullptr;
  bool good_ = false;
};

bool HoldsOnly(std::span<const std::byte> bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [=](std::byte b) { return b == std::byte(value); });
}

TEST(ReductionSizeTest, MoreThanTwoToThe31Elements) {
  constexpr int64_t kCount = (int64_t{1} << 31) + Repeated::kChunk;
  const Repeated input(kCount, std::byte{3});
  const Repeated output(kCount, std::byte{0});
  ASSERT_TRUE(input.good() && output.good());
  const void* const inputs[] = {input.data(), input.data()};
  void* const outputs[] = {output.data()};
  const Reduction reduction(DataType::kUInt8, ReduceOp::kSum, 2);
  reduction.Fold(inputs, outputs, kCount - 1);
  EXPECT_TRUE(HoldsOnly(output.first_chunk(), 6));
  EXPECT_TRUE(HoldsOnly(output.last_chunk().first(Repeated::kChunk - 1), 6));
  EXPECT_EQ(output.last_chunk().back(), std::byte{0});

  reduction.Accumulate(output.data(), input.data(), output.data(), kCount);
  EXPECT_TRUE(HoldsOnly(output.last_chunk().first(Repeated::kChunk - 1), 9));
  EXPECT_EQ(output.last_chunk().back(), std::byte{3});
}

}  // namespace
}  // namespace lockstep
