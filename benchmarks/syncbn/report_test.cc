// The formulas, on numbers that are easy to check by hand.
#include "benchmarks/syncbn/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/example.h"
#include "benchmarks/syncbn/html.h"
#include "benchmarks/syncbn/json.h"
#include "benchmarks/syncbn/measure.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/table.h"
#include "benchmarks/syncbn/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/page_checks.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

constexpr LayerShape kShape = {ShapeSet::kResNet18, 32, 28, 28, 64};
constexpr double kTensorBytes = 32 * 28 * 28 * 64 * 4;

LayerReport Layer(double seconds = 1) {
  return DeriveLayer(SyncBnSettings(), kShape, ExampleTurns(seconds, true));
}

TEST(DeriveLayerTest, HasMediansAndTheirSpread) {
  const PassReport forward = Layer().passes[0];
  EXPECT_EQ(forward.pass, Pass::kForward);
  EXPECT_DOUBLE_EQ(forward.sync.median, 1.25);
  EXPECT_DOUBLE_EQ(forward.sync.min, 0.625);
  EXPECT_DOUBLE_EQ(forward.sync.p25, 0.625);
  EXPECT_DOUBLE_EQ(forward.sync.p75, 1.25);
  EXPECT_DOUBLE_EQ(forward.sync.max, 2.5);
  EXPECT_EQ(forward.sync.samples, 4);
  EXPECT_DOUBLE_EQ(forward.local->median, 1);
  EXPECT_DOUBLE_EQ(forward.own_local.median, 1.25);
  EXPECT_DOUBLE_EQ(forward.torch->median, 2);
  EXPECT_DOUBLE_EQ(forward.message, 0.25);
}

TEST(DeriveLayerTest, ComparesWithTheFasterLocalBatchNorm) {
  const LayerReport layer = Layer();
  EXPECT_EQ(layer.passes[0].FasterLocal(), SyncBnSubject::kLocal);
  EXPECT_DOUBLE_EQ(layer.passes[0].Ratio(), 1.25);
  EXPECT_DOUBLE_EQ(layer.passes[0].Beyond(), 1);
  EXPECT_THAT(layer.passes[0].ToTorch(), Optional(DoubleEq(1.6)));
  // Our own takes 1.5, oneDNN's 2.
  EXPECT_EQ(layer.passes[1].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[1].Ratio(), 2 / 1.5);
  EXPECT_DOUBLE_EQ(layer.passes[1].Beyond(), 1.75 / 1.5);
  // (1.25 + 2 - 0.5) / (1.25 + 1.5), where oneDNN's takes 1 + 2.
  EXPECT_EQ(layer.passes[2].pass, Pass::kBoth);
  EXPECT_EQ(layer.passes[2].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[2].Beyond(), 1);
  EXPECT_THAT(layer.passes[2].ToTorch(), Optional(DoubleEq(5 / 3.25)));
}

TEST(DeriveLayerTest, SplitsTheCallsAndSaysWhatTimersCost) {
  const LayerReport layer = Layer();
  EXPECT_DOUBLE_EQ(layer.passes[0].split.kernels, 0.76);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.communication, 0.25);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.wait, 0.2);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.other, 0.04);
  EXPECT_DOUBLE_EQ(layer.passes[1].split.kernels, 1.6);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.kernels, 2.36);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.Sum(), 3.2);
  EXPECT_DOUBLE_EQ(layer.passes[0].timers, 1.3 / 1.25 - 1);
}

// Of four calls the fastest and the slowest are left out.
TEST(DeriveLayerTest, SplitsTheMiddleHalf) {
  MeasuredTurns turns = ExampleTurns(1, false);
  turns.subjects[2].forward[1].wait = 100;
  turns.subjects[2].forward[2].wait = 100;
  turns.subjects[2].forward[3].wait = 0.4;
  const LayerReport layer = DeriveLayer(SyncBnSettings(), kShape, turns);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.wait, 0.3);
}

