// The keys that README.md lists.
#include "benchmarks/sampler_json.h"

#include <string>

#include "benchmarks/sampler_example.h"
#include "benchmarks/sampler_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::json;

TEST(SamplerJsonTest, HoldsEveryNumber) {
  const Json json = Json::parse(FormatSamplerJson(ExampleReport()));
  EXPECT_EQ(json["report"], "lockstep.sampler");
  EXPECT_EQ(json["schema_version"], kSamplerSchemaVersion);
  EXPECT_EQ(json["machine"]["cores"], 2);
  EXPECT_EQ(json["settings"]["world_size"], 8);
  EXPECT_EQ(json["peer"], "PyTorch 2.6.0 (python3)");
  EXPECT_TRUE(json["not_available"].is_null());
  ASSERT_EQ(json["results"].size(), 1u);
  EXPECT_EQ(json["results"][0]["dataset_size"], 1'281'167);
  EXPECT_EQ(json["results"][0]["rounds"], 3);
  const Json& torch = json["results"][0]["draws"][0];
  EXPECT_EQ(torch["subject"], "torch");
  EXPECT_EQ(torch["count"], 160'146);
  EXPECT_EQ(torch["crc32"], 4'000'000'000u);
  EXPECT_EQ(torch["median"], 0.004);
  EXPECT_EQ(torch["min"], 0.003);
  EXPECT_EQ(torch["max"], 0.005);
  EXPECT_EQ(torch["seconds"], Json({0.005, 0.003, 0.004}));
  EXPECT_DOUBLE_EQ(torch["indices_per_second"].get<double>(), 160'146 / 0.004);
  EXPECT_DOUBLE_EQ(torch["ratio_table"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(torch["ratio_torch"].get<double>(), 25);
  EXPECT_EQ(json["keyed"]["dataset_size"], 1'000'000'000'000);
  EXPECT_EQ(json["keyed"]["indices_per_second"]["median"], 80e6);
  EXPECT_EQ(json["keyed"]["seconds_per_index"], 50e-9);
  EXPECT_EQ(json["keyed"]["memory_bytes"], 256 << 10);
}

TEST(SamplerJsonTest, SaysWhichBarsAreMet) {
  const Json json = Json::parse(FormatSamplerJson(ExampleReport()));
  ASSERT_EQ(json["bars"].size(), 4u);
  EXPECT_EQ(json["bars"][0]["at_least"], 20);
  EXPECT_EQ(json["bars"][0]["met"], true);
  EXPECT_TRUE(json["bars"][1]["value"].is_null());
  EXPECT_TRUE(json["bars"][1]["met"].is_null());
  EXPECT_EQ(json["bars"][3]["at_most"], 1);
  EXPECT_EQ(json["bars"][3]["value"], 0.25);
}

TEST(SamplerJsonTest, IsNullWhereThereIsNothing) {
  SamplerReport report = ExampleReport();
  report.commit.clear();
  report.peer.clear();
  report.missing = "no \"python\" \xff";
  report.keyed.reset();
  const Json json = Json::parse(FormatSamplerJson(report));
  EXPECT_TRUE(json["commit"].is_null());
  EXPECT_TRUE(json["peer"].is_null());
  EXPECT_TRUE(json["keyed"].is_null());
  EXPECT_TRUE(json["not_available"].is_string());
  const Json& table = json["results"][0]["draws"][3];
  for (const char* key :
       {"count", "crc32", "indices_per_second", "ratio_table", "ratio_torch"}) {
    EXPECT_TRUE(table[key].is_null()) << key;
  }
}

}  // namespace
}  // namespace lockstep
