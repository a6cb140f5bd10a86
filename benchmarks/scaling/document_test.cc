// The report's forms, of a made-up report.
#include "report/document.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/harness/example_origin.h"
#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/scaling/round.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using report::Chart;
using report::Value;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kCores = 2;

// Three rounds whose median has the given parts of a step, in milliseconds; the
// others are 1% slower and faster.
MeasuredConfiguration Measured(Configuration configuration, StepParts ms) {
  MeasuredConfiguration measured;
  measured.configuration = configuration;
  for (const double factor : {1.01, 1.0, 0.99}) {
    RoundSample round;
    const double scale = 1e-3 * factor;
    round.parts = {.compute = scale * ms.compute,
                   .exposed_communication = scale * ms.exposed_communication,
                   .data_wait = scale * ms.data_wait,
                   .rest = scale * ms.rest};
    const double seconds = scale * ms.Sum();
    round.images_per_second =
        static_cast<double>(configuration.global_batch) / seconds;
    round.step_seconds = {0.9 * seconds, 1.1 * seconds};
    round.imbalance = configuration.world_size == 1 ? 0 : 0.0125;
    round.kept_waiting = configuration.world_size > kCores ? 0.5 : 0.01;
    round.loss = 2.25;
    measured.rounds.push_back(round);
  }
  return measured;
}

ModeReport Mode(ScalingMode mode, std::vector<MeasuredConfiguration> measured) {
  ModeReport report = DeriveMode(mode, std::move(measured), kCores);
  report.limits = DescribeLimits(report, kCores);
  return report;
}

// Strong and weak scaling of batches of 256 at 1, 2 and 4 ranks on two cores, 3
// rounds of 2 steps. At 1 rank a step takes 40 ms; at 2, 25 ms (strong) and 50
// ms (weak).
ScalingReport ExampleReport() {
  ScalingReport report;
  report.settings.world_sizes = {1, 2, 4};
  report.settings.rounds = 3;
  report.settings.steps = 2;
  report.origin =
      ExampleOrigin("scaling --world_sizes=1,2,4 --rounds=3 --steps=2");
  const StepParts one = {.compute = 38, .data_wait = 1.5, .rest = 0.5};
  report.modes = {Mode(ScalingMode::kStrong,
                       {Measured({1, 256}, one),
                        Measured({2, 256}, {.compute = 22,
                                            .exposed_communication = 2,
                                            .data_wait = 0.75,
                                            .rest = 0.25}),
                        Measured({4, 256}, {.compute = 26,
                                            .exposed_communication = 12,
                                            .data_wait = 0.75,
                                            .rest = 1.25})}),
                  Mode(ScalingMode::kWeak,
                       {Measured({1, 256}, one),
                        Measured({2, 512}, {.compute = 44,
                                            .exposed_communication = 4,
                                            .data_wait = 1.5,
                                            .rest = 0.5}),
                        Measured({4, 1024}, {.compute = 78,
                                             .exposed_communication = 18,
                                             .data_wait = 3,
                                             .rest = 1})})};
  return report;
}

TEST(ScalingDocumentTest, SaysWhatWasRunWhereAndHow) {
  const ScalingReport report = ExampleReport();
  const report::Document document = ScalingDocument(report);
  const Value& data = document.data;
  EXPECT_EQ(document.name, "lockstep.scaling");
  EXPECT_EQ(document.schema_version, 1);
  EXPECT_EQ(document.origin.command, report.origin.command);
  EXPECT_THAT(data.keys(), ElementsAre("settings", "modes"));
  EXPECT_EQ(data["settings"]["world_sizes"], Value(std::vector<int>{1, 2, 4}));
  EXPECT_EQ(data["settings"]["backend"], "processes");
  EXPECT_EQ(data["settings"]["steps"], 2);
}

