// Tests our side of a step on the stand-in for GPUs, in this process, where the
// calls of CUDA can be counted.
#include "benchmarks/step/our_step.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/step/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/precision.h"
#include "models/networks/networks.h"
#include "standin/control.h"

namespace lockstep::benchmarks {
namespace {

// Returns the kernels that the host launches in a turn of two steps, after all
// graphs were captured.
int64_t LaunchesOfATurn(ConvolutionPrecision precision, bool with_graphs) {
  const std::string folder = TestPath("-case");
  std::filesystem::create_directories(folder);
  const NetworkInput input = {.height = 16, .width = 16};
  EXPECT_THAT(WriteStepFiles(*CreateNetwork("lenet", input),
                             {.spec = "lenet", .batch = 2, .input = input},
                             /*seed=*/3, folder),
              IsOk());
  const auto created = CreateGpuStep(folder, precision, with_graphs);
  EXPECT_THAT(created, IsOk());
  if (!created.ok()) return -1;
  OurStep& step = **created;
  EXPECT_THAT(step.First(), IsOk());
  for (int turn = 0; turn < 3; ++turn) EXPECT_THAT(step.Time(0), IsOk());
  standin::ResetCounts();
  EXPECT_THAT(step.Time(0), IsOk());
  return standin::Counts().launches;
}

TEST(OurStepTest, LaunchesGraphsInPlaceOfKernels) {
  for (const auto precision :
       {ConvolutionPrecision::kFloat32, ConvolutionPrecision::kFloat16}) {
    EXPECT_EQ(LaunchesOfATurn(precision, /*with_graphs=*/true), 0);
    EXPECT_GT(LaunchesOfATurn(precision, /*with_graphs=*/false), 20);
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
