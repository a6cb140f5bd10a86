#include "benchmarks/harness/nvml.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using testing::Optional;

// Loads the tests' library under the name of NVIDIA's.
bool LoadLibrary() {
  return dlopen("benchmarks/harness/testing/libnvidia-ml.so.1",
                RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

TEST(NvmlGpuTest, ReadsTheLibrary) {
  ASSERT_TRUE(LoadLibrary()) << dlerror();
  const std::array<char, 16> uuid = {'\x01', '\xfe'};
  const NvmlGpu gpu(uuid);
  EXPECT_THAT(gpu.SmClockMhz(), Optional(1410));
  EXPECT_THAT(gpu.UsedMemoryBytes(), Optional(int64_t{3} << 30));
  const std::optional<double> first = gpu.EnergyJoules();
  ASSERT_TRUE(first.has_value());
  EXPECT_GT(*first, 0);
  EXPECT_GE(*gpu.EnergyJoules(), *first);
}

TEST(NvmlGpuTest, HasNoReadingsOfAGpuThatTheLibraryDoesNotKnow) {
  ASSERT_TRUE(LoadLibrary()) << dlerror();
  const std::array<char, 16> uuid = {'\xff'};
  const NvmlGpu gpu(uuid);
  EXPECT_EQ(gpu.SmClockMhz(), std::nullopt);
  EXPECT_EQ(gpu.UsedMemoryBytes(), std::nullopt);
  EXPECT_EQ(gpu.EnergyJoules(), std::nullopt);
}

}  // namespace
}  // namespace lockstep::benchmarks
