// Tests the report's forms and bars, on numbers that are easy to check by hand.
#include "benchmarks/syncbn/document.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/syncbn/example_turns.h"
#include "benchmarks/syncbn/results.h"
#include "benchmarks/syncbn/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

ABSL_DECLARE_FLAG(bool, require_bars);

namespace lockstep::benchmarks {
namespace {

using report::Value;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The faster of the two local batch norms counts: our own, of 2.75 ms, then
// oneDNN's.
TEST(SyncBnBarsTest, AreOfResNet18sShapesAtTwoRanks) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(WhyNoBar(report), "");
  for (const auto& [local, against, beyond] :
       {std::tuple(3e-3, "times our own local BN", 1.0),
        {2e-3, "times oneDNN's local BN", 2.75 / 2}}) {
    report.layers[0].passes[2].local->median = local;
    const report::Document document = SyncBnDocument(report);
    ASSERT_THAT(document.bars, SizeIs(2));
    const report::Bar& bar = document.bars[0];
    EXPECT_EQ(bar.what, "beyond of 28x28x64");
    EXPECT_EQ(bar.unit, against);
    EXPECT_THAT(bar.value, Optional(DoubleEq(beyond)));
    EXPECT_EQ(bar.Met(), beyond == 1);
  }
}

std::string LastBar(const SyncBnReport& report) {
  return SyncBnDocument(report).bars.back().Text();
}

TEST(SyncBnBarsTest, HoldAStepAgainstLocalBatchNorm) {
  const std::string goal =
      "step of resnet18_d2l, at most 2 percent over our own local BN: ";
  SyncBnReport report = ExampleSyncBnReport();
  for (const auto& [ratio, outcome] : {std::pair(1.0193, "1.9: met"),
                                       {0.9969, "-0.3: met"},
                                       {1.0213, "2.1: NOT met"}}) {
    report.network->ratio.median = ratio;
    EXPECT_EQ(LastBar(report), goal + outcome);
  }
  // The step that the settings ask for failed, or was interrupted.
  report.network.reset();
  EXPECT_EQ(LastBar(report), goal + "not measured");
}

// The step's bar is stated without layers too.
TEST(SyncBnBarsTest, ARunThatRequiresThemFailsForAStepThatIsTooLong) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers.clear();
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_require_bars, true);
  const ReportOutput output = {};
  EXPECT_THAT(output.Write(SyncBnDocument(report)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "step of resnet18_d2l, at most 2 percent over our own "
                       "local BN: 25.0: NOT met"));
  report.network->ratio.median = 1.01;
  EXPECT_THAT(output.Write(SyncBnDocument(report)), IsOk());
}

TEST(SyncBnBarsTest, AreOfTheStepOfResNet18Alone) {
  using Change = void (*)(SyncBnSettings&);
  for (const Change change : std::initializer_list<Change>{
           [](SyncBnSettings& s) { s.network.spec = "resnet18"; },
           [](SyncBnSettings& s) { s.network.spec = ""; },
           [](SyncBnSettings& s) { s.network.input.width = 32; },
           [](SyncBnSettings& s) { s.network.input.channels = 3; },
           [](SyncBnSettings& s) { s.per_rank_batch = kNetworkBatch + 1; }}) {
    SyncBnReport report = ExampleSyncBnReport();
    change(report.settings);
    EXPECT_FALSE(StepHasBar(report.settings));
    EXPECT_THAT(SyncBnDocument(report).bars, SizeIs(1));
  }
}

TEST(SyncBnBarsTest, SaysWhyThereIsNone) {
  using Change = void (*)(SyncBnReport&);
  const std::pair<const char*, Change> cases[] = {
      {"it is for ranks with a GPU each",
       [](SyncBnReport& r) { r.settings.gpu = r.shared_gpu = true; }},
      {"it is for 2 ranks", [](SyncBnReport& r) { r.settings.world_size = 3; }},
      {"it is for float32",
       [](SyncBnReport& r) { r.settings.type = DataType::kBFloat16; }},
      {"it is for ranks with a core each, and 2 ranks share 1",
       [](SyncBnReport& r) { r.origin.machine.cores = 1; }},
      {"it is for resnet18_d2l's shapes, and for its step on 16 images of "
       "1x28x28",
       [](SyncBnReport& r) {
         r.layers.erase(r.layers.begin());
         r.settings.network.spec = "resnet34";
       }}};
  for (const auto& [why, change] : cases) {
    SyncBnReport report = ExampleSyncBnReport();
    change(report);
    EXPECT_THAT(SyncBnDocument(report).bars, IsEmpty());
    EXPECT_EQ(WhyNoBar(report), why);
  }
}

// The report's forms.

std::string Text(const SyncBnReport& report) {
  return report::TerminalText(SyncBnDocument(report));
}

