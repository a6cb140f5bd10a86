// The report's forms, of a made-up report.
#include "report/document.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/syncbn/example.h"
#include "benchmarks/syncbn/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using report::Value;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Text(const SyncBnReport& report) {
  return report::TerminalText(SyncBnDocument(report));
}

TEST(SyncBnDocumentTest, SaysWhereItIsFrom) {
  const report::Document document = SyncBnDocument(ExampleSyncBnReport());
  const Value& data = document.data;
  EXPECT_THAT(data.keys(), ElementsAre("gpu", "shared_gpu", "settings", "peer",
                                       "not_available", "layers", "network",
                                       "bars", "no_bar"));
  EXPECT_EQ(document.name, "lockstep.syncbn");
  EXPECT_EQ(document.schema_version, 2);
  EXPECT_TRUE(data["gpu"].is_null());
  EXPECT_EQ(data["shared_gpu"], false);
  EXPECT_EQ(data["settings"]["backend"], "processes");
  EXPECT_EQ(data["settings"]["world_size"], 2);
  EXPECT_EQ(data["settings"]["layout"], "nhwc");
  EXPECT_EQ(data["peer"], "PyTorch 2.1 (python3); it is an example");
  EXPECT_EQ(data["not_available"][0], "local BN: no such type");
}

TEST(SyncBnDocumentTest, SaysThatRanksShareAGpu) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.gpu = true;
  report.gpu = "Example GPU";
  report.shared_gpu = true;
  const Value data = SyncBnDocument(report).data;
  EXPECT_EQ(data["gpu"], "Example GPU");
  EXPECT_EQ(data["shared_gpu"], true);
  EXPECT_EQ(data["settings"]["backend"], "nccl");
  EXPECT_EQ(data["bars"].size(), 0u);
  EXPECT_EQ(data["no_bar"], "it is for the CPU");
}

TEST(SyncBnDocumentTest, HasEveryLayersNumbers) {
  const SyncBnReport report = ExampleSyncBnReport();
  const Value data = SyncBnDocument(report).data;
  ASSERT_EQ(data["layers"].size(), 2u);
  const Value& layer = data["layers"][0];
  EXPECT_THAT(
      layer.keys(),
      ElementsAre("set", "shape", "n", "h", "w", "c", "rounds", "tensor_bytes",
                  "forward_message_bytes", "backward_message_bytes",
                  "copy_bandwidth", "wrong", "passes", "kernels"));
  EXPECT_EQ(layer["shape"], "28x28x64");
  EXPECT_THAT(layer["passes"].keys(),
              ElementsAre("forward", "backward", "both"));
  const Value& pass = layer["passes"]["both"];
  EXPECT_THAT(pass.keys(),
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

TEST(SyncBnDocumentTest, HasNullForWhatIsMissing) {
  SyncBnReport report = ExampleSyncBnReport();
  report.peer.clear();
  report.network.reset();
  const Value data = SyncBnDocument(report).data;
  for (const char* key : {"peer", "network"}) {
    EXPECT_TRUE(data[key].is_null()) << key;
  }
  for (const char* key : {"local", "torch", "torch_ratio"}) {
    EXPECT_TRUE(data["layers"][1]["passes"]["forward"][key].is_null()) << key;
  }
}

TEST(SyncBnDocumentTest, HasTheNetworkAndTheBars) {
  const SyncBnReport report = ExampleSyncBnReport();
  const Value data = SyncBnDocument(report).data;
  EXPECT_THAT(
      data["network"].keys(),
      ElementsAre("model", "per_rank_batch", "rounds", "local", "sync", "share",
                  "split", "timers", "messages", "message_bytes", "wrong"));
  EXPECT_EQ(data["network"]["share"], report.network->Share());
  ASSERT_EQ(data["bars"].size(), 1u);
  EXPECT_EQ(data["bars"][0]["shape"], "28x28x64");
  EXPECT_EQ(data["bars"][0]["at_most"], 1.15);
  EXPECT_EQ(data["bars"][0]["against"], "own_local");
  EXPECT_EQ(data["bars"][0]["met"], true);
  EXPECT_TRUE(data["no_bar"].is_null());
}

constexpr char kGolden[] =
    R"(batch norm, 2 ranks: processes, one thread each; float32 nhwc
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
syncbn --shapes=resnet18,detection

resnet18: images of 28x28, 32 on each rank
shape       pass  local    own SyncBN     p25..p75 ratio message beyond kern comm wait rest  torch
28x28x64    fwd   1.000  1.250  1.250 0.625..1.250  1.25   250.0   1.00  61%  20%  16%   3%  2.000
            bwd   2.000  1.500  2.000 1.000..2.000  1.33   250.0   1.17  82%  13%   5%   0%  3.000
            both  3.000  2.750  3.250 1.625..3.250  1.18   500.0   1.00  74%  16%   9%   1%  5.000
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 51.4 GB/s

detection: a feature pyramid over images of 800x1216, 2 on each rank
shape       pass  local    own SyncBN     p25..p75 ratio message beyond kern comm wait rest  torch
200x304x256 fwd       -  125.0  125.0 62.50..125.0  1.00   25000   0.80  61%  20%  16%   3%      -
            bwd       -  150.0  200.0 100.0..200.0  1.33   25000   1.17  82%  13%   5%   0%      -
            both      -  275.0  325.0 162.5..325.0  1.18   50000   1.00  74%  16%   9%   1%      -
            of the bound: moments 100%, normalize 100%, reduce 62%, input 94%; copy 10.0 GB/s

ResNet-18: a step on 16 images of 28x28 on each of 2 ranks; forward, backward, sum of gradients
batch norm   ms a step     p25..p75
own local BN     800.0 400.0..800.0
SyncBN            1000  500.0..1000
SyncBN's share of the step: 20.0%. Its 34 messages, 62736 bytes of each rank: communication 20.0%,
waiting for the last rank 16.0% of the step.

local, own: oneDNN's batch norm (on GPUs cuDNN's) and SyncBN's kernels, each over the rank's own
batch. local, own, SyncBN: milliseconds of a call, as long as on its slowest rank, the median.
p25..p75: the middle half of SyncBN's. ratio: SyncBN / the faster of local and own. message: its
message alone, of ranks that arrive together, in microseconds. beyond: (SyncBN - message) / the
faster of local and own. kern, comm, wait, rest: shares of a SyncBN call in kernels, in its message
from when the last rank has entered it, in waiting for that rank, and in neither; measured with
timers, in turns of their own. torch: torch.nn.BatchNorm2d, local, in milliseconds. of the bound:
the time that a kernel's bytes take at the bandwidth of a copy within as much memory, over its own.
PyTorch 2.1 (python3); it is an example
not measured: local BN: no such type

bar: beyond of 28x28x64, at most 1.15 times our own local BN: 1.00: met
)";

