// ResNet-18 with SyncBatchNorm on 2 and 4 ranks takes one rank's steps on the
// global batch, however it is dealt; with local batch norm it does not.
//
// The reference is float64 at the run's own parameters (network_checks.h); what
// float32 may differ by is measured on one rank and its shadows. That takes of
// a step that no ReLU's input is zero but for rounding: one order of additions
// would then let a gradient through where another does not. The fixtures are
// such that none is, which is asserted: every input is kClearance times as far
// from zero as float32 errs in it.
#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/network/one_rank_path.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kClearance = 4;

const OneRankPath& OneRank() {
  static const OneRankPath& path = *[] {
    auto path = TakeOneRankPath(kNetworkSteps);
    EXPECT_THAT(path, IsOk());
    return path.ok() ? new OneRankPath(*std::move(path)) : new OneRankPath;
  }();
  return path;
}

TEST(NetworkToleranceTest, NoReluIsInDoubtAndNoGradientNearZero) {
  const OneRankPath& path = OneRank();
  ASSERT_EQ(path.rounding.size(), kNetworkSteps);
  const auto& specs = ResNetParameterSpecs();
  for (int step = 0; step < kNetworkSteps; ++step) {
    const double clearance =
        Clearance(path.trace.first.parameters[step],
                  path.trace.ranks[0][step].running, NetworkStepBatch(step));
    EXPECT_GT(clearance, kClearance) << "step " << step;
    RecordProperty(absl::StrCat("clearance_", step), absl::StrCat(clearance));
    const auto norms = TensorNorms(specs, path.steps[step].gradient);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (HasZeroGradient(specs[i])) {
        EXPECT_LT(norms[i], 1e-14) << specs[i].name;
      } else {
        EXPECT_GT(norms[i], 1e-4) << specs[i].name;
      }
    }
  }
}

// Synchronised or not: a rank alone has no other's batch to miss.
TEST(NetworkToleranceTest, OneRankPasses) {
  for (const bool sync_bn : {true, false}) {
    const NetworkRun run = {.deal = {kNetworkBatchSize},
                            .steps = kNetworkSteps,
                            .sync_bn = sync_bn};
    const auto trace = RunNetwork(run, NetworkMutation());
    ASSERT_THAT(trace, IsOk());
    const NetworkVerdicts verdicts =
        CheckNetwork(run, OneRank().rounding, *trace);
    for (const auto& [check, status] : verdicts.checks) {
      EXPECT_THAT(status, IsOk()) << check << ", sync_bn " << sync_bn;
    }
    RecordProperty(sync_bn ? "furthest" : "furthest_of_local",
                   absl::StrCat(verdicts.furthest));
    RecordProperty("widest", absl::StrCat(verdicts.widest));
  }
}

// "P4Deal0x3x5x0".
std::string RunName(const testing::TestParamInfo<NetworkRun>& info) {
  return absl::StrCat("P", info.param.world_size(), "Deal",
                      absl::StrJoin(info.param.deal, "x"));
}

class NetworkEquivalenceTest : public testing::TestWithParam<NetworkRun> {};

TEST_P(NetworkEquivalenceTest, StepsAreOneRanks) {
  ClaimRecorder recorder(
      {"resnet_steps", "threads", GetParam().world_size(), "float32"});
  const auto trace = RunNetwork(GetParam(), NetworkMutation());
  ASSERT_THAT(trace, IsOk());
  const NetworkVerdicts verdicts =
      CheckNetwork(GetParam(), OneRank().rounding, *trace);
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  RecordProperty("furthest", absl::StrCat(verdicts.furthest));
  recorder.Measure(verdicts.furthest / kNetworkSpread);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, NetworkEquivalenceTest,
    testing::Values(NetworkRun{.deal = {4, 4}}, NetworkRun{.deal = {7, 1}},
                    NetworkRun{.deal = {0, 8}},
                    NetworkRun{.deal = {2, 2, 2, 2}, .bucket_bytes = 1},
                    NetworkRun{.deal = {1, 4, 1, 2}, .steps = kNetworkSteps},
                    NetworkRun{.deal = {3, 0, 5, 0}}),
    RunName);

TEST(NetworkProcessesTest, HaveTheBitsOfThreads) {
  const NetworkRun run = {.deal = {3, 5}};
  ClaimRecorder recorder(
      {"resnet_bits", "processes", run.world_size(), "float32"});
  // Before there are threads.
  const auto processes = FingerprintsOfProcesses(run);
  ASSERT_THAT(processes, IsOk());
  const auto threads = RunNetwork(run, NetworkMutation());
  ASSERT_THAT(threads, IsOk());
  for (int rank = 0; rank < run.world_size(); ++rank) {
    EXPECT_EQ((*processes)[rank], Fingerprint(threads->ranks[rank])) << rank;
  }
  recorder.AddExact();
  const auto other = RunNetwork({.deal = {5, 3}}, NetworkMutation());
  ASSERT_THAT(other, IsOk());
  EXPECT_NE((*processes)[0], Fingerprint(other->ranks[0]));
}

class LocalBatchNormTest : public testing::TestWithParam<NetworkRun> {};

TEST_P(LocalBatchNormTest, IsRejectedByItsName) {
  const auto trace = RunNetwork(GetParam(), NetworkMutation());
  ASSERT_THAT(trace, IsOk());
  auto verdicts = CheckNetwork(GetParam(), OneRank().rounding, *trace).checks;
  const auto rejects = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  EXPECT_THAT(verdicts["RanksAgree"],
              rejects("disagree on the running statistics: 1.running_mean"));
  EXPECT_THAT(verdicts["Buffers"],
              rejects("those of the rank's own batch: local batch norm?"));
  EXPECT_THAT(verdicts["Gradients"],
              rejects("those of each rank's own batch: local batch norm?"));
  EXPECT_THAT(verdicts["Loss"], rejects("the losses add up to"));
  for (const char* check : {"SameStart", "Updates", "Counts"}) {
    EXPECT_THAT(verdicts[check], IsOk()) << check;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, LocalBatchNormTest,
    testing::Values(NetworkRun{.deal = {4, 4}, .steps = 1, .sync_bn = false},
                    NetworkRun{
                        .deal = {2, 2, 2, 2}, .steps = 1, .sync_bn = false}),
    RunName);

}  // namespace

// How a failing test shows its parameter.
void PrintTo(const NetworkRun& run, std::ostream* out) {
  *out << "deal " << absl::StrJoin(run.deal, ",");
}

}  // namespace lockstep
