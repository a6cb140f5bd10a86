// Checks networks without SyncBatchNorm on 2, 3 and 4 ranks. Their step is that
// of ranks whose batch norm normalises each rank's own share. It is not one
// rank's step on the global batch. The step with SyncBatchNorm is not that of
// such ranks.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

std::string NameOfRun(const testing::TestParamInfo<NetworkRun>& info) {
  return info.param.name();
}

// Returns the seed of a batch in which no derivative is in doubt in any share
// of NetworkDeals: rounding changes the sign of no ReLU input and the place of
// no maximum. The test asserts this.
uint32_t LocalBatchSeed(const std::string& name) {
  if (name == "resnet18d2l") return 2;
  if (name == "lenetbn") return 3;
  if (name == "resnet18") return 4;
  if (name == "resnet34") return 25;
  EXPECT_EQ(name, "resnet50") << "no seed is known for " << name;
  return 73;
}

// Returns the networks with batch norm. The chapter's ResNet-18 is a quarter as
// wide in every run: no batch is known that suits its full width.
const std::vector<const TestedNetwork*>& LocalNetworks() {
  static const auto& all = *new std::vector<const TestedNetwork*>([] {
    std::vector<const TestedNetwork*> networks;
    for (const TestedNetwork* tested : AllTestedNetworks()) {
      if (tested->network().Count<BatchNormOp>() == 0) continue;
      if (tested->is_winograd()) continue;  // Has the same batch norm.
      const uint32_t seed = LocalBatchSeed(tested->name());
      const std::string spec =
          tested == &TestedResNet() ? "resnet18_d2l:width=16" : tested->spec();
      networks.push_back(new TestedNetwork(spec, tested->input(), {seed}));
    }
    return networks;
  }());
  return all;
}

// Returns runs of one step. In later steps, ranks with local batch norm have
// different running statistics.
std::vector<NetworkRun> LocalRuns() {
  std::vector<NetworkRun> runs;
  for (const TestedNetwork* tested : LocalNetworks()) {
    for (const auto& [even, uneven, empty] : NetworkDeals()) {
      for (const std::vector<int64_t>& deal : {even, uneven, empty}) {
        runs.push_back(
            {.deal = deal, .steps = 1, .sync_bn = false, .tested = tested});
      }
    }
  }
  return runs;
}

auto Rejects(const std::string& what) {
  return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
}

class LocalBatchNormTest : public testing::TestWithParam<NetworkRun> {};

// Every batch norm of these networks has at least two values per channel in a
// share of one sample. No share is therefore refused.
TEST_P(LocalBatchNormTest, StepIsThatOfRanksThatNormaliseTheirShares) {
  const NetworkRun& run = GetParam();
  ClaimRecorder recorder(
      {"local_batch_norm", "threads", run.world_size(), "float32"});
  auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  const StepInput in = InputOf(run, *trace, 0, BatchStatistics::kLocal);
  EXPECT_GT(Clearance(in), kNetworkClearance);
  EXPECT_LT(WidestTolerance(in), 1);
  const auto right = CheckNetwork(run, *trace, BatchStatistics::kLocal);
  for (const auto& [check, status] : right.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  RecordProperty("furthest", absl::StrCat(right.furthest));
  recorder.Measure(right.furthest / kNetworkSpread);
  // The control: one rank's running statistics replace another's.
  trace->ranks[1][1].running = trace->ranks[0][1].running;
  auto verdicts = CheckNetwork(run, *trace, BatchStatistics::kLocal).checks;
  const bool is_idle = run.deal[0] == 0;
  EXPECT_THAT(verdicts["Buffers"],
              Rejects(is_idle ? "it is what it was before the step"
                              : "are those of rank 0's share"));
  verdicts.erase("Buffers");
  for (const auto& [check, status] : verdicts) {
    EXPECT_THAT(status, IsOk()) << check;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalBatchNormTest,
                         testing::ValuesIn(LocalRuns()), NameOfRun);

// Images of 32 pixels leave one pixel in the last stage. A share of one sample
// then has one value per channel, which has no variance. The global batch has
// eight values.
TEST(LocalBatchNormOfOneValueTest, IsRefusedByItsName) {
  const TestedNetwork tested("resnet18:width=8", {3, 32, 32, 10}, {1});
  NetworkRun run = {.deal = {7, 1},
                    .steps = 1,
                    .sync_bn = false,
                    .timeout = absl::Seconds(3),
                    .tested = &tested};
  NetworkTrace trace;
  const auto statuses = RunNetworkRanks(run, Mutation(), trace);
  ASSERT_EQ(statuses.size(), 2);
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("one value per channel"));
  run.sync_bn = true;
  EXPECT_THAT(RunNetwork(run, Mutation()), IsOk());
}

class MistakenStatisticsTest : public testing::TestWithParam<NetworkRun> {};

TEST_P(MistakenStatisticsTest, LocalIsNotOneRanks) {
  const NetworkRun& run = GetParam();
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  auto verdicts = CheckNetwork(run, *trace).checks;
  EXPECT_THAT(verdicts["RanksAgree"],
              Rejects("disagree on the running statistics: "));
  for (const char* check : {"Buffers", "Gradients"}) {
    EXPECT_THAT(verdicts[check],
                Rejects("those of each rank's own batch: local batch norm?"));
  }
  EXPECT_THAT(verdicts["Loss"], Rejects("the losses add up to"));
  for (const char* check : {"SameStart", "Updates", "Counts"}) {
    EXPECT_THAT(verdicts[check], IsOk()) << check;
  }
}

TEST_P(MistakenStatisticsTest, SynchronisedIsNotLocal) {
  NetworkRun run = GetParam();
  run.sync_bn = true;
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  auto verdicts = CheckNetwork(run, *trace, BatchStatistics::kLocal).checks;
  for (const char* check : {"Buffers", "Gradients"}) {
    EXPECT_THAT(verdicts[check],
                Rejects("those of the global batch: SyncBatchNorm?"));
  }
  EXPECT_THAT(verdicts["Loss"], Rejects("the losses add up to"));
  for (const char* check : {"SameStart", "RanksAgree", "Updates", "Counts"}) {
    EXPECT_THAT(verdicts[check], IsOk()) << check;
  }
}

// Returns the runs with even shares on 2 and 4 ranks.
std::vector<NetworkRun> MistakenRuns() {
  std::vector<NetworkRun> runs = LocalRuns();
  std::erase_if(runs, [](const NetworkRun& run) {
    return run.deal != NetworkDeals()[0].even &&
           run.deal != NetworkDeals()[2].even;
  });
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Ranks, MistakenStatisticsTest,
                         testing::ValuesIn(MistakenRuns()), NameOfRun);

}  // namespace
}  // namespace lockstep::conformance
