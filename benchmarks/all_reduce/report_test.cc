// The formulas, on numbers that can be checked by hand.
#include "benchmarks/all_reduce/report.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "benchmarks/all_reduce/example.h"
#include "benchmarks/all_reduce/json.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/all_reduce/table.h"
#include "collectives/group_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::SizeIs;

constexpr double kMessage = 64 << 20;

TEST(DeriveSizeTest, ComputesStatistics) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[1];
  EXPECT_EQ(size.bytes, 64 << 20);
  EXPECT_EQ(size.count, 16 << 20);
  EXPECT_EQ(size.rounds, 4);
  ASSERT_THAT(size.rows, SizeIs(2));
  const AllReduceRow& ours = size.rows[0];
  const double seconds = 1e-9 * kMessage / 8;
  EXPECT_EQ(ours.samples, 4);
  EXPECT_DOUBLE_EQ(ours.p50, seconds);
  EXPECT_DOUBLE_EQ(ours.p95, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.p99, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.min, seconds / 2);
  EXPECT_DOUBLE_EQ(ours.max, 2 * seconds);
  EXPECT_DOUBLE_EQ(ours.mean, 1.125 * seconds);
}

TEST(DeriveSizeTest, ComputesBandwidths) {
  for (const int world_size : {1, 2, 4}) {
    AllReduceSettings settings;
    settings.world_size = world_size;
    const MeasuredSize measured = {
        .bytes = 8000,
        .rounds = 1,
        .subjects = {{{{TeamKind::kProcesses}}, {1e-6}, 0},
                     {{{TeamKind::kCopy}}, {1e-6}, 0}}};
    const AllReduceSize size = DeriveSize(settings, measured);
    EXPECT_DOUBLE_EQ(size.rows[0].alg_bw, 8e9);
    const double bus[] = {0, 0, 8e9, 0, 12e9};
    EXPECT_DOUBLE_EQ(size.rows[0].bus_bw, bus[world_size]) << world_size;
  }
}

TEST(DeriveSizeTest, BoundsByCopiesOverAsMuchMemory) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[1];
  EXPECT_DOUBLE_EQ(size.copy_bw, 40e9);
  ASSERT_TRUE(size.bound_seconds.has_value());
  EXPECT_DOUBLE_EQ(*size.bound_seconds, 4 * kMessage / 40e9);
  EXPECT_DOUBLE_EQ(*size.rows[0].bound_fraction, 0.8);
  EXPECT_DOUBLE_EQ(*size.rows[1].bound_fraction, 0.1);
}

// Out of place, the copies read and write twice as much.
TEST(DeriveSizeTest, KnowsWhatTheCopiesMoved) {
  AllReduceSettings settings;
  settings.world_size = 3;
  const MeasuredSize measured = {.bytes = 1 << 20,
                                 .rounds = 1,
                                 .subjects = {{{{TeamKind::kCopy}}, {1.0}, 0}}};
  EXPECT_DOUBLE_EQ(DeriveSize(settings, measured).copy_bw, 3 << 20);
  settings.in_place = false;
  EXPECT_DOUBLE_EQ(DeriveSize(settings, measured).copy_bw, 6 << 20);
}

TEST(DeriveSizeTest, GivesNoBoundForSmallMessagesOrOneRank) {
  AllReduceSettings settings;
  MeasuredSize measured = {.bytes = kBoundFrom - 4,
                           .rounds = 1,
                           .subjects = {{{{TeamKind::kThreads}}, {1.0}, 0},
                                        {{{TeamKind::kCopy}}, {1.0}, 0}}};
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
  EXPECT_FALSE(
      DeriveSize(settings, measured).rows[0].bound_fraction.has_value());
  measured.bytes = kBoundFrom;
  EXPECT_TRUE(DeriveSize(settings, measured).bound_seconds.has_value());
  settings.world_size = 1;
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
}

TEST(DeriveSizeTest, ComparesOursWithThePeersThatAreThere) {
  const AllReduceReport report = ExampleAllReduceReport();
  const AllReduceSize& size = report.sizes[0];
  ASSERT_THAT(size.rows[0].ratios, SizeIs(1));
  EXPECT_EQ(size.rows[0].ratios[0].peer, TeamKind::kOpenMpi);
  EXPECT_DOUBLE_EQ(size.rows[0].ratios[0].ratio, 8);
  EXPECT_THAT(size.rows[1].ratios, SizeIs(0));
}

TEST(CountWrongTest, AddsEveryRow) {
  AllReduceReport report = ExampleAllReduceReport();
  EXPECT_EQ(CountWrong(report), 3);
  report.sizes[1].rows[0].wrong = 4;
  EXPECT_EQ(CountWrong(report), 7);
}

// Every key, its unit and its value.

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

// The table, whole.

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
}  // namespace lockstep::benchmarks
