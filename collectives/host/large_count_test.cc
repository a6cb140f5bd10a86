// Counts that 32 bits do not hold.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
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
