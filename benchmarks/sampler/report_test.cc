// The formulas, on numbers that can be worked out by hand.
#include "benchmarks/sampler/report.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/sampler/example.h"
#include "benchmarks/sampler/json.h"
#include "benchmarks/sampler/measure.h"
#include "benchmarks/sampler/plan.h"
#include "benchmarks/sampler/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::DoubleEq;
using ::testing::Eq;
using ::testing::Optional;
using ::testing::SizeIs;

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
}

TEST(DeriveRowsTest, ComparesOnlyOurOwn) {
  const DrawRows rows = DeriveRows(ExampleEpoch());
  EXPECT_TRUE(rows.rows[2].indices_per_second.has_value());
  EXPECT_FALSE(rows.rows[3].indices_per_second.has_value());
  for (const int other : {2, 3}) {
    EXPECT_FALSE(rows.rows[other].table_ratio.has_value());
    EXPECT_FALSE(rows.rows[other].torch_ratio.has_value());
  }
}

TEST(DeriveRowsTest, HasNoRatioWithoutPyTorch) {
  MeasuredEpoch measured = ExampleEpoch();
  measured.draws.erase(measured.draws.begin() + 2);
  const DrawRows rows = DeriveRows(measured);
  EXPECT_TRUE(rows.rows[0].table_ratio.has_value());
  EXPECT_FALSE(rows.rows[0].torch_ratio.has_value());
}

TEST(BarsTest, HoldValuesAgainstGoals) {
  const std::vector<Bar> bars = BarsOf(ExampleReport());
  ASSERT_THAT(bars, SizeIs(4));
  EXPECT_THAT(bars[0].value, Optional(DoubleEq(25)));
  EXPECT_FALSE(bars[1].value.has_value());  // That size was not measured.
  EXPECT_THAT(bars[2].value, Optional(Eq(80)));
  EXPECT_THAT(bars[3].value, Optional(Eq(0.25)));
  EXPECT_TRUE(bars[0].Met());
  EXPECT_FALSE(bars[1].Met());
  EXPECT_TRUE(bars[2].Met());
  EXPECT_TRUE(bars[3].Met());
}

TEST(BarsTest, AreMissedBelowAndAbove) {
  SamplerReport report = ExampleReport();
  report.sizes[0].rows[0].torch_ratio = 19.9;
  report.keyed = DeriveKeyed({49e6}, {50e-9}, (1 << 20) + 1);
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
  report.keyed.reset();
  for (const Bar& bar : BarsOf(report)) EXPECT_FALSE(bar.Met()) << bar.what;
}

// The keys that README.md lists.

using Json = nlohmann::json;