TEST(SyncBnDocumentTest, LooksLikeThis) {
  EXPECT_EQ(Text(ExampleSyncBnReport()), kGolden);
}

TEST(SyncBnDocumentTest, GrowsAsLayersAreMeasured) {
  SyncBnReport report = ExampleSyncBnReport();
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
      pass.split = {1, 0, 0, 0};
    }
  }
  for (const absl::string_view line : absl::StrSplit(Text(report), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(SyncBnDocumentTest, SaysWhatIsToBeKnown) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers[0].passes[2].sync.median *= 2;
  EXPECT_THAT(
      Text(report),
      HasSubstr("bar: beyond of 28x28x64, at most 1.15 times our own local "
                "BN: 2.18: NOT met\n"));
  report.settings.world_size = 8;
  EXPECT_THAT(Text(report), HasSubstr("8 ranks on 2 cores take turns"));
  EXPECT_THAT(Text(report),
              AllOf(Not(HasSubstr("GPU:")), Not(HasSubstr("bar: beyond")),
                    HasSubstr("\nno bar: it is for 2 ranks.\n")));
}

TEST(SyncBnDocumentTest, SaysNothingOfTheBarWithoutLayers) {
  SyncBnReport report = ExampleSyncBnReport();
  report.layers.clear();
  EXPECT_THAT(Text(report), Not(HasSubstr("bar")));
}

TEST(SyncBnDocumentTest, SaysThatItWasMeasuredOnGpus) {
  SyncBnReport report = ExampleSyncBnReport();
  report.settings.gpu = true;
  report.gpu = "Example GPU";
  EXPECT_THAT(Text(report), HasSubstr("2 ranks: nccl"));
  EXPECT_THAT(Text(report), AllOf(HasSubstr("\nGPU: Example GPU\n"),
                                  Not(HasSubstr("ranks share")),
                                  HasSubstr("\nno bar: it is for the CPU.\n")));
  report.shared_gpu = true;
  EXPECT_THAT(Text(report), HasSubstr("ranks share a GPU: "));
}

// A shape of each set and the network.
TEST(SyncBnDocumentTest, DrawsEachSection) {
  const report::Document document = SyncBnDocument(ExampleSyncBnReport());
  ASSERT_THAT(document.sections, SizeIs(3));
  const report::Chart& times = document.sections[0].charts[0];
  EXPECT_THAT(times.places, ElementsAre("28x28x64"));
  ASSERT_THAT(times.series, SizeIs(7));
  // Over the faster one, 2.75 ms, which is our own.
  EXPECT_THAT(times.series[0].values[0], Optional(DoubleEq(3 / 2.75)));
  EXPECT_THAT(times.series[1].values[0], Optional(DoubleEq(1)));
  double sync = 0;
  for (int i = 2; i < 6; ++i) sync += *times.series[i].values[0];
  EXPECT_DOUBLE_EQ(sync, 3.25 / 2.75);
  EXPECT_THAT(times.series[6].values[0], Optional(DoubleEq(5 / 2.75)));
  const report::Chart& bounds = document.sections[1].charts[1];
  EXPECT_THAT(bounds.series[0].values[0], Optional(DoubleEq(1)));
  // The second shape was measured without the library's and PyTorch.
  EXPECT_EQ(document.sections[1].charts[0].series[0].values[0], std::nullopt);
  const report::Chart& step = document.sections[2].charts[0];
  EXPECT_THAT(step.places, ElementsAre("own local BN", "SyncBN"));
  EXPECT_THAT(step.series[0].values[0], Optional(DoubleEq(800)));
}

}  // namespace
}  // namespace lockstep::benchmarks