TEST(DeriveLayerTest, BoundsKernelsByTheCopy) {
  const LayerReport layer = Layer();
  // Two ranks read and write two tensors each, in a second.
  EXPECT_DOUBLE_EQ(layer.copy_bandwidth, 2 * 4 * kTensorBytes);
  ASSERT_THAT(layer.kernels, SizeIs(kTimedKernels));
  const double seconds[] = {0.25, 0.01, 0.5, 0.8, 0.8};
  const double tensors[] = {1, 0, 2, 2, 3};
  for (size_t i = 0; i < layer.kernels.size(); ++i) {
    const KernelReport& kernel = layer.kernels[i];
    EXPECT_EQ(kernel.kernel, static_cast<TimedKernel>(i));
    EXPECT_DOUBLE_EQ(kernel.seconds, seconds[i]);
    EXPECT_EQ(kernel.bytes, static_cast<int64_t>(tensors[i] * kTensorBytes));
    if (i == 1) {
      EXPECT_EQ(kernel.Fraction(), std::nullopt);
      continue;
    }
    EXPECT_THAT(kernel.bound_seconds, Optional(DoubleEq(0.25 * tensors[i])));
    EXPECT_THAT(kernel.Fraction(),
                Optional(DoubleEq(0.25 * tensors[i] / seconds[i])));
  }
}

TEST(DeriveLayerTest, CountsTheBytesOfMessages) {
  const LayerReport layer = Layer();
  EXPECT_EQ(layer.forward_message, 16 + 8 * 64);
  EXPECT_EQ(layer.backward_message, 8 * 64);
}

// Records follow one another in multiples of 16 bytes; sums are not padded.
TEST(DeriveLayerTest, CountsTheBytesOfMessagesOfAnOddNumberOfChannels) {
  for (const int64_t c : {1, 3, 63, 65}) {
    LayerShape shape = kShape;
    shape.c = c;
    const LayerReport layer =
        DeriveLayer(SyncBnSettings(), shape, ExampleTurns(1, true));
    EXPECT_EQ(layer.forward_message, 16 + 8 * c + 8);
    EXPECT_EQ(layer.backward_message, 8 * c);
  }
}

TEST(DeriveLayerTest, GoesWithoutWhatIsMissing) {
  MeasuredTurns turns = ExampleTurns(1, false);
  turns.subjects[0].forward.clear();
  turns.subjects[0].backward.clear();
  const LayerReport layer = DeriveLayer(SyncBnSettings(), kShape, turns);
  EXPECT_EQ(layer.passes[0].local, std::nullopt);
  EXPECT_EQ(layer.passes[0].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[0].Ratio(), 1);
  EXPECT_DOUBLE_EQ(layer.passes[0].Beyond(), 0.8);
  EXPECT_EQ(layer.passes[0].ToTorch(), std::nullopt);
  EXPECT_DOUBLE_EQ(layer.passes[0].sync.median, 1.25);
}

TEST(DeriveNetworkTest, HasSyncBatchNormsShareOfAStep) {
  const NetworkReport network = *ExampleSyncBnReport().network;
  EXPECT_EQ(network.batch, 16);
  EXPECT_DOUBLE_EQ(network.local.median, 0.8);
  EXPECT_DOUBLE_EQ(network.sync.median, 1);
  EXPECT_DOUBLE_EQ(network.Share(), 0.2);
  EXPECT_EQ(network.messages, 34);
  EXPECT_EQ(network.message_bytes, 62736);
  EXPECT_DOUBLE_EQ(network.split.communication, 0.25);
  EXPECT_NEAR(network.timers, 0.3, 1e-12);
}

TEST(AddNotesTest, NamesThePeerAndWhatIsMissingOnce) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(report.peer, "PyTorch 2.1 (python3); it is an example");
  EXPECT_THAT(report.missing, ElementsAre("local BN: no such type"));
  MeasuredTurns again;
  again.subjects = {
      {.subject = SyncBnSubject::kLocal, .missing = "no such type"},
      {.subject = SyncBnSubject::kTorch, .missing = "not there"}};
  AddNotes(again, report);
  EXPECT_THAT(report.missing,
              ElementsAre("local BN: no such type", "PyTorch: not there"));
}

