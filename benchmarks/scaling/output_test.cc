// The JSON against the report that it was made from.
#include <string>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/scaling/example.h"
#include "benchmarks/scaling/html.h"
#include "benchmarks/scaling/json.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/scaling/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/page_checks.h"

namespace lockstep::benchmarks {
namespace {

using Json = nlohmann::ordered_json;

Json Parse(const ScalingReport& report) {
  return Json::parse(FormatScalingJson(report), nullptr,
                     /*allow_exceptions=*/false);
}

TEST(ScalingJsonTest, SaysWhatWasRunWhereAndHow) {
  const ScalingReport report = ExampleReport();
  const Json json = Parse(report);
  EXPECT_EQ(json["report"], "lockstep.scaling");
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["created"], report.created);
  EXPECT_EQ(json["command"], report.command);
  EXPECT_EQ(json["commit"], report.commit);
  EXPECT_EQ(json["machine"]["cpu"], "Example 9000");
  EXPECT_EQ(json["machine"]["cores"], 2);
  EXPECT_EQ(json["machine"]["memory_bytes"], int64_t{16} << 30);
  EXPECT_EQ(json["settings"]["world_sizes"], Json({1, 2, 4}));
  EXPECT_EQ(json["settings"]["backend"], "processes");
  EXPECT_EQ(json["settings"]["steps"], 2);
}

TEST(ScalingJsonTest, RoundTripsEveryNumberExactly) {
  const ScalingReport report = ExampleReport();
  const Json json = Parse(report);
  ASSERT_EQ(json["modes"].size(), 2u);
  for (size_t m = 0; m < 2; ++m) {
    const ModeReport& mode = report.modes[m];
    EXPECT_EQ(json["modes"][m]["mode"], m == 0 ? "strong" : "weak");
    EXPECT_EQ(json["modes"][m]["limits"], mode.limits);
    ASSERT_EQ(json["modes"][m]["configurations"].size(), 3u);
    for (size_t c = 0; c < 3; ++c) {
      const ConfigurationReport& at = mode.configurations[c];
      const Json& object = json["modes"][m]["configurations"][c];
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

TEST(ScalingJsonTest, KeepsTheSamplesOfEveryRound) {
  const ScalingReport report = ExampleReport();
  const Json json = Parse(report);
  const auto& rounds = report.modes[1].configurations[2].measured.rounds;
  const Json& objects = json["modes"][1]["configurations"][2]["rounds"];
  ASSERT_EQ(objects.size(), rounds.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_EQ(objects[i]["images_per_second"], rounds[i].images_per_second);
    EXPECT_EQ(objects[i]["step_seconds"], Json(rounds[i].step_seconds));
    EXPECT_EQ(objects[i]["parts_seconds"]["compute"], rounds[i].parts.compute);
    EXPECT_EQ(objects[i]["loss"], 2.25);
  }
}

TEST(ScalingJsonTest, SaysNullForACommitThatIsNotKnown) {
  ScalingReport report = ExampleReport();
  report.commit.clear();
  EXPECT_TRUE(Parse(report)["commit"].is_null());
}

TEST(ScalingJsonTest, SurvivesBytesThatAreNotText) {
  ScalingReport report = ExampleReport();
  report.command = "\xff\"";
  EXPECT_EQ(Parse(report)["command"], "\uFFFD\"");
}

// The table, whole.

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGolden[] =
    R"(lenet on fashion_mnist; ranks are processes, one thread each; 3 rounds of 2 timed steps
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
scaling --world_sizes=1,2,4 --rounds=3 --steps=2

Strong scaling: a step is 256 images in all
 ranks images/s     from .. to  speed-up efficiency p50 ms p99 ms compute  comm  data  rest  imbal
    1     6,400   6,337..6,465      1.00x     100.0%  36.36  44.44   95.0%  0.0%  3.8%  1.2%   0.0%
    2    10,240  10,139..10,343     1.60x      80.0%  22.73  27.78   88.0%  8.0%  3.0%  1.0%   1.2%
    4*    6,400   6,337..6,465      1.00x      25.0%  36.36  44.44   65.0% 30.0%  1.9%  3.1%   1.2%
  * more ranks than cores (2): they take turns
At 2 ranks, strong scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a
step that is lost: 12% compute (a rank's 128 images take 58% of the time of 256 at 1 rank, not 50%);
8% exposed communication (2.00 ms a step).

Weak scaling: a step is 256 images on each rank
 ranks images/s     from .. to  speed-up efficiency p50 ms p99 ms compute  comm  data  rest  imbal
    1     6,400   6,337..6,465      1.00x     100.0%  36.36  44.44   95.0%  0.0%  3.8%  1.2%   0.0%
    2    10,240  10,139..10,343     1.60x      80.0%  45.45  55.55   88.0%  8.0%  3.0%  1.0%   1.2%
    4*   10,240  10,139..10,343     1.60x      40.0%  90.90  111.1   78.0% 18.0%  3.0%  1.0%   1.2%
  * more ranks than cores (2): they take turns
At 2 ranks, weak scaling reaches 1.60 times the images/s of 1 rank: 80% of ideal. The 20% of a step
that is lost: 12% compute (a rank's 256 images take 1.16 times as long as at 1 rank); 8% exposed
communication (4.00 ms a step).

from .. to: images/s of the slowest and the fastest round. compute, comm (exposed communication),
data (data wait), rest: shares of a step. imbal: how much longer the slowest rank of a step computes
than the mean.
)";

TEST(FormatScalingTableTest, LooksLikeThis) {
  EXPECT_EQ(FormatScalingTable(ExampleReport()), kGolden);
}

TEST(FormatScalingTableTest, FitsItsColumnsWithLargeNumbers) {
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
       absl::StrSplit(FormatScalingTable(report), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(FormatScalingTableTest, SaysWhatItIsRelativeToWithoutOneRank) {
  ScalingReport report = ExampleReport();
  EXPECT_THAT(FormatScalingTable(report), Not(HasSubstr("relative to")));
  auto& strong = report.modes[0].configurations;
  strong.erase(strong.begin());
  EXPECT_THAT(FormatScalingTable(report),
              HasSubstr("relative to 2 ranks, the smallest world size"));
}

TEST(FormatScalingTableTest, LeavesOutACommitThatIsNotKnown) {
  ScalingReport report = ExampleReport();
  EXPECT_THAT(FormatScalingTable(report), HasSubstr("commit 0123456789abcdef"));
  report.commit.clear();
  EXPECT_THAT(FormatScalingTable(report), Not(HasSubstr("commit")));
}

// The page: nothing outside it, and nothing in it that its strings could break.

TEST(ScalingHtmlTest, IsAWholePageThatLoadsNothing) {
  const std::string page = FormatScalingHtml(ExampleReport());
  ExpectWholePage(page);
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep scaling report</h1>"));
  EXPECT_THAT(page, HasSubstr("or read scaling.json."));
}

TEST(ScalingHtmlTest, HoldsTheReport) {
  const ScalingReport report = ExampleReport();
  EXPECT_EQ(EmbeddedReport(FormatScalingHtml(report)), ScalingJson(report));
}

TEST(ScalingHtmlTest, KeepsHostileStringsInsideTheirElement) {
  ScalingReport report = ExampleReport();
  const std::string plain = FormatScalingHtml(report);
  report.command =
      "</script><script>alert(1)</script><!-- <b> \" ' \\ \n \u2028 /*SCRIPT*/";
  report.machine.cpu = "Example\xff";  // Not UTF-8.
  const std::string page = FormatScalingHtml(report);
  ExpectSameElements(page, plain);
  const nlohmann::ordered_json embedded = EmbeddedReport(page);
  EXPECT_EQ(embedded["command"], report.command);
  EXPECT_EQ(embedded["machine"]["cpu"], "Example\uFFFD");
}

}  // namespace
}  // namespace lockstep::benchmarks
