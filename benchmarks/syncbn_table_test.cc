// The table, whole.
#include "benchmarks/syncbn_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/syncbn_example.h"
#include "benchmarks/syncbn_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
