// The JSON against the report that it was made from.
#include "benchmarks/scaling_json.h"

#include <string>

#include "benchmarks/scaling_example.h"
#include "benchmarks/scaling_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
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

}  // namespace
}  // namespace lockstep
