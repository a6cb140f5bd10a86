// Tests the document, on made-up numbers.
#include "benchmarks/scaling/document.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/scaling/results.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/device.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using report::Chart;
using report::Value;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kCores = 2;

// Returns three rounds. The median round has the given parts of a step, in
// milliseconds; the other rounds are 1% slower and 1% faster.
MeasuredConfiguration ThreeRounds(Configuration configuration, StepParts ms) {
  MeasuredConfiguration measured = {.configuration = configuration};
  for (const double factor : {1.01, 1.0, 0.99}) {
    RoundSample round;
    const double scale = 1e-3 * factor;
    round.parts = ms;
    for (double StepParts::*const part : kStepParts) round.parts.*part *= scale;
    const double seconds = scale * ms.Sum();
    round.images_per_second =
        static_cast<double>(configuration.global_batch) / seconds;
    round.step_seconds = {0.9 * seconds, 1.1 * seconds};
    round.imbalance = configuration.world_size == 1 ? 0 : 0.0125;
    round.kept_waiting = configuration.world_size > kCores ? 0.5 : 0.01;
    round.loss = 2.25;
    round.convolution = "winograd";
    measured.rounds.push_back(round);
  }
  return measured;
}

ModeReport Mode(ScalingMode mode, std::vector<MeasuredConfiguration> measured) {
  ModeReport report = DeriveMode(mode, std::move(measured), kCores);
  report.limits = DescribeLimits(report, kCores);
  return report;
}

// Returns a report of strong and weak scaling with batches of 256, at 1, 2 and
// 4 ranks on two cores, with 3 rounds of 2 steps. A step takes 40 ms at 1 rank.
// At 2 ranks it takes 25 ms (strong) and 50 ms (weak).
ScalingReport ExampleReport() {
  ScalingReport report = {.settings = {.world_sizes = {1, 2, 4},
                                       .train_samples = 64'000,
                                       .rounds = 3,
                                       .steps = 2}};
  report.origin =
      ExampleOrigin("scaling --world_sizes=1,2,4 --rounds=3 --steps=2");
  const StepParts one = {.compute = 38, .data_wait = 1.5, .rest = 0.5};
  report.modes = {Mode(ScalingMode::kStrong,
                       {ThreeRounds({1, 256}, one),
                        ThreeRounds({2, 256}, {.compute = 22,
                                               .exposed_communication = 2,
                                               .data_wait = 0.75,
                                               .rest = 0.25}),
                        ThreeRounds({4, 256}, {.compute = 26,
                                               .exposed_communication = 12,
                                               .data_wait = 0.75,
                                               .rest = 1.25})}),
                  Mode(ScalingMode::kWeak,
                       {ThreeRounds({1, 256}, one),
                        ThreeRounds({2, 512}, {.compute = 44,
                                               .exposed_communication = 4,
                                               .data_wait = 1.5,
                                               .rest = 0.5}),
                        ThreeRounds({4, 1024}, {.compute = 78,
                                                .exposed_communication = 18,
                                                .data_wait = 3,
                                                .rest = 1})})};
  return report;
}

