// Tests counts that need more than 32 bits, in a few MiB of memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A count that does not fit in 32 bits and is not a power of two.
constexpr size_t kChunk = 4 << 20;
constexpr int64_t kCount = (int64_t{1} << 31) + kChunk;

// kCount bytes of address space that map one chunk of memory again and again.
// The last chunk has memory of its own.
class Repeated {
 public:
  Repeated() : file_(memfd_create("chunk", MFD_CLOEXEC)) {
    void* const range =
        mmap(nullptr, kCount, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (file_ < 0 || range == MAP_FAILED) return;
    begin_ = static_cast<uint8_t*>(range);
    good_ = ftruncate(file_, 2 * kChunk) == 0;
    for (size_t at = 0; at < kCount; at += kChunk) {
      const bool last = at + kChunk >= kCount;
      good_ &=
          mmap(begin_ + at, kChunk, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file_, last ? kChunk : 0) != MAP_FAILED;
    }
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() {
    if (begin_ != nullptr) munmap(begin_, kCount);
    if (file_ >= 0) close(file_);
  }

  bool good() const { return good_; }
  std::span<uint8_t> bytes() const { return {begin_, kCount}; }
  std::span<uint8_t> first_chunk() const { return {begin_, kChunk}; }
  std::span<uint8_t> last_chunk() const {
    return {begin_ + kCount - kChunk, kChunk};
  }

  // Sets element i of a chunk to i % 251 * factor.
  void Fill(int factor) const {
    for (const std::span<uint8_t> chunk : {first_chunk(), last_chunk()}) {
      for (size_t i = 0; i < kChunk; ++i) {
        chunk[i] = static_cast<uint8_t>(i % 251 * factor);
      }
    }
  }

 private:
  int file_;
  uint8_t* begin_ = nullptr;
  bool good_ = false;
};

// Returns whether the elements are as Fill(factor) sets them.
bool IsFilled(std::span<const uint8_t> chunk, int factor) {
  for (size_t i = 0; i < chunk.size(); ++i) {
    if (chunk[i] != static_cast<uint8_t>(i % 251 * factor)) return false;
  }
  return true;
}

TEST(LargeCountTest, Reduction) {
  const Repeated input;
  const Repeated output;
  ASSERT_TRUE(input.good() && output.good());
  input.Fill(3);
  const void* const inputs[] = {input.bytes().data(), input.bytes().data()};
  void* const outputs[] = {output.bytes().data()};
  const Reduction reduction(DataType::kUInt8, ReduceOp::kSum, 2);
  reduction.Fold(inputs, outputs, kCount - 1);
  EXPECT_TRUE(IsFilled(output.first_chunk(), 6));
  EXPECT_TRUE(IsFilled(output.last_chunk().first(kChunk - 1), 6));
  EXPECT_EQ(output.last_chunk().back(), 0);

  // Accumulates through the memory that all chunks but the last share, one
  // chunk after the other.
  reduction.Accumulate(outputs[0], inputs[0], outputs[0], kCount);
  EXPECT_TRUE(IsFilled(output.last_chunk().first(kChunk - 1), 9));
  EXPECT_EQ(output.last_chunk().back(), input.last_chunk().back());
}

TEST(LargeCountTest, AllReduce) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    // The ring takes five seconds. SegmentTest also covers the counting of
    // pieces beyond 32 bits.
    if (algorithm == Algorithm::kRing && !IsExhaustive()) continue;
    GroupOptions options;
    options.algorithm = algorithm;
    const auto all_reduce = [](Communicator& communicator) {
      const Repeated input;
      const Repeated output;
      if (!input.good() || !output.good()) {
        return absl::ResourceExhaustedError("no address space");
      }
      input.Fill(1 + communicator.rank());
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce(input.bytes(), output.bytes()));
      if (!IsFilled(output.first_chunk(), 3) ||
          !IsFilled(output.last_chunk(), 3)) {
        return absl::DataLossError("not the sum");
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(RunOnThreads(2, options, all_reduce), IsOk())
        << Name(algorithm);
  }
}

}  // namespace
}  // namespace lockstep
