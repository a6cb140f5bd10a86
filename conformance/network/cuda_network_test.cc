// Checks networks whose steps a GPU computes: on the stand-ins, which need no
// GPU, or with CUDA and cuDNN on a GPU. They pass the checks of
// network_equivalence_test.cc, with the same bounds: the GPU's steps are those
// of the float64 reference, on one rank and on several. Steps with activations
// in 16 bits are held to the same reference, within the effect of their storage
// (StoredActivations).
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gtest/gtest.h"
#include "models/cuda/convolution.h"
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
template <ConvolutionPrecision kPrecision = ConvolutionPrecision::kFloat32>
std::unique_ptr<Model> OnGpu(const Network& network) {
  absl::StatusOr<std::unique_ptr<Model>> model =
      CreateCudaModel(network, /*device=*/0, {.precision = kPrecision});
  EXPECT_THAT(model, IsOk());
  return *std::move(model);
}

class CudaNetworkTest : public GpuTest,
                        public testing::WithParamInterface<NetworkRun> {};

TEST_P(CudaNetworkTest, StepsAreOneRanks) {
  const NetworkRun& run = GetParam();
  const bool is_narrow = run.type != DataType::kFloat32;
  ClaimRecorder recorder({is_narrow ? "gpu_narrow_steps" : "gpu_steps",
                          kBackend, run.world_size(), Name(run.type)});
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  recorder.Measure(verdicts.furthest / SpreadOf(run.type));
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
                      .model = OnGpu<>,
                      .tested = tested});
    }
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaNetworkTest, testing::ValuesIn(Runs()),
                         [](const auto& info) { return info.param.name(); });

// Returns a step of the networks with every kind of operation on 1 to 4 ranks,
// with activations in a 16-bit type.
template <ConvolutionPrecision kPrecision>
std::vector<NetworkRun> NarrowRuns() {
  std::vector<NetworkRun> runs;
  for (const TestedNetwork* tested : AllTestedNetworks()) {
    const std::string name = tested->name();
    if (name != "lenet" && name != "lenetbn" && name != "resnet18d2l" &&
        name != "vit") {
      continue;
    }
    for (const std::vector<int64_t>& deal : std::vector<std::vector<int64_t>>{
             {kNetworkBatchSize}, {7, 1}, {3, 5, 0}, {1, 4, 1, 2}}) {
      runs.push_back({.deal = deal,
                      .steps = 1,
                      .model = OnGpu<kPrecision>,
                      .type = TypeOf(kPrecision),
                      .tested = tested});
    }
  }
  // The names of runs have the deal, which tells these from the other ViT's.
  for (const std::vector<int64_t>& deal :
       std::vector<std::vector<int64_t>>{{5, 3}, {0, 6, 2}}) {
    runs.push_back({.deal = deal,
                    .steps = 1,
                    .model = OnGpu<kPrecision>,
                    .type = TypeOf(kPrecision),
                    .tested = &TestedFusedVit()});
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(
    BFloat16, CudaNetworkTest,
    testing::ValuesIn(NarrowRuns<ConvolutionPrecision::kBFloat16>()),
    [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(
    Float16, CudaNetworkTest,
    testing::ValuesIn(NarrowRuns<ConvolutionPrecision::kFloat16>()),
    [](const auto& info) { return info.param.name(); });

class CudaMutantTest : public GpuTest {};

// The control of the checks: one rank's gradients of one layer are not summed.
TEST_F(CudaMutantTest, GradientsThatAreNotSummedAreRejected) {
  NetworkRun run = {.deal = {3, 5}, .steps = 1, .model = OnGpu<>};
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    if (type == DataType::kBFloat16) {
      run.model = OnGpu<ConvolutionPrecision::kBFloat16>;
    }
    run.type = type;
    const auto trace = RunNetwork(
        run, LeaveGradients(*run.tested, [&](const ParameterSpec& spec) {
          return spec.name == run.tested->specs()[0].name;
        }));
    ASSERT_THAT(trace, IsOk());
    const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
    EXPECT_FALSE(verdicts.checks.at("Gradients").ok()) << Name(type);
  }
}

// The GPU's kernels meet the other ranks' messages: batch norm of its own batch
// only is rejected, with activations in 16 bits too.
TEST_F(CudaMutantTest, LocalBatchNormIsRejected) {
  NetworkRun run = {.deal = {3, 5}, .steps = 1, .model = OnGpu<>};
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    if (type == DataType::kBFloat16) {
      run.model = OnGpu<ConvolutionPrecision::kBFloat16>;
    }
    run.type = type;
    run.sync_bn = false;
    const auto trace = RunNetwork(run, Mutation());
    ASSERT_THAT(trace, IsOk());
    run.sync_bn = true;
    const NetworkVerdicts verdicts = CheckNetwork(run, *trace);
    EXPECT_FALSE(verdicts.checks.at("Buffers").ok()) << Name(type);
  }
}

}  // namespace
}  // namespace lockstep::conformance
