// Tests where reports are written, bars that are not met, and the machine's
// load.
#include "benchmarks/harness/command.h"

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"
#include "report/write_html.h"

ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(std::string, output_dir);
ABSL_DECLARE_FLAG(bool, require_bars);

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::StartsWith;

report::Document Example() {
  return {.name = "lockstep.example",
          .origin = ExampleOrigin("example"),
          .bars = {{.what = "met", .needed = 1, .value = 2},
                   {.what = "not measured", .needed = 1}}};
}

absl::Status Write(const report::Document& document,
                   const std::string& folder = "") {
  const absl::StatusOr<ReportOutput> output =
      ReportOutput::Create("example", folder);
  return output.ok() ? output->Write(document) : output.status();
}

// CPUs in the columns user, nice, system, idle, iowait, irq, softirq, steal,
// guest.
constexpr char kProcStat[] =
    "cpu  9 9 9 9 9 9 9 9 9 0\n"
    "cpu0 1 2 3 40 5 6 7 8 9 0\n"
    "cpu1 1000 0 0 0 0 0 0 0 0 0\n"
    "cpu10 100 0 0 200 0 0 0 0\n"
    "intr 1 2 3\n";

TEST(ParseCpuTicksTest, AddsUpTheCpusThatAreAskedFor) {
  const std::optional<CpuTicks> ticks =
      ParseCpuTicks(kProcStat, std::vector<int>{0, 10});
  ASSERT_TRUE(ticks.has_value());
  EXPECT_EQ(ticks->busy, 1 + 2 + 3 + 8 + 100);
  EXPECT_EQ(ticks->total, 1 + 2 + 3 + 40 + 5 + 6 + 7 + 8 + 300);
  EXPECT_FALSE(ParseCpuTicks(kProcStat, std::vector<int>{0, 2}).has_value());
  EXPECT_FALSE(ParseCpuTicks(kProcStat, {}).has_value());
  EXPECT_FALSE(ParseCpuTicks("cpu0 1 2 3\n", std::vector<int>{0}).has_value());
  EXPECT_FALSE(
      ParseCpuTicks("cpu0 1 2 3 x 5 6 7 8\n", std::vector<int>{0}).has_value());
}

// To a meter that knows only an idle process, a busy child is another program.
TEST(LoadMeterTest, TellsTheBenchmarksOwnTimeFromThatOfOthers) {
  constexpr int64_t kTicks = 60;
  Subprocess idle = Subprocess::Start({"sleep", "1000"}).value();
  const LoadMeter own;
  const LoadMeter others(std::vector<pid_t>{idle.pid()});
  EXPECT_EQ(own.OthersShare(), std::nullopt);  // Too soon to measure.
  const double start = SteadySeconds();
  Subprocess busy =
      Subprocess::Start({"sh", "-c", "while :; do :; done"}).value();
  const pid_t roots[] = {busy.pid()};
  while (CpuTicksOfTrees(roots) < kTicks || SteadySeconds() - start < 1) {
    ASSERT_LT(SteadySeconds() - start, 100);
    poll(nullptr, 0, 10);
  }
  const std::optional<double> share = others.OthersShare();
  const std::optional<double> rest = own.OthersShare();
  ASSERT_TRUE(share.has_value() && rest.has_value());
  const double ticks = (SteadySeconds() - start) * 100 *
                       static_cast<double>(AffinityCpus().size());
  // Ticks are samples; a tenth of them may be missed.
  EXPECT_GE(*share, 0.9 * kTicks / ticks);
  EXPECT_LE(*rest, *share - 0.7 * kTicks / ticks);
  EXPECT_GE(*rest, 0);
  EXPECT_LE(*share, 1);
}

TEST(AddLoadTest, LeavesNoBarJudgedOnABusyMachine) {
  report::Document document = {.bars = {{.what = "speed", .value = 1}}};
  AddLoad(0.01, document);
  AddLoad(std::nullopt, document);
  EXPECT_TRUE(document.bars[0].judged);
  EXPECT_THAT(document.remarks, SizeIs(0));
  EXPECT_EQ(document.origin.others_share, std::nullopt);
  AddLoad(0.43, document);
  EXPECT_FALSE(document.bars[0].judged);
  EXPECT_EQ(document.origin.others_share, 0.43);
  EXPECT_THAT(document.remarks,
              ElementsAre("The machine was not quiet: other programs took 43% "
                          "of the cores' time. The figures include their "
                          "effect, and no bar is judged."));
}

TEST(ReportOutputTest, WritesEveryFormToTheFolder) {
  const report::Document document = Example();
  ASSERT_THAT(Write(document, TestPath("")), IsOk());
  const std::string path = TestPath("") + "/example";
  EXPECT_THAT(ReadFile(path + ".json"),
              IsOkAndHolds(report::JsonText(document)));
  EXPECT_THAT(ReadFile(path + ".html"),
              IsOkAndHolds(report::HtmlPage(document)));
  EXPECT_THAT(ReadFile(path + ".md"),
              IsOkAndHolds(report::MarkdownPage(document)));
}

TEST(ReportOutputTest, GoesWhereTheFlagsSay) {
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_output_dir, TestPath("") + "/chosen");
  absl::SetFlag(&FLAGS_json, TestPath("") + "/other.json");
  std::filesystem::create_directories(TestPath(""));
  ASSERT_THAT(Write(Example(), TestPath("") + "/default"), IsOk());
  EXPECT_TRUE(std::filesystem::exists(TestPath("") + "/chosen/example.json"));
  EXPECT_TRUE(std::filesystem::exists(TestPath("") + "/other.json"));
  EXPECT_FALSE(std::filesystem::exists(TestPath("") + "/default"));
}

TEST(ReportOutputTest, SaysBeforeTheRunWhatCannotBeWritten) {
  const absl::FlagSaver saver;
  EXPECT_THAT(ReportOutput::Create("example", "/dev/null/out").status(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       StartsWith("--output_dir: cannot write to")));
  absl::SetFlag(&FLAGS_json, "/absent/x.json");
  EXPECT_THAT(ReportOutput::Create("example", "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--json: cannot write to")));
}

TEST(ReportOutputTest, RequiresOfBarsThatTheyAreMetIfAsked) {
  const absl::FlagSaver saver;
  report::Document document = Example();
  document.bars.push_back({.what = "missed", .needed = 1, .value = 0.5});
  EXPECT_THAT(Write(document), IsOk());
  absl::SetFlag(&FLAGS_require_bars, true);
  EXPECT_THAT(Write(Example()), IsOk());
  EXPECT_THAT(Write(document), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "missed, at least 1: 0.50: NOT met"));
  document.bars.back().judged = false;
  EXPECT_THAT(Write(document), IsOk());
}

TEST(OutputFlagsTest, NameTheFilesAndTheFolder) {
  Usage usage;
  usage.sections = {{"", kOutputFlags}};
  usage.words = OutputWords("example", "lockstep-example");
  EXPECT_THAT(UsageText(usage), IsOkAndHolds(R"(
  --output_dir=DIR         write example.json, example.html, which opens
                           offline, and example.md to this folder; default:
                           lockstep-example in the current folder
  --json=FILE              also write the JSON to this file
  --require_bars=false     exit with status 1 if a bar is measured and not met

)"));
}

}  // namespace
}  // namespace lockstep::benchmarks
