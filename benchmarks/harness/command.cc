#include "benchmarks/harness/command.h"

#include <span>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/command.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "report/document.h"
#include "report/machine.h"
#include "report/output_files.h"
#include "report/terminal.h"
#include "report/write.h"

ABSL_FLAG(std::string, json, "", "also writes the numbers to this file");
ABSL_FLAG(std::string, output_dir, "", "the folder of the report");
ABSL_FLAG(bool, require_bars, false, "whether a missed bar is a failure");

namespace lockstep::benchmarks {
namespace {

constexpr int kUsageColumns = 80;

absl::Status CheckBars(const report::Document& document) {
  if (!absl::GetFlag(FLAGS_require_bars)) return absl::OkStatus();
  for (const report::Bar& bar : document.bars) {
    if (!bar.value.has_value() || bar.Met()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(bar.what, ", ", bar.Goal(), ": ", bar.Outcome()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string OutputUsage(const std::string& name, const std::string& folder) {
  const std::string files = absl::StrCat(
      "where to write ", name, ".json, ", name, ".html, which ",
      "opens offline, and ", name, ".md; default: ",
      folder.empty() ? "nowhere" : folder + " in the current folder");
  constexpr int kMargin = 27;
  std::string text = WrapText(files, kUsageColumns - kMargin);
  text.pop_back();  // Its line end.
  return absl::StrCat(
      "  --output_dir=DIR         ",
      absl::StrReplaceAll(text, {{"\n", "\n" + std::string(kMargin, ' ')}}),
      "\n  --json=FILE              also writes the JSON there\n"
      "  --require_bars=false     true: a bar that is not met is a failure\n");
}

report::Origin OriginOf(const std::string& name, std::span<char* const> argv) {
  return {.machine = DescribeMachine(),
          .command = CommandText(absl::StrCat("//benchmarks:", name), argv),
          .commit = CommitText(),
          .created = TimeStamp()};
}

absl::StatusOr<ReportOutput> ReportOutput::Create(const std::string& name,
                                                  const std::string& folder) {
  const std::string json = absl::GetFlag(FLAGS_json);
  LOCKSTEP_RETURN_IF_ERROR(CheckJsonPath(json));
  std::string chosen = absl::GetFlag(FLAGS_output_dir);
  if (chosen.empty()) chosen = folder;
  if (!chosen.empty()) {
    chosen = UserPath(chosen);
    LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(chosen));
  }
  return ReportOutput(name, json, chosen);
}

absl::Status ReportOutput::Write(const report::Document& document) const {
  const std::string json = report::JsonText(document);
  LOCKSTEP_RETURN_IF_ERROR(WriteJsonFile(json_, json));
  if (!folder_.empty()) {
    const std::string path = absl::StrCat(folder_, "/", name_);
    LOCKSTEP_RETURN_IF_ERROR(WriteReportFile(path + ".json", json));
    LOCKSTEP_RETURN_IF_ERROR(
        WriteReportFile(path + ".html", report::HtmlPage(document)));
    LOCKSTEP_RETURN_IF_ERROR(
        WriteReportFile(path + ".md", report::MarkdownPage(document)));
  }
  return CheckBars(document);
}

}  // namespace lockstep::benchmarks
