// A reduction of more than 2^31 elements, in a few MiB of memory.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
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

// Counts that 32 bits do not hold.
namespace {

using testing::Each;

// 2^31 + 2^26 bytes of address space over the same 64 MiB again and again, so
// that it costs no more memory.
class Repeated {
 public:
  static constexpr int64_t kPeriod = 64 << 20;
  static constexpr int64_t kSize = (int64_t{1} << 31) + kPeriod;

  explicit Repeated(int value) {
    const int file = memfd_create("repeated", MFD_CLOEXEC);
    if (ftruncate(file, kPeriod) != 0) return;
    void* base =
        mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return;
    data_ = static_cast<uint8_t*>(base);
    for (int64_t at = 0; at < kSize; at += kPeriod) {
      if (mmap(data_ + at, kPeriod, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        std::abort();
      }
    }
    close(file);
    for (int64_t i = 0; i < kPeriod; ++i) {
      data_[i] = static_cast<uint8_t>(i % 251 * value);
    }
  }
  ~Repeated() {
    if (data_ != nullptr) munmap(data_, kSize);
  }
  std::span<uint8_t> bytes() const {
    return {data_, data_ == nullptr ? 0 : static_cast<size_t>(kSize)};
  }

 private:
  uint8_t* data_ = nullptr;
};

TEST(LargeCountTest, MoreThanTwoToTheThirtyOneElements) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    RunRanksOptions options;
    options.group.algorithm = algorithm;
    const auto statuses = RunRanks(
        Backend::kThreads, 2,
        [](Communicator& communicator) {
          const Repeated input(1 + communicator.rank());
          const Repeated output(0);
          if (input.bytes().empty() || output.bytes().empty()) {
            return absl::ResourceExhaustedError("no address space");
          }
          LOCKSTEP_RETURN_IF_ERROR(
              communicator.AllReduce(input.bytes(), output.bytes()));
          for (size_t i = 0; i < Repeated::kPeriod; ++i) {
            if (output.bytes()[i] != static_cast<uint8_t>(i % 251 * 3)) {
              return absl::DataLossError(absl::StrCat("byte ", i));
            }
          }
          return absl::OkStatus();
        },
        options);
    EXPECT_THAT(statuses, Each(IsOk())) << Name(algorithm);
  }
}

}  // namespace
}  // namespace lockstep
