// Where reports go, and what becomes of a bar that is not met.
#include "benchmarks/harness/command.h"

#include <filesystem>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"

ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(std::string, output_dir);
ABSL_DECLARE_FLAG(bool, require_bars);

namespace lockstep::benchmarks {
namespace {

using ::testing::StartsWith;

// Of this test's own.
std::string Folder() {
  return absl::StrCat(
      testing::TempDir(), "/command-",
      testing::UnitTest::GetInstance()->current_test_info()->name());
}

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

TEST(ReportOutputTest, WritesEveryFormToTheFolder) {
  const report::Document document = Example();
  ASSERT_THAT(Write(document, Folder()), IsOk());
  const std::string path = Folder() + "/example";
  EXPECT_THAT(ReadFile(path + ".json"),
              IsOkAndHolds(report::JsonText(document)));
  EXPECT_THAT(ReadFile(path + ".html"),
              IsOkAndHolds(report::HtmlPage(document)));
  EXPECT_THAT(ReadFile(path + ".md"),
              IsOkAndHolds(report::MarkdownPage(document)));
}

TEST(ReportOutputTest, GoesWhereTheFlagsSay) {
  const absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_output_dir, Folder() + "/chosen");
  absl::SetFlag(&FLAGS_json, Folder() + "/other.json");
  std::filesystem::create_directories(Folder());
  ASSERT_THAT(Write(Example(), Folder() + "/default"), IsOk());
  EXPECT_TRUE(std::filesystem::exists(Folder() + "/chosen/example.json"));
  EXPECT_TRUE(std::filesystem::exists(Folder() + "/other.json"));
  EXPECT_FALSE(std::filesystem::exists(Folder() + "/default"));
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
}

TEST(OutputFlagsTest, NameTheFilesAndTheFolder) {
  Usage usage;
  usage.sections = {{"", kOutputFlags}};
  usage.words = OutputWords("example", "lockstep-example");
  EXPECT_THAT(UsageText(usage), IsOkAndHolds(R"(
  --output_dir=DIR         where to write example.json, example.html, which
                           opens offline, and example.md; default:
                           lockstep-example in the current folder
  --json=FILE              also writes the JSON there
  --require_bars=false     true: a bar that is not met is a failure

)"));
}

}  // namespace
}  // namespace lockstep::benchmarks