TEST(SyncBnBarsOfTest, HasResNet18sShapesAtTwoRanks) {
  SyncBnReport report = ExampleSyncBnReport();
  std::vector<SyncBnBar> bars = BarsOf(report);
  ASSERT_THAT(bars, SizeIs(1));
  EXPECT_EQ(bars[0].shape, kShape);
  EXPECT_EQ(bars[0].against, SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(bars[0].value, 1);
  EXPECT_TRUE(bars[0].Met());
  EXPECT_EQ(WhyNoBar(report), "");
  report.layers[0].passes[2].local->median = 2e-3;
  bars = BarsOf(report);
  EXPECT_EQ(bars[0].against, SyncBnSubject::kLocal);
  EXPECT_DOUBLE_EQ(bars[0].value, 2.75 / 2);
  EXPECT_FALSE(bars[0].Met());
}

TEST(SyncBnBarsOfTest, SaysWhyThereIsNone) {
  const SyncBnReport good = ExampleSyncBnReport();
  const auto why = [](const SyncBnReport& report) {
    EXPECT_THAT(BarsOf(report), IsEmpty());
    return WhyNoBar(report);
  };
  SyncBnReport report = good;
  report.settings.gpu = true;
  EXPECT_EQ(why(report), "it is for the CPU");
  report = good;
  report.settings.world_size = 3;
  EXPECT_EQ(why(report), "it is for 2 ranks");
  report = good;
  report.settings.type = DataType::kBFloat16;
  EXPECT_EQ(why(report), "it is for float32");
  report = good;
  report.machine.cores = 1;
  EXPECT_EQ(why(report),
            "it is for ranks with a core each, and 2 ranks share 1");
  report = good;
  report.layers.erase(report.layers.begin());
  EXPECT_EQ(why(report), "it is for resnet18's shapes");
}

TEST(SyncBnCountWrongTest, CountsEverything) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(CountWrong(report), 0);
  report.layers[1].wrong = 3;
  report.network->wrong = 4;
  EXPECT_EQ(CountWrong(report), 7);
  MeasuredTurns turns = ExampleTurns(1, true);
  turns.subjects[0].wrong = 1;
  turns.subjects[5].wrong = 2;
  EXPECT_EQ(DeriveLayer(report.settings, kShape, turns).wrong, 3);
}

// Every key, with the report's value.

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

// The table, whole.

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Table(const SyncBnReport& report) {
  std::string text = FormatSyncBnHeading(report);
  for (const LayerReport& layer : report.layers) {
    absl::StrAppend(&text, FormatShapeSet(layer.shape), FormatLayer(layer));
  }
  return absl::StrCat(text, FormatNetwork(report.settings, *report.network),
                      FormatSyncBnLegend(report));
}

constexpr char kGolden[] =
    R"(batch norm, 2 ranks: processes, one thread each; float32 nhwc
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
syncbn --shapes=resnet18,detection

resnet18, 32 images on each rank
shape       pass   local    own SyncBN  p25..p75     ratio message beyond kern comm wait rest  torch
28x28x64    fwd    1.000  1.250  1.250  0.625..1.250  1.25   250.0   1.00  61%  20%  16%   3%  2.000
            bwd    2.000  1.500  2.000  1.000..2.000  1.33   250.0   1.17  82%  13%   5%   0%  3.000
            both   3.000  2.750  3.250  1.625..3.250  1.18   500.0   1.00  74%  16%   9%   1%  5.000
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 51.4 GB/s

detection, 2 images on each rank
shape       pass   local    own SyncBN  p25..p75     ratio message beyond kern comm wait rest  torch
200x304x256 fwd        -  125.0  125.0  62.50..125.0  1.00   25000   0.80  61%  20%  16%   3%      -
            bwd        -  150.0  200.0  100.0..200.0  1.33   25000   1.17  82%  13%   5%   0%      -
            both       -  275.0  325.0  162.5..325.0  1.18   50000   1.00  74%  16%   9%   1%      -
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 10.0 GB/s

ResNet-18, 16 images of 28x28 on each of 2 ranks: forward, backward, sum of gradients
own local BN      800.0 ms a step  (400.0..800.0)
SyncBN             1000 ms a step  (500.0..1000)
SyncBN's share of the step: 20.0%. Its 34 messages, 62736 bytes of each rank: communication 20.0%,
waiting for the last rank 16.0% of the step.