TEST(SyncBnDocumentTest, SaysWhereItIsFromAndHasEveryNumber) {
  const SyncBnReport report = ExampleSyncBnReport();
  const report::Document document = SyncBnDocument(report);
  const Value& data = document.data;
  EXPECT_THAT(data.keys(),
              ElementsAre("gpu", "shared_gpu", "sm_clock_mhz", "settings",
                          "peer", "not_available", "layers", "network"));
  EXPECT_TRUE(data["sm_clock_mhz"].is_null());
  EXPECT_EQ(document.name, "lockstep.syncbn");
  EXPECT_EQ(document.schema_version, 3);
  EXPECT_TRUE(data["gpu"].is_null());
  EXPECT_EQ(data["shared_gpu"], false);
  EXPECT_EQ(data["settings"]["backend"], "processes");
  EXPECT_EQ(data["settings"]["world_size"], 2);
  EXPECT_EQ(data["settings"]["layout"], "nhwc");
  EXPECT_EQ(data["peer"], "PyTorch 2.1 (python3); it is an example");
  EXPECT_EQ(data["not_available"][0], "local BN: no such type");
  ASSERT_EQ(data["layers"].size(), 2u);
  const Value& layer = data["layers"][0];
  EXPECT_THAT(layer.keys(),
              ElementsAre("set", "shape", "n", "h", "w", "c", "rounds",
                          "tensor_bytes", "forward_message_bytes",
                          "backward_message_bytes", "copy_bandwidth",
                          "host_seconds", "wrong", "passes", "kernels"));
  EXPECT_EQ(layer["shape"], "28x28x64");
  EXPECT_THAT(layer["passes"].keys(),
              ElementsAre("forward", "backward", "both"));
  const Value& pass = layer["passes"]["both"];
  EXPECT_THAT(pass.keys(), ElementsAre("local", "own_local", "faster_local",
                                       "sync", "torch", "torch_sync", "message",
                                       "ratio", "beyond", "torch_ratio",
                                       "torch_sync_ratio", "split", "timers"));
  const PassReport& want = report.layers[0].passes[2];
  EXPECT_EQ(pass["sync"]["median"], want.sync.median);
  EXPECT_EQ(pass["local"]["p75"], want.local->p75);
  EXPECT_EQ(pass["own_local"]["median"], want.own_local.median);
  EXPECT_EQ(pass["faster_local"], "own_local");
  EXPECT_EQ(layer["passes"]["forward"]["faster_local"], "local");
  EXPECT_EQ(pass["beyond"], want.Beyond());
  EXPECT_EQ(pass["split"]["wait"], want.split.wait);
  ASSERT_EQ(layer["kernels"].size(), 5u);
  EXPECT_EQ(layer["kernels"][0]["kernel"], "moments");
  EXPECT_EQ(layer["kernels"][0]["bound_fraction"],
            *report.layers[0].kernels[0].Fraction());
  EXPECT_TRUE(layer["kernels"][1]["bound_seconds"].is_null());
  EXPECT_THAT(
      data["network"].keys(),
      ElementsAre("model", "image", "classes", "batch_norms_alone",
                  "per_rank_batch", "rounds", "local", "sync", "ratio", "share",
                  "split", "timers", "messages", "message_bytes", "wrong"));
  EXPECT_EQ(data["network"]["model"], "resnet18_d2l");
  EXPECT_EQ(data["network"]["image"][0], 1);
  EXPECT_EQ(data["network"]["image"][2], 28);
  EXPECT_EQ(data["network"]["classes"], 10);
  EXPECT_EQ(data["network"]["ratio"]["median"], report.network->ratio.median);
  EXPECT_EQ(data["network"]["share"], report.network->Share());
  EXPECT_NEAR(report.network->timers, 0.3, 1e-12);
  EXPECT_EQ(document.no_bars, "");
}

TEST(SyncBnDocumentTest, NamesTheNetworkThatWasTrained) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.network = {
      .spec = "resnet50:width=8",
      .input = {.channels = 3, .height = 33, .width = 65, .classes = 7}};
  EXPECT_THAT(
      Text(report),
      AllOf(HasSubstr("\nresnet50:width=8: a step on 16 images of 33x65 "
                      "on each of 2 ranks;"),
            Not(HasSubstr("resnet18_d2l: a step"))));
  const Value network = SyncBnDocument(report).data["network"];
  EXPECT_EQ(network["model"], "resnet50:width=8");
  ASSERT_EQ(network["image"].size(), 3u);
  EXPECT_EQ(network["image"][0], 3);
  EXPECT_EQ(network["image"][1], 33);
  EXPECT_EQ(network["image"][2], 65);
  EXPECT_EQ(network["classes"], 7);
}

