// What a reader sees.
#include "benchmarks/sampler_table.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/sampler_example.h"
#include "benchmarks/sampler_plan.h"
#include "benchmarks/sampler_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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
}  // namespace lockstep
