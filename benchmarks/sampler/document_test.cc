// Tests of the formulas and of the report's text and JSON, on numbers that can
// be checked by hand.
#include "benchmarks/sampler/document.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/sampler/results.h"
#include "benchmarks/sampler/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using report::Bar;
using report::Value;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Returns draws of 1,281,167 samples with these medians of 3 rounds: torch 4
// ms, paddle 8, PyTorch 100, the table 2.
DrawRows ExampleEpoch() {
  return {.size = 1'281'167,
          .rows = {{.subject = DrawSubject::kTorch,
                    .seconds = {0.005, 0.003, 0.004},
                    .count = 160'146,
                    .checksum = 4'000'000'000u},
                   {.subject = DrawSubject::kPaddle,
                    .seconds = {0.008, 0.008, 0.009},
                    .count = 160'146,
                    .checksum = 2},
                   {.subject = DrawSubject::kPyTorch,
                    .seconds = {0.1, 0.09, 0.2},
                    .count = 160'146,
                    .checksum = 4'000'000'000u},
                   {.subject = DrawSubject::kTable,
                    .seconds = {0.002, 0.001, 0.002}}}};
}

// Returns a report of ExampleEpoch, and of the keyed order at 80 million
// indices a second in 256 KiB.
SamplerReport ExampleReport() {
  return {.settings = {.sizes = {1'281'167}},
          .origin = ExampleOrigin("bazel run //benchmarks:sampler"),
          .peer = "PyTorch 2.6.0 (python3)",
          .sizes = {DeriveRows(ExampleEpoch())},
          .keyed = DeriveKeyed({70e6, 80e6, 90e6}, {50e-9}, 256 << 10)};
}

TEST(DeriveRowsTest, DividesMedians) {
  const DrawRows rows = DeriveRows(ExampleEpoch());
  EXPECT_EQ(rows.size, 1'281'167);
  EXPECT_EQ(rows.rounds, 3);
  ASSERT_THAT(rows.rows, SizeIs(4));
  const DrawRow& torch = rows.rows[0];
  EXPECT_EQ(torch.count, 160'146);
  EXPECT_EQ(torch.checksum, 4'000'000'000u);
  EXPECT_EQ(torch.median, 0.004);
  EXPECT_EQ(torch.min, 0.003);
  EXPECT_EQ(torch.max, 0.005);
  EXPECT_THAT(torch.indices_per_second, Optional(DoubleEq(160'146 / 0.004)));
  EXPECT_THAT(torch.table_ratio, Optional(DoubleEq(0.5)));
  EXPECT_THAT(torch.torch_ratio, Optional(DoubleEq(25)));
  EXPECT_THAT(rows.rows[1].table_ratio, Optional(DoubleEq(0.25)));
  EXPECT_THAT(rows.rows[1].torch_ratio, Optional(DoubleEq(12.5)));
  // Only our own samplers have ratios.
  EXPECT_TRUE(rows.rows[2].indices_per_second.has_value());
  EXPECT_FALSE(rows.rows[3].indices_per_second.has_value());
  for (const int other : {2, 3}) {
    EXPECT_FALSE(rows.rows[other].table_ratio.has_value());
    EXPECT_FALSE(rows.rows[other].torch_ratio.has_value());
  }
}

TEST(DeriveRowsTest, HasNoRatioWithoutPyTorch) {
  DrawRows measured = ExampleEpoch();
  measured.rows.erase(measured.rows.begin() + 2);
  const DrawRows rows = DeriveRows(measured);
  EXPECT_TRUE(rows.rows[0].table_ratio.has_value());
  EXPECT_FALSE(rows.rows[0].torch_ratio.has_value());
}

TEST(BarsTest, HoldValuesAgainstGoalsBelowAndAbove) {
  const std::vector<Bar> bars = BarsOf(ExampleReport());
  ASSERT_THAT(bars, SizeIs(4));
  EXPECT_THAT(bars[0].value, Optional(DoubleEq(25)));
  EXPECT_FALSE(bars[1].value.has_value());  // That size was not measured.
  EXPECT_THAT(bars[2].value, Optional(Eq(80)));
  EXPECT_THAT(bars[3].value, Optional(Eq(0.25)));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(bars[i].Met(), i != 1) << i;
  SamplerReport report = ExampleReport();
  report.sizes[0].rows[0].torch_ratio = 19.9;
  report.keyed = DeriveKeyed({49e6}, {50e-9}, (1 << 20) + 1);
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
  report.keyed.reset();
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
}

// The report's text and JSON.

TEST(SamplerDocumentTest, HoldsEveryNumberAndWhichBarsAreMet) {
  const report::Document document = SamplerDocument(ExampleReport());
  EXPECT_EQ(document.name, "lockstep.sampler");
  EXPECT_EQ(document.schema_version, 1);
  const Value& data = document.data;
  EXPECT_THAT(data.keys(), ElementsAre("settings", "peer", "not_available",
                                       "results", "keyed"));
  EXPECT_EQ(data["settings"]["world_size"], 8);
  EXPECT_EQ(data["peer"], "PyTorch 2.6.0 (python3)");
  EXPECT_TRUE(data["not_available"].is_null());
  ASSERT_EQ(data["results"].size(), 1u);
  EXPECT_EQ(data["results"][0]["dataset_size"], 1'281'167);
  EXPECT_EQ(data["results"][0]["rounds"], 3);
  const Value& torch = data["results"][0]["draws"][0];
  EXPECT_EQ(torch["subject"], "torch");
  EXPECT_EQ(torch["count"], 160'146);
  EXPECT_EQ(torch["crc32"], 4'000'000'000u);
  EXPECT_EQ(torch["median"], 0.004);
  EXPECT_EQ(torch["min"], 0.003);
  EXPECT_EQ(torch["max"], 0.005);
  EXPECT_EQ(torch["seconds"], Value(std::vector<double>{0.005, 0.003, 0.004}));
  EXPECT_EQ(torch["indices_per_second"], 160'146 / 0.004);
  EXPECT_EQ(torch["ratio_table"], 0.002 / 0.004);
  EXPECT_EQ(torch["ratio_torch"], 0.1 / 0.004);
  EXPECT_EQ(data["keyed"]["dataset_size"], 1'000'000'000'000);
  EXPECT_EQ(data["keyed"]["indices_per_second"]["median"], 80e6);
  EXPECT_EQ(data["keyed"]["seconds_per_index"], 50e-9);
  EXPECT_EQ(data["keyed"]["memory_bytes"], 256 << 10);
  ASSERT_THAT(document.bars, SizeIs(4));
}

TEST(SamplerDocumentTest, IsNullWhereThereIsNothing) {
  SamplerReport report = ExampleReport();
  report.peer.clear();
  report.missing = "no \"python\" \xff";
  report.keyed.reset();
  const Value data = SamplerDocument(report).data;
  EXPECT_TRUE(data["peer"].is_null());
  EXPECT_TRUE(data["keyed"].is_null());
  EXPECT_EQ(data["not_available"], report.missing);
  const Value& table = data["results"][0]["draws"][3];
  for (const char* key :
       {"count", "crc32", "indices_per_second", "ratio_table", "ratio_torch"}) {
    EXPECT_TRUE(table[key].is_null()) << key;
  }
}

constexpr char kGolden[] =
    R"(one epoch's indices of n samples, for rank 3 of 8, shuffled, on one thread
Example 9000, 2 cores, 16 GiB, Linux 6.1; 2024-05-31T16:20:00Z
commit 0123456789abcdef0123456789abcdef01234567
bazel run //benchmarks:sampler
PyTorch 2.6.0 (python3)

                n what      rounds   median ms      min ms      max ms    Mindex/s  /table  /torch
        1,281,167 torch          3       4.000       3.000       5.000        40.0    0.50    25.0
                  paddle         3       8.000       8.000       9.000        20.0    0.25    12.5
                  PyTorch        3       100.0       90.00       200.0        1.60       -       -
                  table          3       2.000       1.000       2.000           -       -       -
1,000,000,000,000 keyed    80.0 Mindex/s (70.0 to 90.0) in blocks of 1024, 50 ns for one, 0.25 MiB

median, min, max: times of a draw over the rounds, from a new epoch to a list of int64. Mindex/s:
this rank's indices / median, in millions. table: n updates of 4 bytes at random places of a table
of n, which do not depend on one another: the least time of a shuffle of a table. /table, /torch:
the median of table, or of PyTorch, over this line's: above 1, this line is faster.
PyTorch's indices were the same as torch's in every round.

bar                                   goal                                 measured
torch at n = 1,281,167 over PyTorch   at least 20 times as fast            25.0: met
torch at n = 100,000,000 over PyTorch at least 10 times as fast            not measured
keyed at n = 10^12                    at least 50 million indices a second 80.0: met
keyed at n = 10^12                    at most 1 MiB of memory              0.25: met
)";

TEST(SamplerDocumentTest, LooksLikeThisAndGrowsUpToIt) {
  SamplerReport report = ExampleReport();
  EXPECT_EQ(report::TerminalText(SamplerDocument(report)), kGolden);
  // The text grows as sizes are measured.
  report.keyed.reset();
  for (; !report.sizes.empty(); report.sizes.pop_back()) {
    EXPECT_THAT(kGolden, StartsWith(report::TerminalText(
                             SamplerDocument(report, /*finished=*/false))));
  }
}

TEST(SamplerDocumentTest, SaysWhyPyTorchIsMissing) {
  SamplerReport report = ExampleReport();
  report.peer.clear();
  report.missing = "python3: No module named 'torch'";
  std::erase_if(report.sizes[0].rows, [](const DrawRow& row) {
    return row.subject == DrawSubject::kPyTorch;
  });
  EXPECT_THAT(
      report::TerminalText(SamplerDocument(report)),
      AllOf(HasSubstr("\nPyTorch: not available: python3: No module named "
                      "'torch'\n"),
            Not(HasSubstr("in every round."))));
}

TEST(SamplerDocumentTest, FitsItsColumns) {
  SamplerReport report = ExampleReport();
  report.origin.machine.cpu = "A CPU with a name that is longer than most are";
  for (DrawRow& row : report.sizes[0].rows) {
    row.median = row.min = row.max = 99999;
    row.indices_per_second = 99999e6;
  }
  report.sizes[0].size = 2'000'000'000;
  report.sizes[0].rounds = 100'000;
  report.keyed = DeriveKeyed({999e6}, {999e-9}, int64_t{99} << 20);
  report.missing = "python3: " + std::string(80, 'y');
  ExpectNarrow(report::TerminalText(SamplerDocument(report)));
}

}  // namespace
}  // namespace lockstep::benchmarks