TEST(SamplerJsonTest, HoldsEveryNumber) {
  const Json json = Json::parse(FormatSamplerJson(ExampleReport()));
  EXPECT_EQ(json["report"], "lockstep.sampler");
  EXPECT_EQ(json["schema_version"], kSamplerSchemaVersion);
  EXPECT_EQ(json["machine"]["cores"], 2);
  EXPECT_EQ(json["settings"]["world_size"], 8);
  EXPECT_EQ(json["peer"], "PyTorch 2.6.0 (python3)");
  EXPECT_TRUE(json["not_available"].is_null());
  ASSERT_EQ(json["results"].size(), 1u);
  EXPECT_EQ(json["results"][0]["dataset_size"], 1'281'167);
  EXPECT_EQ(json["results"][0]["rounds"], 3);
  const Json& torch = json["results"][0]["draws"][0];
  EXPECT_EQ(torch["subject"], "torch");
  EXPECT_EQ(torch["count"], 160'146);
  EXPECT_EQ(torch["crc32"], 4'000'000'000u);
  EXPECT_EQ(torch["median"], 0.004);
  EXPECT_EQ(torch["min"], 0.003);
  EXPECT_EQ(torch["max"], 0.005);
  EXPECT_EQ(torch["seconds"], Json({0.005, 0.003, 0.004}));
  EXPECT_DOUBLE_EQ(torch["indices_per_second"].get<double>(), 160'146 / 0.004);
  EXPECT_DOUBLE_EQ(torch["ratio_table"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(torch["ratio_torch"].get<double>(), 25);
  EXPECT_EQ(json["keyed"]["dataset_size"], 1'000'000'000'000);
  EXPECT_EQ(json["keyed"]["indices_per_second"]["median"], 80e6);
  EXPECT_EQ(json["keyed"]["seconds_per_index"], 50e-9);
  EXPECT_EQ(json["keyed"]["memory_bytes"], 256 << 10);
}

TEST(SamplerJsonTest, SaysWhichBarsAreMet) {
  const Json json = Json::parse(FormatSamplerJson(ExampleReport()));
  ASSERT_EQ(json["bars"].size(), 4u);
  EXPECT_EQ(json["bars"][0]["at_least"], 20);
  EXPECT_EQ(json["bars"][0]["met"], true);
  EXPECT_TRUE(json["bars"][1]["value"].is_null());
  EXPECT_TRUE(json["bars"][1]["met"].is_null());
  EXPECT_EQ(json["bars"][3]["at_most"], 1);
  EXPECT_EQ(json["bars"][3]["value"], 0.25);
}

TEST(SamplerJsonTest, IsNullWhereThereIsNothing) {
  SamplerReport report = ExampleReport();
  report.commit.clear();
  report.peer.clear();
  report.missing = "no \"python\" \xff";
  report.keyed.reset();
  const Json json = Json::parse(FormatSamplerJson(report));
  EXPECT_TRUE(json["commit"].is_null());
  EXPECT_TRUE(json["peer"].is_null());
  EXPECT_TRUE(json["keyed"].is_null());
  EXPECT_TRUE(json["not_available"].is_string());
  const Json& table = json["results"][0]["draws"][3];
  for (const char* key :
       {"count", "crc32", "indices_per_second", "ratio_table", "ratio_torch"}) {
    EXPECT_TRUE(table[key].is_null()) << key;
  }
}

// What a reader sees.

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string FormatAll(const SamplerReport& report) {
  std::string text = FormatSamplerHeading(report);
  for (const DrawRows& rows : report.sizes) {
    absl::StrAppend(&text, FormatDrawRows(rows));
  }
  absl::StrAppend(&text, FormatKeyedRow(*report.keyed));
  return absl::StrCat(text, FormatSamplerLegend(report));
}

TEST(SamplerTableTest, ShowsEveryNumberUnderItsName) {
  const SamplerReport report = ExampleReport();
  EXPECT_EQ(
      FormatDrawRows(report.sizes[0]),
      "        1,281,167  torch         3       4.000       3.000       5.000"
      "        40.0    0.50    25.0\n"
      "                   paddle        3       8.000       8.000       9.000"
      "        20.0    0.25    12.5\n"
      "                   PyTorch       3       100.0        90.0       200.0"
      "        1.60       -       -\n"
      "                   table         3       2.000       1.000       2.000"
      "           -       -       -\n");
  EXPECT_THAT(
      FormatSamplerHeading(report),
      AllOf(HasSubstr("for rank 3 of 8"), HasSubstr("PyTorch 2.6.0 (python3)"),
            HasSubstr("commit 0123456789abcdef\n"),
            HasSubstr("                n  what     rounds   median ms      min "
                      "ms      max ms    Mindex/s  /table  /torch\n")));
  EXPECT_EQ(FormatKeyedRow(*report.keyed),
            "1,000,000,000,000  keyed   80.0 Mindex/s (70.0 to 90.0) in blocks "
            "of 1024, 50 ns for one, 0.25 MiB\n");
}

TEST(SamplerTableTest, SaysWhichBarsAreMet) {
  SamplerReport report = ExampleReport();
  EXPECT_THAT(
      FormatSamplerLegend(report),
      AllOf(HasSubstr("bar: torch at n = 1,281,167 over PyTorch, at least 20 "
                      "times as fast: 25.0: met\n"),
            HasSubstr("times as fast: not measured\n"),
            HasSubstr("indices a second: 80.0: met\n"),
            HasSubstr("at most 1 MiB of memory: 0.25: met\n"),
            HasSubstr("in every round."), Not(HasSubstr("not available"))));
  report.keyed->memory_bytes = 8 << 20;
  EXPECT_THAT(FormatSamplerLegend(report),
              HasSubstr("at most 1 MiB of memory: 8.00: NOT met\n"));
}

TEST(SamplerTableTest, SaysWhyPyTorchIsMissing) {
  SamplerReport report = ExampleReport();
  report.peer.clear();
  report.missing = "python3: No module named 'torch'";
  std::erase_if(report.sizes[0].rows, [](const DrawRow& row) {
    return row.subject == DrawSubject::kPyTorch;
  });
  EXPECT_THAT(
      FormatAll(report),
      AllOf(HasSubstr("\nPyTorch: not available: python3: No module named "
                      "'torch'\n"),
            Not(HasSubstr("in every round."))));
}

TEST(SamplerTableTest, FitsItsColumns) {
  SamplerReport report = ExampleReport();
  report.machine.cpu = "A CPU with a name that is longer than most are";
  for (DrawRow& row : report.sizes[0].rows) {
    row.median = row.min = row.max = 99999;
    row.indices_per_second = 99999e6;
  }
  report.sizes[0].size = 2'000'000'000;
  report.sizes[0].rounds = 100'000;
  report.keyed = DeriveKeyed({999e6}, {999e-9}, int64_t{99} << 20);
  report.missing = "python3: " + std::string(80, 'y');
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(FormatAll(report), '\n'))) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(FormatCountTest, GroupsDigitsByThree) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1281167), "1,281,167");
  EXPECT_EQ(FormatCount(100000), "100,000");
  EXPECT_EQ(FormatCount(std::numeric_limits<int64_t>::max()),
            "9,223,372,036,854,775,807");
}

}  // namespace
}  // namespace lockstep::benchmarks
