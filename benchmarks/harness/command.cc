#include "benchmarks/harness/command.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, output_dir, "",
          "write {name}.json, {name}.html, which opens offline, and {name}.md "
          "to this folder; default: {folder}");
ABSL_FLAG(std::string, json, "", "also write the JSON to this file");
ABSL_FLAG(bool, require_bars, false,
          "exit with status 1 if a bar is measured and not met");

namespace lockstep::benchmarks {
namespace {

absl::Status CheckBars(const report::Document& document) {
  if (!absl::GetFlag(FLAGS_require_bars)) return absl::OkStatus();
  for (const report::Bar& bar : document.bars) {
    if (!bar.value.has_value() || !bar.judged || bar.Met()) continue;
    return absl::FailedPreconditionError(bar.Text());
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> OutputWords(
    const std::string& name, const std::string& folder) {
  return {{"{name}", name},
          {"{folder}",
           folder.empty() ? "none" : folder + " in the current folder"}};
}

absl::StatusOr<ReportOutput> ReportOutput::Create(const std::string& name,
                                                  const std::string& folder) {
  const std::string json = absl::GetFlag(FLAGS_json);
  LOCKSTEP_RETURN_IF_ERROR(CheckJsonPath(json));
  std::string chosen = absl::GetFlag(FLAGS_output_dir);
  if (chosen.empty()) chosen = folder;
  if (!chosen.empty()) {
    chosen = ResolveUserPath(chosen);
    LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(chosen));
  }
  return ReportOutput{
      .load = LoadMeter(), .name = name, .json = json, .folder = chosen};
}

absl::Status ReportOutput::Write(const report::Document& document) const {
  LOCKSTEP_RETURN_IF_ERROR(WriteJsonFile(json, report::JsonText(document)));
  if (!folder.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(WriteReport(folder, name, document));
  }
  return CheckBars(document);
}

}  // namespace lockstep::benchmarks
