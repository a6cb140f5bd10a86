// The table, whole.
#include "benchmarks/scaling_table.h"

#include <string>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/scaling_example.h"
#include "benchmarks/scaling_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
