// Every key, with the report's value.
#include "benchmarks/syncbn_json.h"

#include <string>
#include <vector>

#include "benchmarks/syncbn_example.h"
#include "benchmarks/syncbn_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Keys(const nlohmann::ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

TEST(SyncBnJsonTest, SaysWhereItIsFrom) {
  const nlohmann::ordered_json json = SyncBnJson(ExampleSyncBnReport());
  EXPECT_THAT(
      Keys(json),
      ElementsAre("report", "schema_version", "created", "command", "commit",
                  "machine", "gpu", "shared_gpu", "settings", "peer",
                  "not_available", "layers", "network", "bars", "no_bar"));
  EXPECT_EQ(json["report"], "lockstep.syncbn");
  EXPECT_EQ(json["schema_version"], 2);
  EXPECT_EQ(json["machine"]["cpu"], "Example 9000");
  EXPECT_TRUE(json["gpu"].is_null());
  EXPECT_EQ(json["shared_gpu"], false);
  EXPECT_EQ(json["settings"]["backend"], "processes");
  EXPECT_EQ(json["settings"]["world_size"], 2);
  EXPECT_EQ(json["settings"]["layout"], "nhwc");
  EXPECT_EQ(json["peer"], "PyTorch 2.1 (python3); it is an example");
  EXPECT_EQ(json["not_available"][0], "local BN: no such type");
}

TEST(SyncBnJsonTest, SaysThatRanksShareAGpu) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.gpu = true;
  report.gpu = "Example GPU";
  report.shared_gpu = true;
  const nlohmann::ordered_json json = SyncBnJson(report);
  EXPECT_EQ(json["gpu"], "Example GPU");
  EXPECT_EQ(json["shared_gpu"], true);
  EXPECT_EQ(json["settings"]["backend"], "nccl");
  EXPECT_TRUE(json["bars"].empty());
  EXPECT_EQ(json["no_bar"], "it is for the CPU");
}

TEST(SyncBnJsonTest, HasEveryLayersNumbers) {
  const SyncBnReport report = ExampleSyncBnReport();
  const nlohmann::ordered_json json = SyncBnJson(report);
  ASSERT_EQ(json["layers"].size(), 2u);
  const auto& layer = json["layers"][0];
  EXPECT_THAT(
      Keys(layer),
      ElementsAre("set", "shape", "n", "h", "w", "c", "rounds", "tensor_bytes",
                  "forward_message_bytes", "backward_message_bytes",
                  "copy_bandwidth", "wrong", "passes", "kernels"));
  EXPECT_EQ(layer["shape"], "28x28x64");
  EXPECT_THAT(Keys(layer["passes"]),
              ElementsAre("forward", "backward", "both"));
  const auto& pass = layer["passes"]["both"];
  EXPECT_THAT(Keys(pass),
              ElementsAre("local", "own_local", "faster_local", "sync", "torch",
                          "message", "ratio", "beyond", "torch_ratio", "split",
                          "timers"));
  const PassReport& want = report.layers[0].passes[2];
  EXPECT_EQ(pass["sync"]["median"], want.sync.median);
  EXPECT_EQ(pass["local"]["p75"], want.local->p75);
  EXPECT_EQ(pass["own_local"]["median"], want.own_local.median);
  EXPECT_EQ(pass["faster_local"], "own_local");
  EXPECT_EQ(layer["passes"]["forward"]["faster_local"], "local");
  EXPECT_EQ(pass["ratio"], want.Ratio());
  EXPECT_EQ(pass["beyond"], want.Beyond());
  EXPECT_EQ(pass["split"]["wait"], want.split.wait);
  ASSERT_EQ(layer["kernels"].size(), 5u);
  EXPECT_EQ(layer["kernels"][0]["kernel"], "moments");
  EXPECT_EQ(layer["kernels"][0]["bound_fraction"],
            *report.layers[0].kernels[0].Fraction());
  EXPECT_TRUE(layer["kernels"][1]["bound_seconds"].is_null());
}

TEST(SyncBnJsonTest, HasNullForWhatIsMissing) {
  SyncBnReport report = ExampleSyncBnReport();
  report.commit.clear();
  report.peer.clear();
  report.network.reset();
  const nlohmann::ordered_json json = SyncBnJson(report);
  for (const char* key : {"commit", "peer", "network"}) {
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  for (const char* key : {"local", "torch", "torch_ratio"}) {
    EXPECT_TRUE(json["layers"][1]["passes"]["forward"][key].is_null()) << key;
  }
}

TEST(SyncBnJsonTest, HasTheNetworkAndTheBars) {
  const SyncBnReport report = ExampleSyncBnReport();
  const nlohmann::ordered_json json = SyncBnJson(report);
  EXPECT_THAT(
      Keys(json["network"]),
      ElementsAre("model", "per_rank_batch", "rounds", "local", "sync", "share",
                  "split", "timers", "messages", "message_bytes", "wrong"));
  EXPECT_EQ(json["network"]["share"], report.network->Share());
  ASSERT_EQ(json["bars"].size(), 1u);
  EXPECT_EQ(json["bars"][0]["shape"], "28x28x64");
  EXPECT_EQ(json["bars"][0]["at_most"], 1.15);
  EXPECT_EQ(json["bars"][0]["against"], "own_local");
  EXPECT_EQ(json["bars"][0]["met"], true);
  EXPECT_TRUE(json["no_bar"].is_null());
}

TEST(FormatSyncBnJsonTest, SurvivesTextThatIsNotUtf8) {
  SyncBnReport report = ExampleSyncBnReport();
  report.command = "\xff";
  const auto json = nlohmann::json::parse(FormatSyncBnJson(report), nullptr,
                                          /*allow_exceptions=*/false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["command"], "\uFFFD");
}

}  // namespace
}  // namespace lockstep
