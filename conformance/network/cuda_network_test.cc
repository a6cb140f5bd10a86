// Checks networks whose steps a GPU computes: on the stand-ins, which need no
// GPU, or with CUDA and cuDNN on a GPU. They pass the checks of
// network_equivalence_test.cc, with the same bounds: the GPU's steps are those
// of the float64 reference, on one rank and on several.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gtest/gtest.h"
#include "models/cuda/cuda_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep::conformance {
namespace {

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr const char* kBackend = "threads, gpu stand-in";
#else
constexpr const char* kBackend = "threads, gpu";
#endif

// All ranks share the GPU; each has a stream of its own.
std::unique_ptr<Model> OnGpu(const Network& network) {
  absl::StatusOr<std::unique_ptr<Model>> model =
      CreateCudaModel(network, /*device=*/0);
  EXPECT_THAT(model, IsOk());
  return *std::move(model);
}

class CudaNetworkTest : public GpuTest,
                        public testing::WithParamInterface<NetworkRun> {};

TEST_P(CudaNetworkTest, StepsAreOneRanks) {
  const NetworkRun& run = GetParam();
  ClaimRecorder recorder({"gpu_steps", kBackend, run.world_size(), "float32"});
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  recorder.Measure(verdicts.furthest / kNetworkSpread);
}

// Returns runs of every network on 1 to 4 ranks, with even, uneven and empty
// shares, and with a bucket for each gradient.
std::vector<NetworkRun> Runs() {
  std::vector<NetworkRun> runs;
  for (const TestedNetwork* tested : AllTestedNetworks()) {
    if (tested->is_winograd()) continue;  // It rounds otherwise.
    std::vector<std::vector<int64_t>> deals = {{kNetworkBatchSize}};
    for (const auto& [even, uneven, empty] : NetworkDeals()) {
      deals.insert(deals.end(), {even, uneven, empty});
    }
    for (const std::vector<int64_t>& deal : deals) {
      runs.push_back({.deal = deal,
                      .steps = std::min(2, tested->steps()),
                      .bucket_bytes = deal.size() == 4 ? 1 : 0,
                      .model = OnGpu,
                      .tested = tested});
    }
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaNetworkTest, testing::ValuesIn(Runs()),
                         [](const auto& info) { return info.param.name(); });

class CudaMutantTest : public GpuTest {};

// The control of the checks: one rank's gradients of one layer are not summed.
TEST_F(CudaMutantTest, GradientsThatAreNotSummedAreRejected) {
  const NetworkRun run = {.deal = {3, 5}, .steps = 2, .model = OnGpu};
  const auto trace = RunNetwork(
      run, LeaveGradients(*run.tested, [&](const ParameterSpec& spec) {
        return spec.name == run.tested->specs()[0].name;
      }));
  ASSERT_THAT(trace, IsOk());
  const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
  EXPECT_TRUE(std::ranges::any_of(
      verdicts.checks, [](const auto& check) { return !check.second.ok(); }));
}

// The GPU's kernels meet the other ranks' messages: batch norm of its own batch
// only is rejected.
TEST_F(CudaMutantTest, LocalBatchNormIsRejected) {
  NetworkRun run = {.deal = {3, 5}, .steps = 1, .model = OnGpu};
  run.sync_bn = false;
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  run.sync_bn = true;
  const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
  EXPECT_TRUE(std::ranges::any_of(
      verdicts.checks, [](const auto& check) { return !check.second.ok(); }));
}

}  // namespace
}  // namespace lockstep::conformance