TEST(SyncBnDocumentTest, HasNullForWhatIsMissing) {
  SyncBnReport report = ExampleSyncBnReport();
  report.peer.clear();
  report.network.reset();
  const Value data = SyncBnDocument(report).data;
  for (const char* key : {"peer", "network"}) {
    EXPECT_TRUE(data[key].is_null()) << key;
  }
  for (const char* key : {"local", "torch", "torch_ratio", "torch_sync"}) {
    EXPECT_TRUE(data["layers"][1]["passes"]["forward"][key].is_null()) << key;
  }
}

constexpr char kGolden[] =
    R"(batch norm, 2 ranks: processes, one thread each; float32 nhwc
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
syncbn --shapes=resnet18_d2l,detection

resnet18_d2l: images of 28x28, 32 on each rank; times in ms
shape       pass  local    own SyncBN     p25..p75 ratio message beyond kern comm wait rest  torch
28x28x64    fwd   1.000  1.250  1.250 0.625..1.250  1.25  0.2500   1.00  61%  20%  16%   3%  2.000
            bwd   2.000  1.500  2.000 1.000..2.000  1.33  0.2500   1.17  82%  13%   5%   0%  3.000
            both  3.000  2.750  3.250 1.625..3.250  1.18  0.5000   1.00  74%  16%   9%   1%  5.000
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 51.4 GB/s

detection: a feature pyramid over images of 800x1216, 2 on each rank; times in ms
shape       pass  local    own SyncBN     p25..p75 ratio message beyond kern comm wait rest  torch
200x304x256 fwd       -  125.0  125.0 62.50..125.0  1.00  25.000   0.80  61%  20%  16%   3%      -
            bwd       -  150.0  200.0 100.0..200.0  1.33  25.000   1.17  82%  13%   5%   0%      -
            both      -  275.0  325.0 162.5..325.0  1.18  50.000   1.00  74%  16%   9%   1%      -
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 10.0 GB/s

resnet18_d2l: a step on 16 images of 28x28 on each of 2 ranks; forward, backward, sum of gradients
batch norm   ms a step     p25..p75
own local BN     800.0 400.0..800.0
SyncBN            1000  500.0..1000
SyncBN over local BN, the median of 4 rounds: +25.0% (p25..p75 +25.0%..+25.0%). Its 34 messages,
62736 bytes of each rank: communication 20.0%, waiting for the last rank 16.0% of the step.

local, own: oneDNN's batch norm (on GPUs cuDNN's) and SyncBN's kernels, each over the rank's own
batch. local, own, SyncBN: the median of a call's time on its slowest rank, in milliseconds.
p25..p75: the middle half of SyncBN's times. ratio: SyncBN / the faster of local and own. message:
SyncBN's message alone, if all ranks arrive at the same time, in milliseconds. beyond: (SyncBN -
message) / the faster of local and own. kern, comm, wait, rest: shares of a SyncBN call: kernels;
its message, once the last rank has entered it; waiting for that rank; everything else. They are
measured with timers, in separate turns. torch: torch.nn.BatchNorm2d, local, in milliseconds. of the
bound: the time of a kernel's bytes at the bandwidth of a copy through as much memory, over the
kernel's time.
PyTorch 2.1 (python3); it is an example
not measured: local BN: no such type

bar                  goal                                    measured
beyond of 28x28x64   at most 1.15 times our own local BN     1.00: met
step of resnet18_d2l at most 2 percent over our own local BN 25.0: NOT met
)";

TEST(SyncBnDocumentTest, LooksLikeThisAndGrowsUpToIt) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(Text(report), kGolden);
  // The text grows as layers are measured.
  const auto so_far = [&report] {
    return report::TerminalText(SyncBnDocument(report, /*finished=*/false));
  };
  EXPECT_THAT(kGolden, StartsWith(so_far()));
  report.network.reset();
  for (; !report.layers.empty(); report.layers.pop_back()) {
    EXPECT_THAT(kGolden, StartsWith(so_far()));
  }
}

TEST(SyncBnDocumentTest, FitsItsColumnsWithLargeNumbers) {
  SyncBnReport report = ExampleSyncBnReport();
  for (LayerReport& layer : report.layers) {
    layer.shape.h = layer.shape.w = 200;
    layer.shape.c = 999;
    layer.copy_bandwidth = 4321e9;
    for (PassReport& pass : layer.passes) {
      pass.sync = {9.999, 8.888, 9.999, 1, 99, 1000};
      pass.local = pass.torch = pass.own_local = pass.sync;
      pass.message = 0.99999;
      pass.split = {.kernels = {1}};
    }
  }
  ExpectNarrow(Text(report));
}