local: oneDNN's batch norm (on GPUs cuDNN's), own: SyncBN's kernels, each over the rank's own batch.
local, own, SyncBN: milliseconds of a call, as long as on its slowest rank, the median; p25..p75:
the middle half of SyncBN's. ratio: SyncBN / the faster of local and own. message: its message
alone, of ranks that arrive together, in microseconds. beyond: (SyncBN - message) / the faster of
local and own. kern, comm, wait, rest: shares of a SyncBN call in kernels, in its message from when
the last rank has entered it, in waiting for that rank, and in neither; measured with timers, in
turns of their own. torch: torch.nn.BatchNorm2d, local, in milliseconds. of the bound: the time that
a kernel's bytes take at the bandwidth of a copy within as much memory, over its own.
PyTorch 2.1 (python3); it is an example
not measured: local BN: no such type

bar: SyncBN beyond its message, forward and backward, is at most 1.15x the faster local BN
  28x28x64: 1.00x our own: met
)";

TEST(FormatSyncBnTableTest, LooksLikeThis) {
  EXPECT_EQ(Table(ExampleSyncBnReport()), kGolden);
}

TEST(FormatSyncBnTableTest, FitsItsColumnsWithLargeNumbers) {
  SyncBnReport report = ExampleSyncBnReport();
  for (LayerReport& layer : report.layers) {
    layer.shape.h = layer.shape.w = 200;
    layer.shape.c = 999;
    layer.copy_bandwidth = 4321e9;
    for (PassReport& pass : layer.passes) {
      pass.sync = {9.999, 8.888, 9.999, 1, 99, 1000};
      pass.local = pass.torch = pass.own_local = pass.sync;
      pass.message = 0.99999;
      pass.split = {1, 0, 0, 0};
    }
  }
  for (const absl::string_view line : absl::StrSplit(Table(report), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(FormatSyncBnTableTest, SaysWhatIsToBeKnown) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers[0].passes[2].sync.median *= 2;
  EXPECT_THAT(FormatSyncBnLegend(report),
              HasSubstr("  28x28x64: 2.18x our own: NOT met"));
  report.settings.world_size = 8;
  EXPECT_THAT(FormatSyncBnHeading(report),
              HasSubstr("8 ranks on 2 cores take turns"));
  EXPECT_THAT(FormatSyncBnLegend(report),
              AllOf(Not(HasSubstr("GPU:")), Not(HasSubstr("bar: SyncBN")),
                    HasSubstr("\nno bar: it is for 2 ranks.\n")));
}

TEST(FormatSyncBnTableTest, SaysNothingOfTheBarWithoutLayers) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers.clear();
  EXPECT_THAT(FormatSyncBnLegend(report), Not(HasSubstr("bar")));
}

TEST(FormatSyncBnTableTest, SaysThatItWasMeasuredOnGpus) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.gpu = true;
  report.gpu = "Example GPU";
  EXPECT_THAT(FormatSyncBnHeading(report), HasSubstr("2 ranks: nccl"));
  EXPECT_THAT(
      FormatSyncBnLegend(report),
      AllOf(HasSubstr("\nGPU: Example GPU\n"), Not(HasSubstr("ranks share")),
            HasSubstr("\nno bar: it is for the CPU.\n")));
  report.shared_gpu = true;
  EXPECT_THAT(FormatSyncBnLegend(report), HasSubstr("ranks share a GPU: "));
}

// The page: nothing outside it, and nothing in it that its strings could break.

TEST(SyncBnHtmlTest, IsAWholePageThatLoadsNothing) {
  const std::string page = FormatSyncBnHtml(ExampleSyncBnReport());
  ExpectWholePage(page);
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep SyncBN report</h1>"));
  EXPECT_THAT(page, HasSubstr("or read syncbn.json."));
}

TEST(SyncBnHtmlTest, HoldsTheReport) {
  const SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(EmbeddedReport(FormatSyncBnHtml(report)), SyncBnJson(report));
}

TEST(SyncBnHtmlTest, KeepsHostileStringsInsideTheirElement) {
  SyncBnReport report = ExampleSyncBnReport();
  const std::string plain = FormatSyncBnHtml(report);
  report.command = "</script><script>alert(1)</script><!-- <b> /*SCRIPT*/";
  report.peer = "</table>";
  const std::string page = FormatSyncBnHtml(report);
  ExpectSameElements(page, plain);
  EXPECT_EQ(EmbeddedReport(page)["command"], report.command);
}

}  // namespace
}  // namespace lockstep::benchmarks