TEST(ScalingDocumentTest, RoundTripsEveryNumberExactly) {
  const ScalingReport report = ExampleReport();
  const Value data = ScalingDocument(report).data;
  ASSERT_EQ(data["modes"].size(), 2u);
  for (size_t m = 0; m < 2; ++m) {
    const ModeReport& mode = report.modes[m];
    EXPECT_EQ(data["modes"][m]["mode"], m == 0 ? "strong" : "weak");
    EXPECT_EQ(data["modes"][m]["limits"], mode.limits);
    ASSERT_EQ(data["modes"][m]["configurations"].size(), 3u);
    for (size_t c = 0; c < 3; ++c) {
      const ConfigurationReport& at = mode.configurations[c];
      const Value& object = data["modes"][m]["configurations"][c];
      EXPECT_EQ(object["world_size"], at.world_size());
      EXPECT_EQ(object["global_batch"], at.global_batch());
      EXPECT_EQ(object["oversubscribed"], at.oversubscribed);
      EXPECT_EQ(object["images_per_second"]["median"], at.images_per_second);
      EXPECT_EQ(object["images_per_second"]["min"], at.slowest_round);
      EXPECT_EQ(object["images_per_second"]["max"], at.fastest_round);
      EXPECT_EQ(object["images_per_second"]["rounds"], 3);
      EXPECT_EQ(object["speedup"], at.speedup);
      EXPECT_EQ(object["efficiency"], at.efficiency);
      EXPECT_EQ(object["step_seconds"]["p50"], at.step_p50);
      EXPECT_EQ(object["step_seconds"]["p99"], at.step_p99);
      EXPECT_EQ(object["step_seconds"]["mean"], at.step_seconds());
      EXPECT_EQ(object["step_seconds"]["steps"], 6);
      EXPECT_EQ(object["parts_seconds"]["compute"], at.parts.compute);
      EXPECT_EQ(object["parts_seconds"]["exposed_communication"],
                at.parts.exposed_communication);
      EXPECT_EQ(object["parts_seconds"]["data_wait"], at.parts.data_wait);
      EXPECT_EQ(object["parts_seconds"]["rest"], at.parts.rest);
      EXPECT_EQ(object["lost"]["compute"], at.lost.compute);
      EXPECT_EQ(object["imbalance"], at.imbalance);
      EXPECT_EQ(object["kept_waiting"], at.kept_waiting);
    }
  }
}

TEST(ScalingDocumentTest, KeepsTheSamplesOfEveryRound) {
  const ScalingReport report = ExampleReport();
  const Value data = ScalingDocument(report).data;
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
    R"(lenet on fashion_mnist; ranks are processes, one thread each; 3 rounds of 2 timed steps
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
scaling --world_sizes=1,2,4 --rounds=3 --steps=2

Strong scaling: a step is 256 images in all
ranks images/s       from..to speed-up efficiency p50 ms p99 ms compute  comm data rest imbal
   1     6,400   6,337..6,465    1.00x     100.0%  36.36  44.44   95.0%  0.0% 3.8% 1.2%  0.0%
   2    10,240 10,139..10,343    1.60x      80.0%  22.73  27.78   88.0%  8.0% 3.0% 1.0%  1.2%
   4*    6,400   6,337..6,465    1.00x      25.0%  36.36  44.44   65.0% 30.0% 1.9% 3.1%  1.2%
* more ranks than cores (2): they take turns
At 2 ranks, strong scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a
step that is lost: 12% compute (a rank's 128 images take 58% of the time of 256 at 1 rank, not 50%);
8% exposed communication (2.00 ms a step).

Weak scaling: a step is 256 images on each rank
ranks images/s       from..to speed-up efficiency p50 ms p99 ms compute  comm data rest imbal
   1     6,400   6,337..6,465    1.00x     100.0%  36.36  44.44   95.0%  0.0% 3.8% 1.2%  0.0%
   2    10,240 10,139..10,343    1.60x      80.0%  45.45  55.55   88.0%  8.0% 3.0% 1.0%  1.2%
   4*   10,240 10,139..10,343    1.60x      40.0%  90.90  111.1   78.0% 18.0% 3.0% 1.0%  1.2%
* more ranks than cores (2): they take turns
At 2 ranks, weak scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a step
that is lost: 12% compute (a rank's 256 images take 1.16 times as long as at 1 rank); 8% exposed
communication (4.00 ms a step).

from..to: images/s of the slowest and the fastest round. speed-up, efficiency: images/s over that of
the smallest world size p; that x p / ranks. p50, p99: step times, each as its slowest rank saw it.
compute, comm (exposed communication), data (data wait), rest: shares of a step: forward, backward
and update; waiting for summed gradients, or a slower rank, after backward; gathering the batch;
what none of these explains. imbal: how much longer the slowest rank of a step computes than the
mean.
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
  for (const absl::string_view line :
       absl::StrSplit(report::TerminalText(ScalingDocument(report)), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
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
    ASSERT_THAT(section.charts, SizeIs(3));
    for (const Chart& chart : section.charts) {
      EXPECT_THAT(chart.places, ElementsAre("1", "2", "4"));
      for (const report::Series& series : chart.series) {
        EXPECT_THAT(series.values, SizeIs(3)) << series.name;
      }
    }
  }
  // Weak scaling at 2 ranks: 12,800 images/s would be ideal, in 40 ms.
  const std::vector<Chart>& weak = document.sections[1].charts;
  EXPECT_DOUBLE_EQ(*weak[0].series[1].values[1], 12800);
  EXPECT_DOUBLE_EQ(*weak[1].series[0].values[1], 0.8);
  EXPECT_DOUBLE_EQ(*weak[2].series[1].values[1], 4);
  EXPECT_DOUBLE_EQ(*weak[2].series[4].values[1], 40);
}

}  // namespace
}  // namespace lockstep::benchmarks
