// The command `report`: what a run of the conformance tests showed.
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/command.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "conformance/report/claims.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/test_logs.h"
#include "conformance/report/versions.h"
#include "report/document.h"
#include "report/machine.h"
#include "report/output_files.h"
#include "report/terminal.h"
#include "report/write.h"

ABSL_FLAG(std::string, testlogs, "", "see kUsage");
ABSL_FLAG(std::string, output_dir, "lockstep-conformance", "see kUsage");
ABSL_FLAG(bool, require_all, false, "see kUsage");

namespace lockstep {
namespace {

constexpr char kName[] = "report";

constexpr char kUsage[] = R"(report [FLAGS]

Reports what the conformance tests showed when they were last run, by
  bazel test --keep_going //conformance/...
Each claim, on each backend, at each number of ranks, in each type, with the
largest error over the allowed error; what failed, first; what was skipped, why,
and what was not run; what is older than the checked-out commit, and what was
built differently. Prints a table in Markdown; writes conformance.md,
conformance.json and conformance.html, which opens offline.

  --testlogs=DIR    where Bazel keeps the results of tests, of which those in
                    DIR/conformance are read, and those of tests that need a
                    GPU; default: bazel-testlogs in the workspace, or without
                    `bazel run` in the current folder
  --output_dir=DIR  where to write; default: lockstep-conformance in the
                    current folder
  --require_all     exit with 1 also if a claim holds in part only or was not
                    run; what was skipped for lack of a GPU does not count

Exit status: 0 if nothing failed, though some may not have run, which the first
line says; 1 if something failed, or for another error; 2 for a wrong flag.
)";

std::string TestLogsFromFlags() {
  const std::string& given = absl::GetFlag(FLAGS_testlogs);
  if (!given.empty()) return UserPath(given);
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  return workspace != nullptr ? absl::StrCat(workspace, "/bazel-testlogs")
                              : UserPath("bazel-testlogs");
}

absl::Status WriteReport(const ConformanceReport& report,
                         const std::string& folder) {
  const report::Document document = ConformanceDocument(report);
  const std::pair<const char*, std::string> kForms[] = {
      {".json", JsonText(document)},
      {".md", MarkdownPage(document)},
      {".html", HtmlPage(ConformancePage(report))}};
  Print(kForms[1].second + "\n");
  for (const auto& [end, text] : kForms) {
    const std::string path = absl::StrCat(folder, "/conformance", end);
    LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(path, text));
    Print(absl::StrCat("Wrote ", path, "\n"));
  }
  return absl::OkStatus();
}

std::vector<std::string> ExpectedTests() {
  std::vector<std::string> labels;
  for (const KnownClaim& claim : KnownClaims()) {
    for (const ExpectedRow& row : claim.rows) labels.push_back(row.test);
  }
  return labels;
}

// Whether nothing failed and, if that is asked for, everything was run.
absl::StatusOr<bool> Run(const std::string& command_text) {
  const std::string folder = UserPath(absl::GetFlag(FLAGS_output_dir));
  LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(folder));
  const std::string testlogs = TestLogsFromFlags();
  const auto targets = ReadTestLogs(testlogs, "conformance", ExpectedTests());
  if (!targets.ok()) {
    return absl::Status(
        targets.status().code(),
        absl::StrCat(std::string(targets.status().message()),
                     "; run bazel test //conformance/... first, or name "
                     "another folder with --testlogs"));
  }
  ConformanceReport report = MakeReport(*targets, KnownClaims());
  report.testlogs = testlogs;
  report.origin = {.machine = DescribeMachine(),
                   .command = command_text,
                   .commit = CommitText(),
                   .created = TimeStamp()};
  if (const auto committed = CommitTime()) MarkOlder(*committed, report);
  report.versions = Versions();
  LOCKSTEP_RETURN_IF_ERROR(WriteReport(report, folder));
  const ReportTotals totals = TotalsOf(report);
  const bool all = totals.claims_in_part + totals.claims_not_run == 0;
  return report.failures.empty() && (all || !absl::GetFlag(FLAGS_require_all));
}

int Main(std::span<char* const> argv) {
  const std::optional<int> ended = BeginCommand(kName, kUsage, argv);
  if (ended.has_value()) return *ended;
  const auto passed = Run(CommandText("//conformance:report", argv));
  if (!passed.ok()) return Fail(kName, passed.status());
  return *passed ? 0 : kFailure;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::Main({argv, static_cast<size_t>(argc)});
}
