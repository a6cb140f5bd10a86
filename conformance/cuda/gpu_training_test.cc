// Checks that ranks on GPUs take one rank's steps, as graphs and without: on
// the stand-in's GPUs, in three orders of streams, or on as many GPUs as the
// host has. Also checks that the checks of skipped steps reject what they must.
#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "conformance/cuda/gpu_checks.h"
#include "conformance/cuda/gpu_run.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/precision.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

constexpr auto kFloat16 = ConvolutionPrecision::kFloat16;
constexpr auto kBFloat16 = ConvolutionPrecision::kBFloat16;

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr const char* kBackend = "nccl stand-in";
#else
constexpr const char* kBackend = "nccl, a GPU each";
#endif

// Tests of ranks that have a GPU each.
class GpusTest : public GpuTest {
 protected:
  // Skips the test, or fails it if the machine must have the GPUs, unless there
  // is one for each rank. The stand-in has as many as it is asked for.
  void NeedGpus([[maybe_unused]] int ranks) {
#ifndef LOCKSTEP_CUDA_STANDIN
    int gpus = 0;
    ASSERT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
    if (gpus >= ranks) return;
    ASSERT_FALSE(GpusRequired(ranks)) << "the host has " << gpus << " GPUs";
    GTEST_SKIP() << "needs " << ranks << " GPUs, the host has " << gpus;
#endif
  }
};

class GpuTrainingTest : public GpusTest,
                        public testing::WithParamInterface<GpuRun> {};

TEST_P(GpuTrainingTest, StepsAreOneRanks) {
  const GpuRun& run = GetParam();
  NeedGpus(run.world_size());
  if (IsSkipped() || HasFailure()) return;
  const DataType type = run.network().type;
  ClaimRecorder recorder(
      {type == DataType::kFloat32 ? "gpu_training" : "gpu_narrow_training",
       kBackend, run.world_size(), Name(type)});
  const auto trace = RunOnGpus(run);
  ASSERT_THAT(trace, IsOk());
  const NetworkVerdicts verdicts = CheckGpuRun(run, *trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  for (const GpuRankTrace& rank : trace->ranks) {
    EXPECT_EQ(rank.scales.back().skipped, run.huge_step >= 0 ? 1 : 0);
  }
  recorder.Measure(verdicts.furthest / SpreadOf(type));
}

std::vector<GpuRun> Runs() {
  std::vector<GpuRun> runs = {
      {.deal = {8}, .steps = 7, .graphs = true},
      {.deal = {8}, .steps = 4, .precision = kFloat16, .huge_step = 3},
      {.deal = {8},
       .steps = 3,
       .precision = kBFloat16,
       .graphs = true,
       .tested = &TestedFusedVit()},
      {.steps = 4, .bucket_bytes = 1},
      {.deal = {5, 3}, .steps = 100, .graphs = true, .bucket_bytes = 1},
      {.deal = {3, 5, 0}, .steps = 2},
      {.deal = {1, 4, 1, 2}, .steps = 4, .graphs = true},
      {.deal = {1, 1, 1, 1, 1, 1, 1, 1}, .steps = 4, .graphs = true},
      {.steps = 2, .precision = kBFloat16},
      {.deal = {5, 3}, .steps = 2, .precision = kFloat16},
      {.steps = 2, .precision = kFloat16, .huge_step = 1},
      {.deal = {5, 3},
       .steps = 7,
       .precision = kBFloat16,
       .graphs = true,
       .order = StreamOrder::kOldestFirst},
      {.steps = 7,
       .precision = kFloat16,
       .graphs = true,
       .order = StreamOrder::kNewestFirst},
      {.deal = {5, 3}, .tested = &TestedVit()},
  };
#ifdef LOCKSTEP_CUDA_STANDIN
  for (const StreamOrder order :
       {StreamOrder::kAtOnce, StreamOrder::kOldestFirst,
        StreamOrder::kNewestFirst}) {
    runs.push_back(
        {.deal = {5, 3}, .steps = 7, .graphs = true, .order = order});
    runs.push_back({.steps = 3, .order = order});
  }
#endif
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Runs, GpuTrainingTest, testing::ValuesIn(Runs()),
                         [](const auto& info) { return info.param.name(); });

class GpuTrainingInputTest : public GpusTest {};

// No derivative is in doubt in LeNet's steps.
TEST_F(GpuTrainingInputTest, NoKinkIsInDoubt) {
  const GpuRun run = {.deal = {8}, .steps = TestedLeNet().steps()};
  const auto trace = RunOnGpus(run);
  ASSERT_THAT(trace, IsOk());
  for (int step = 0; step < run.steps; ++step) {
    EXPECT_GT(Clearance(InputOf(run.network(), trace->network, step,
                                BatchStatistics::kGlobal)),
              kNetworkClearance)
        << step;
  }
}

class CheckSkipsTest : public GpusTest {};

// Changes the trace of a step that both ranks skip.
TEST_F(CheckSkipsTest, RejectsAWrongDecision) {
  NeedGpus(2);
  if (IsSkipped() || HasFailure()) return;
  const GpuRun run = {.steps = 1, .precision = kFloat16, .huge_step = 0};
  const auto right = RunOnGpus(run);
  ASSERT_THAT(right, IsOk());
  ASSERT_THAT(CheckSkips(*right), IsOk());
  GpuTrace changed = *right;
  changed.ranks[1].parameters[1][0] += 1;
  EXPECT_THAT(CheckSkips(changed),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("skips the step, and its parameters change")));
  changed = *right;
  for (GpuRankTrace& rank : changed.ranks) {
    for (float& value : rank.gradients[0]) value = 1;
  }
  EXPECT_THAT(CheckSkips(changed),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("skips a step whose summed gradients are "
                                 "finite")));
  changed = *right;
  for (GpuRankTrace& rank : changed.ranks) rank.scales[1].skipped = 0;
  EXPECT_THAT(CheckSkips(changed),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("takes a step whose summed gradients are not "
                                 "finite")));
  changed = *right;
  for (GpuRankTrace& rank : changed.ranks) rank.scales[1].scale *= 2;
  EXPECT_THAT(
      CheckSkips(changed),
      StatusIs(absl::StatusCode::kDataLoss,
               HasSubstr("the loss scale goes from 65536 to 65536, must "
                         "be 32768")));
  changed = *right;
  changed.ranks[1].scales[1].scale *= 2;
  EXPECT_THAT(CheckSkips(changed),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("after step 0 ranks 0 and 1 hold the loss "
                                 "scales")));
}

}  // namespace
}  // namespace lockstep::conformance