TEST(SyncBnDocumentTest, SaysWhatIsToBeKnown) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers[0].passes[2].sync.median *= 2;
  EXPECT_THAT(
      Text(report),
      HasSubstr("\nbeyond of 28x28x64   at most 1.15 times our own local BN   "
                "  2.18: NOT met\n"));
  report.settings.world_size = 8;
  EXPECT_THAT(Text(report), HasSubstr("8 ranks on 2 cores take turns"));
  EXPECT_THAT(Text(report),
              AllOf(Not(HasSubstr("GPU:")), Not(HasSubstr("beyond of 28")),
                    HasSubstr("\nno bar: it is for 2 ranks.\n")));
}

// Our own local batch norm takes 2.75 ms. Its 8 tensors take 2 ms at the
// bandwidth of the copy, which took 1 ms for 4. PyTorch's takes 5 ms and SyncBN
// 3.25 ms.
TEST(SyncBnDocumentTest, SaysThatItWasMeasuredOnGpus) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.gpu = true;
  report.gpu = "Example GPU";
  report.layers[0].passes[2].torch_sync = report.layers[0].passes[2].torch;
  // Another layer is too small for bars, and takes as long as its host.
  MeasuredTurns small = ExampleTurns(1e-5, true);
  small.subjects[1].host_seconds = {1, 31e-6, 2e-6};
  report.layers.push_back(DeriveLayer(
      report.settings, {ShapeSet::kDetection, 2, 25, 38, 256}, small));
  EXPECT_EQ(report.layers[2].host_seconds, 31e-6);
  EXPECT_THAT(Text(report),
              AllOf(HasSubstr("2 ranks: nccl"),
                    HasSubstr("\nGPU: Example GPU; its clock is not known\n"),
                    Not(HasSubstr("ranks share")), HasSubstr("torchS"),
                    HasSubstr("the batch norms alone of a step"),
                    HasSubstr("no bar: a copy is too short: 25x38x256.\n"),
                    HasSubstr("as long to queue SyncBN: 25x38x256\n"),
                    Not(HasSubstr("BN of 25x38x256"))));
  std::vector<std::string> bars;
  for (const report::Bar& bar : SyncBnDocument(report).bars) {
    bars.push_back(bar.Text());
  }
  EXPECT_THAT(bars, testing::IsSupersetOf(
                        {"own local BN of 28x28x64, at least 0.9 of the "
                         "copy's bound: 0.73: NOT met",
                         "SyncBN of 28x28x64, at least 1.3 times as fast as "
                         "PyTorch's SyncBatchNorm: 1.54: met",
                         "SyncBN of 200x304x256, at least 1.3 times as fast "
                         "as PyTorch's SyncBatchNorm: not measured"}));
  report.shared_gpu = true;
  report.sm_mhz = 1755;
  EXPECT_THAT(Text(report), AllOf(HasSubstr("ranks share a GPU: "),
                                  HasSubstr("worked was 1755 MHz or more"),
                                  HasSubstr("\nno bar: it is for ranks with a "
                                            "GPU each.\n")));
  const Value data = SyncBnDocument(report).data;
  EXPECT_EQ(data["gpu"], "Example GPU");
  EXPECT_EQ(data["shared_gpu"], true);
  EXPECT_EQ(data["sm_clock_mhz"], 1755);
  EXPECT_EQ(data["settings"]["backend"], "nccl");
  EXPECT_EQ(data["network"]["batch_norms_alone"], true);
  EXPECT_THAT(SyncBnDocument(report).bars, IsEmpty());
}

// A shape of each set and the network.
TEST(SyncBnDocumentTest, DrawsEachSection) {
  const report::Document document = SyncBnDocument(ExampleSyncBnReport());
  ASSERT_THAT(document.sections, SizeIs(3));
  const report::Chart& times = document.sections[0].charts[0];
  EXPECT_THAT(times.places, ElementsAre("28x28x64"));
  ASSERT_THAT(times.series, SizeIs(7));
  // Relative to the faster one, 2.75 ms, which is our own.
  EXPECT_THAT(times.series[0].values[0], Optional(DoubleEq(3 / 2.75)));
  EXPECT_THAT(times.series[1].values[0], Optional(DoubleEq(1)));
  double sync = 0;
  for (int i = 2; i < 6; ++i) sync += *times.series[i].values[0];
  EXPECT_DOUBLE_EQ(sync, 3.25 / 2.75);
  EXPECT_THAT(times.series[6].values[0], Optional(DoubleEq(5 / 2.75)));
  const report::Chart& bounds = document.sections[1].charts[1];
  EXPECT_THAT(bounds.series[0].values[0], Optional(DoubleEq(1)));
  // The second shape was measured without the library's layer and PyTorch.
  EXPECT_EQ(document.sections[1].charts[0].series[0].values[0], std::nullopt);
  const report::Chart& step = document.sections[2].charts[0];
  EXPECT_THAT(step.places, ElementsAre("own local BN", "SyncBN"));
  EXPECT_THAT(step.series[0].values[0], Optional(DoubleEq(800)));
}

}  // namespace
}  // namespace lockstep::benchmarks
