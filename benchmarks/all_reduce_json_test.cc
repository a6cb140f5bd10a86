// Every key, its unit and its value.
#include "benchmarks/all_reduce_json.h"

#include <string>
#include <vector>

#include "benchmarks/all_reduce_example.h"
#include "benchmarks/all_reduce_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::ordered_json;

std::vector<std::string> Keys(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

TEST(AllReduceJsonTest, HasTheKeysOfNcclTestsFirst) {
  const Json json = AllReduceJson(ExampleAllReduceReport());
  ASSERT_EQ(json["results"].size(), 4u);
  EXPECT_THAT(Keys(json["results"][0]),
              ElementsAre("size", "count", "type", "redop", "root", "time",
                          "alg_bw", "bus_bw", "nwrong", "in_place", "subject",
                          "backend", "algorithm", "buffers", "p50", "p95",
                          "p99", "mean", "min", "max", "samples", "rounds",
                          "copy_bw", "bound", "bound_fraction", "ratios"));
  EXPECT_THAT(Keys(json["results"][0]["in_place"]),
              ElementsAre("time", "alg_bw", "bus_bw", "nwrong"));
}

TEST(AllReduceJsonTest, IsInMicrosecondsAndGigabytes) {
  const Json json = AllReduceJson(ExampleAllReduceReport());
  const Json& ours = json["results"][2];
  EXPECT_EQ(ours["size"], 64 << 20);
  EXPECT_EQ(ours["count"], 16 << 20);
  EXPECT_EQ(ours["type"], "float");
  EXPECT_EQ(ours["redop"], "sum");
  EXPECT_EQ(ours["root"], -1);
  EXPECT_EQ(ours["subject"], "processes auto group");
  EXPECT_EQ(ours["backend"], "processes");
  EXPECT_EQ(ours["algorithm"], "auto");
  EXPECT_EQ(ours["buffers"], "group");
  EXPECT_DOUBLE_EQ(ours["time"].get<double>(), 8388.608);
  EXPECT_DOUBLE_EQ(ours["p99"].get<double>(), 2 * 8388.608);
  EXPECT_DOUBLE_EQ(ours["alg_bw"].get<double>(), 8);
  EXPECT_DOUBLE_EQ(ours["bus_bw"].get<double>(), 8);
  EXPECT_DOUBLE_EQ(ours["copy_bw"].get<double>(), 40);
  EXPECT_DOUBLE_EQ(ours["bound_fraction"].get<double>(), 0.8);
  EXPECT_DOUBLE_EQ(ours["ratios"]["mpi"].get<double>(), 8);
  EXPECT_EQ(ours["nwrong"], 0);
  EXPECT_EQ(ours["in_place"]["nwrong"], 0);
}

TEST(AllReduceJsonTest, SaysWhatIsNotKnown) {
  AllReduceReport report = ExampleAllReduceReport();
  report.commit.clear();
  const Json json = AllReduceJson(report);
  EXPECT_TRUE(json["commit"].is_null());
  EXPECT_EQ(json["not_available"]["gloo"], "it was not built");
  const Json& small = json["results"][0];
  EXPECT_TRUE(small["bound"].is_null());
  EXPECT_TRUE(small["bound_fraction"].is_null());
  const Json& peer = json["results"][1];
  EXPECT_EQ(peer["subject"], "Open MPI");
  EXPECT_TRUE(peer["backend"].is_null());
  EXPECT_EQ(peer["nwrong"], 3);
}

TEST(AllReduceJsonTest, NamesThePlacement) {
  AllReduceReport report = ExampleAllReduceReport();
  report.settings.in_place = false;
  const Json json = AllReduceJson(report);
  EXPECT_TRUE(json["results"][0].contains("out_of_place"));
  EXPECT_FALSE(json["results"][0].contains("in_place"));
}

TEST(AllReduceJsonTest, SaysHowItWasMade) {
  const Json json = AllReduceJson(ExampleAllReduceReport());
  EXPECT_THAT(
      Keys(json),
      ElementsAre("report", "schema_version", "created", "command", "commit",
                  "machine", "settings", "notes", "not_available", "results"));
  EXPECT_EQ(json["report"], "lockstep.allreduce");
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["settings"]["world_size"], 2);
  EXPECT_EQ(json["settings"]["dtype"], "float32");
  EXPECT_EQ(json["machine"]["cores"], 2);
  EXPECT_EQ(json["notes"][0], "Something to know.");
}

TEST(FormatAllReduceJsonTest, CanBeReadBack) {
  const std::string text = FormatAllReduceJson(ExampleAllReduceReport());
  EXPECT_EQ(Json::parse(text), AllReduceJson(ExampleAllReduceReport()));
}

}  // namespace
}  // namespace lockstep
