// The table, whole.
#include "benchmarks/all_reduce_table.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/all_reduce_example.h"
#include "benchmarks/all_reduce_plan.h"
#include "benchmarks/all_reduce_report.h"
#include "collectives/algorithm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::string Table(const AllReduceReport& report) {
  std::string text = FormatAllReduceHeading(report);
  for (const AllReduceSize& size : report.sizes) {
    absl::StrAppend(&text, FormatAllReduceSize(report.settings, size));
  }
  return absl::StrCat(text, FormatAllReduceLegend(report));
}

constexpr char kGolden[] =
    R"(all-reduce, 2 ranks, float32 sum, in place
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
allreduce --buffers=group --peers=mpi,gloo
Something to know.

     size what                        p50 us   p95 us   p99 us  algbw  busbw wrong bound  /mpi /gloo
    4 KiB processes auto group          0.51     1.02     1.02  8.000  8.000     0     -  8.00     -
          Open MPI                      4.10     8.19     8.19  1.000  1.000     3     -     -     -
   64 MiB processes auto group        8388.6    16777    16777  8.000  8.000     0   80%  8.00     -
          Open MPI                     67109   134218   134218  1.000  1.000     0   10%     -     -
          bound: copy 40.00 GB/s      6710.9

p50, p95, p99: of a call, as long as on its slowest rank. algbw: size / p50; busbw: algbw x
2(P-1)/P; GB/s. wrong: elements of all timed calls, on all ranks, that are not the exact result.
bound: what reading and writing every message once takes at the bandwidth of a copy; its share of
p50.
/mpi, /gloo: the p50 of Open MPI, of Gloo, over this one's: above 1 is faster than the peer.
Gloo: not available: it was not built
)";

TEST(FormatAllReduceTableTest, LooksLikeThis) {
  EXPECT_EQ(Table(ExampleAllReduceReport()), kGolden);
}

TEST(FormatAllReduceTableTest, FitsItsColumnsWithLargeNumbers) {
  AllReduceReport report = ExampleAllReduceReport();
  for (AllReduceSize& size : report.sizes) {
    size.bytes = (1 << 30) - 1;
    size.copy_bw = 4321e9;
    size.bound_seconds = 1.5;
    for (AllReduceRow& row : size.rows) {
      row.subject = {{TeamKind::kProcesses, Algorithm::kDirect}};
      row.p50 = row.p95 = row.p99 = 59.9;
      row.alg_bw = row.bus_bw = 1234e9;
      row.wrong = int64_t{1} << 40;
      row.bound_fraction = 1.5;
      row.ratios = {{TeamKind::kOpenMpi, 9999}, {TeamKind::kGloo, 9999}};
    }
  }
  for (const absl::string_view line : absl::StrSplit(Table(report), '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(FormatBytesTest, UsesTheLargestUnitThatIsExact) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(8), "8 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(4096), "4 KiB");
  EXPECT_EQ(FormatBytes(4100), "4100 B");
  EXPECT_EQ(FormatBytes(9999999), "9999999 B");
  EXPECT_EQ(FormatBytes(10485761), "10.0 MiB");
  EXPECT_EQ(FormatBytes((1 << 30) - 1), "1.0 GiB");
  EXPECT_EQ(FormatBytes(64 << 20), "64 MiB");
  EXPECT_EQ(FormatBytes(int64_t{1} << 40), "1024 GiB");
}

}  // namespace
}  // namespace lockstep