TEST(ScalingDocumentTest, SaysWhatWasRunAndEveryNumberExactly) {
  const ScalingReport report = ExampleReport();
  const report::Document document = ScalingDocument(report);
  const Value& data = document.data;
  EXPECT_EQ(document.name, "lockstep.scaling");
  EXPECT_EQ(document.schema_version, 1);
  EXPECT_EQ(document.origin.command, report.origin.command);
  EXPECT_THAT(data.keys(), ElementsAre("gpu", "settings", "modes"));
  EXPECT_EQ(data["settings"]["world_sizes"], Value(std::vector<int>{1, 2, 4}));
  EXPECT_TRUE(data["gpu"].is_null());
  EXPECT_EQ(data["settings"]["device"], "cpu");
  EXPECT_EQ(data["settings"]["backend"], "processes");
  EXPECT_EQ(data["settings"]["steps"], 2);
  ASSERT_EQ(data["modes"].size(), 2u);
  for (size_t m = 0; m < 2; ++m) {
    const ModeReport& mode = report.modes[m];
    EXPECT_EQ(data["modes"][m]["mode"], m == 0 ? "strong" : "weak");
    EXPECT_EQ(data["modes"][m]["backend"], "processes");
    EXPECT_EQ(data["modes"][m]["type"], "float32");
    EXPECT_EQ(data["modes"][m]["limits"], mode.limits);
    ASSERT_EQ(data["modes"][m]["configurations"].size(), 3u);
    for (size_t c = 0; c < 3; ++c) {
      const ConfigurationReport& at = mode.configurations[c];
      const Value& object = data["modes"][m]["configurations"][c];
      EXPECT_EQ(object["world_size"], at.world_size());
      EXPECT_EQ(object["global_batch"], at.global_batch());
      EXPECT_EQ(object["oversubscribed"], at.oversubscribed);
      EXPECT_EQ(object["shared_gpu"], false);
      EXPECT_EQ(object["convolution"], "winograd");
      EXPECT_EQ(object["images_per_second"]["median"], at.images_per_second);
      EXPECT_EQ(object["images_per_second"]["min"], at.slowest_round);
      EXPECT_EQ(object["images_per_second"]["max"], at.fastest_round);
      EXPECT_EQ(object["images_per_second"]["rounds"], 3);
      EXPECT_EQ(object["epoch_seconds"]["median"],
                64'000 / at.images_per_second);
      EXPECT_EQ(object["epoch_seconds"]["min"], 64'000 / at.fastest_round);
      EXPECT_EQ(object["epoch_seconds"]["max"], 64'000 / at.slowest_round);
      EXPECT_EQ(object["speedup"], at.speedup);
      EXPECT_EQ(object["efficiency"], at.efficiency);
      EXPECT_EQ(object["step_seconds"]["p50"], at.step_p50);
      EXPECT_EQ(object["step_seconds"]["p99"], at.step_p99);
      EXPECT_EQ(object["step_seconds"]["mean"], at.step_seconds());
      EXPECT_EQ(object["step_seconds"]["steps"], 6);
      const Value& parts = object["parts_seconds"];
      EXPECT_EQ(parts["compute"], at.parts.compute);
      EXPECT_EQ(parts["exposed_communication"], at.parts.exposed_communication);
      EXPECT_EQ(parts["data_wait"], at.parts.data_wait);
      EXPECT_EQ(parts["rest"], at.parts.rest);
      EXPECT_EQ(object["lost"]["compute"], at.lost.compute);
      EXPECT_EQ(object["imbalance"], at.imbalance);
      EXPECT_EQ(object["kept_waiting"], at.kept_waiting);
    }
  }
  // The JSON also has the samples of every round.
  const auto& rounds = report.modes[1].configurations[2].measured.rounds;
  const Value& objects = data["modes"][1]["configurations"][2]["rounds"];
  ASSERT_EQ(objects.size(), rounds.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_EQ(objects[i]["images_per_second"], rounds[i].images_per_second);
    EXPECT_EQ(objects[i]["step_seconds"], Value(rounds[i].step_seconds));
    EXPECT_EQ(objects[i]["parts_seconds"]["compute"], rounds[i].parts.compute);
    EXPECT_EQ(objects[i]["loss"], 2.25);
  }
}

constexpr char kGolden[] =
    R"(lenet on fashion_mnist, float32; ranks are processes, one thread each; 3 rounds of 2 timed steps
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
scaling --world_sizes=1,2,4 --rounds=3 --steps=2

Strong scaling: a step is 256 images in all
ranks images/s       from..to speed-up efficiency p50 ms p99 ms compute  comm data rest imbal
   1     6,400   6,337..6,465    1.00x     100.0%  36.36  44.44   95.0%  0.0% 3.8% 1.2%  0.0%
   2    10,240 10,139..10,343    1.60x      80.0%  22.73  27.78   88.0%  8.0% 3.0% 1.0%  1.2%
   4*    6,400   6,337..6,465    1.00x      25.0%  36.36  44.44   65.0% 30.0% 1.9% 3.1%  1.2%
* more ranks than cores (2): they take turns
An epoch of 64,000 images takes 10.0 s at 1 rank, 6.25 s at 2 ranks, 10.0 s at 4 ranks
At 2 ranks, strong scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a
step that is lost: 12% compute (a rank's 128 images take 58% of the time of 256 at 1 rank, not 50%:
3.00 ms more a step); 8% exposed communication (2.00 ms a step, of which up to 0.28 ms is waiting
for the slowest rank).

Weak scaling: a step is 256 images on each rank
ranks images/s       from..to speed-up efficiency p50 ms p99 ms compute  comm data rest imbal
   1     6,400   6,337..6,465    1.00x     100.0%  36.36  44.44   95.0%  0.0% 3.8% 1.2%  0.0%
   2    10,240 10,139..10,343    1.60x      80.0%  45.45  55.55   88.0%  8.0% 3.0% 1.0%  1.2%
   4*   10,240 10,139..10,343    1.60x      40.0%  90.90  111.1   78.0% 18.0% 3.0% 1.0%  1.2%
* more ranks than cores (2): they take turns
An epoch of 64,000 images takes 10.0 s at 1 rank, 6.25 s at 2 ranks, 6.25 s at 4 ranks
At 2 ranks, weak scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a step
that is lost: 12% compute (a rank's 256 images take 1.16 times as long as at 1 rank: 6.00 ms more a
step); 8% exposed communication (4.00 ms a step, of which up to 0.55 ms is waiting for the slowest
rank).

from..to: images/s of the slowest and the fastest round. speed-up, efficiency: images/s over
images/s at the smallest world size p; efficiency is speed-up x p / ranks. p50, p99: step times,
each on its slowest rank. compute, comm (exposed communication), data (data wait), rest: shares of a
step: forward, backward and update; waiting for summed gradients, or for a slower rank, after
backward; gathering the batch; and the time that none of these explains. imbal: how much longer the
slowest rank of a step computes than the mean. bars: goals for 2 processes in float32. The
efficiency in weak scaling, of lenet at 256 and resnet18_d2l at 32 images a rank, must be at least
97% and that of --peers=torch; in strong scaling, of lenet at 256 images, at least 95%. The control
is the same processes without communication, measured with --backend=processes,apart. If the control
is below a goal, the goal is 97% of the control.

bar                                     goal                                       measured
weak scaling of lenet, 2 ranks          at least 97 percent of ideal               80.0: NOT met
weak scaling of lenet over DDP's        at least 1 times DistributedDataParallel's not measured
strong scaling of lenet, 2 ranks        at least 95 percent of ideal               80.0: NOT met
weak scaling of resnet18_d2l, 2 ranks   at least 97 percent of ideal               not measured
weak scaling of resnet18_d2l over DDP's at least 1 times DistributedDataParallel's not measured
)";

TEST(ScalingDocumentTest, LooksLikeThis) {
  EXPECT_EQ(report::TerminalText(ScalingDocument(ExampleReport())), kGolden);
}

TEST(ScalingDocumentTest, FitsItsColumnsWithLargeNumbers) {
  ScalingReport report = ExampleReport();
  for (ModeReport& mode : report.modes) {
    for (ConfigurationReport& at : mode.configurations) {
      at.images_per_second = 1234567.8;
      at.slowest_round = 1234567.8;
      at.fastest_round = 1234567.8;
      at.speedup = 63.99;
      at.step_p50 = at.step_p99 = 1.2345;
      at.imbalance = 9.999;
    }
  }
  ExpectNarrow(report::TerminalText(ScalingDocument(report)));
}

TEST(ScalingDocumentTest, SaysWhichImagesAreLeftOut) {
  ScalingReport report = ExampleReport();
  const auto remarks = ScalingDocument(report).remarks;
  EXPECT_THAT(remarks, Not(Contains(HasSubstr("left out"))));
  report.settings.skipped = "1 bad image is left out: a.jpg: damaged JPEG";
  EXPECT_THAT(ScalingDocument(report).remarks,
              Contains(report.settings.skipped));
}

TEST(ScalingDocumentTest, SaysWhatItIsRelativeToWithoutOneRank) {
  ScalingReport report = ExampleReport();
  EXPECT_THAT(report::TerminalText(ScalingDocument(report)),
              Not(HasSubstr("relative to")));
  auto& strong = report.modes[0].configurations;
  strong.erase(strong.begin());
  EXPECT_THAT(report::TerminalText(ScalingDocument(report)),
              HasSubstr("relative to 2 ranks, the smallest world size"));
}

TEST(ScalingDocumentTest, DrawsEachMode) {
  const report::Document document = ScalingDocument(ExampleReport());
  ASSERT_THAT(document.sections, SizeIs(2));
  for (const report::Section& section : document.sections) {
    ASSERT_THAT(section.charts, SizeIs(4));
    for (const Chart& chart : section.charts) {
      EXPECT_THAT(chart.places, ElementsAre("1", "2", "4"));
      for (const report::Series& series : chart.series) {
        EXPECT_THAT(series.values, SizeIs(3)) << series.name;
      }
    }
  }
  // In weak scaling at 2 ranks the ideal is 12,800 images/s, in 40 ms.
  const std::vector<Chart>& weak = document.sections[1].charts;
  EXPECT_DOUBLE_EQ(*weak[0].series[1].values[1], 12800);
  EXPECT_DOUBLE_EQ(*weak[1].series[0].values[1], 0.8);
  EXPECT_DOUBLE_EQ(*weak[2].series[1].values[1], 4);
  EXPECT_DOUBLE_EQ(*weak[2].series[4].values[1], 40);
  // An epoch takes 6.25 s, and from 1% less to 1% more by round. The ideal is 5
  // s.
  EXPECT_DOUBLE_EQ(*weak[3].series[0].values[1], 6.25);
  EXPECT_DOUBLE_EQ(weak[3].series[0].ranges[1].first, 6.25 * 0.99);
  EXPECT_DOUBLE_EQ(weak[3].series[0].ranges[1].second, 6.25 * 1.01);
  EXPECT_DOUBLE_EQ(*weak[3].series[1].values[1], 5);
}

// The table has the rows of each backend under its name. The chart has a line
// for each backend and one ideal line. A note says the ratio of the backends'
// images/s.
TEST(ScalingDocumentTest, ShowsBackendsSideBySide) {
  ScalingReport report = ExampleReport();
  report.settings.backends = {RankKind::kProcesses, RankKind::kThreads};
  report.modes.pop_back();
  ModeReport threads = report.modes[0];
  threads.variant.ranks = RankKind::kThreads;
  for (ConfigurationReport& at : threads.configurations) {
    if (at.world_size() == 1) continue;
    const double factors[] = {0.5, 0.8, 0.75};
    for (size_t i = 0; i < 3; ++i) {
      at.measured.rounds[i].images_per_second *= factors[i];
    }
    at.images_per_second *= 0.75;
  }
  threads.limits = CompareBackends(threads, report.modes[0]);
  // The ratio is the median of each round's ratio. The ratio of the medians
  // differs.
  EXPECT_EQ(threads.limits,
            "Its images/s at 2 ranks are 0.75 times those of processes (0.50 "
            "to 0.80 by round).");
  report.modes.push_back(threads);
  const report::Document document = ScalingDocument(report);
  ASSERT_THAT(document.sections, SizeIs(1));
  const report::Section& section = document.sections[0];
  ASSERT_THAT(section.table.rows, SizeIs(8));
  ASSERT_THAT(section.table.rows[4], SizeIs(1));
  EXPECT_EQ(section.table.rows[4][0].text, "threads");
  EXPECT_THAT(section.notes, Contains(StartsWith("threads: Its images/s ")));
  const Chart& throughput = section.charts[0];
  ASSERT_THAT(throughput.series, SizeIs(3));
  EXPECT_EQ(throughput.series[0].name, "processes");
  EXPECT_EQ(throughput.series[1].name, "threads");
  EXPECT_DOUBLE_EQ(*throughput.series[1].values[1], 7680);
  EXPECT_EQ(throughput.series[2].kind, report::Series::Kind::kIdeal);
  EXPECT_THAT(section.charts[2].places,
              ElementsAre("1 processes", "2 processes", "4 processes",
                          "1 threads", "2 threads", "4 threads"));
  EXPECT_EQ(document.data["settings"]["backend"], "processes,threads");
  EXPECT_EQ(document.data["modes"][1]["backend"], "threads");
  ExpectNarrow(report::TerminalText(document));
}

// Returns the report of weak scaling on GPUs. At 4 ranks, ranks share a GPU.
ScalingReport GpuReport() {
  ScalingReport report = ExampleReport();
  report.settings.device = ComputeDevice::kCuda;
  report.settings.modes = {ScalingMode::kWeak};
  std::vector<MeasuredConfiguration> all;
  for (const ConfigurationReport& at : report.modes[1].configurations) {
    MeasuredConfiguration measured = at.measured;
    measured.configuration.device = ComputeDevice::kCuda;
    for (RoundSample& round : measured.rounds) {
      round.gpus = {"Example GPU"};
      round.shared_gpu = at.world_size() == 4;
      if (round.shared_gpu) round.hosts_sum = "NCCL does not support it";
      round.gpu_memory_bytes = int64_t{at.world_size()} << 30;
      // Two rounds together are long enough, but at 1 rank they are not.
      round.gpu_seconds = at.world_size() == 1 ? 0.1 : 0.75;
      round.gpu_joules = 300 * round.gpu_seconds;
    }
    all.push_back(measured);
  }
  report.modes = {Mode(ScalingMode::kWeak, std::move(all))};
  return report;
}

TEST(ScalingDocumentTest, SaysWhichGpusComputeAndHasNoBarsOfTheCpu) {
  const report::Document document = ScalingDocument(GpuReport());
  EXPECT_EQ(document.data["gpu"], "Example GPU");
  EXPECT_EQ(document.data["settings"]["device"], "cuda");
  const Value& configurations = document.data["modes"][0]["configurations"];
  for (const size_t i : {0, 1, 2}) {
    EXPECT_EQ(configurations[i]["shared_gpu"], i == 2);
  }
  EXPECT_THAT(document.bars, SizeIs(0));
  const std::string text = report::TerminalText(document);
  EXPECT_THAT(text, HasSubstr("processes, one GPU each (Example GPU); "));
  EXPECT_THAT(text, HasSubstr("10.0 s at 1 GPU, 6.25 s at 2 GPUs, 6.25 s at 4 "
                              "ranks"));
  EXPECT_THAT(text, HasSubstr("   4*"));
  EXPECT_THAT(text, HasSubstr("* ranks share a GPU: times say nothing"));
  EXPECT_THAT(text, HasSubstr("At 4 ranks the hosts sum the gradients: NCCL "
                              "does not support it"));
  EXPECT_THAT(document.sections[0].notes,
              Contains("Memory in use on a GPU, and its mean power: 1.00 GiB, "
                       "power not known at 1 GPU; 2.00 GiB, 300 W at 2 GPUs; "
                       "4.00 GiB, 300 W at 4 ranks"));
  EXPECT_TRUE(configurations[0]["gpu_watts"].is_null());
  EXPECT_EQ(configurations[1]["gpu_watts"], 300.0);
  EXPECT_EQ(configurations[1]["gpu_memory_bytes"], int64_t{2} << 30);
  EXPECT_THAT(text, Not(HasSubstr("bars: ")));
  EXPECT_THAT(text, Not(HasSubstr("than cores")));
  EXPECT_THAT(document.method, Contains(HasSubstr("events on each rank's")));
  ExpectNarrow(text);
}

TEST(ScalingDocumentTest, SaysThatMemoryAndPowerAreNotKnown) {
  ScalingReport report = GpuReport();
  for (ConfigurationReport& at : report.modes[0].configurations) {
    at.gpu_memory_bytes = 0;
    at.gpu_watts = 0;
  }
  const report::Document document = ScalingDocument(report);
  EXPECT_THAT(report::TerminalText(document),
              HasSubstr("Memory and power are not known: no management"));
  EXPECT_TRUE(document.data["modes"][0]["configurations"][0]["gpu_memory_bytes"]
                  .is_null());
}

TEST(ScalingDocumentTest, SaysThatSharedGpusKeepItFromScaling) {
  ScalingReport report = GpuReport();
  auto& configurations = report.modes[0].configurations;
  configurations.erase(configurations.begin() + 1);
  EXPECT_THAT(DescribeLimits(report.modes[0], kCores),
              HasSubstr("Its ranks share GPUs, which alone keeps it from"));
}

// The parts of the steps of DistributedDataParallel's ranks are not known.
TEST(ScalingDocumentTest, ShowsNoPartsOfDistributedDataParallel) {
  ScalingReport report = ExampleReport();
  report.settings.backends = {RankKind::kProcesses, RankKind::kDdp};
  report.modes.erase(report.modes.begin());
  ModeReport ddp = report.modes[0];
  ddp.variant.ranks = RankKind::kDdp;
  for (ConfigurationReport& at : ddp.configurations) {
    at.measured.configuration.ranks = RankKind::kDdp;
    if (at.world_size() == 2) at.efficiency = 0.7;
  }
  ddp.limits = DescribeLimits(ddp, kCores);
  EXPECT_THAT(ddp.limits, EndsWith("70% of ideal."));
  report.modes.push_back(ddp);
  const report::Document document = ScalingDocument(report);
  const report::Section& section = document.sections[0];
  EXPECT_EQ(section.table.rows[1][7].text, "95.0%");
  EXPECT_EQ(section.table.rows[5][7].text, "-");
  EXPECT_THAT(section.charts[2].places, SizeIs(3));
}

}  // namespace
}  // namespace lockstep::benchmarks
