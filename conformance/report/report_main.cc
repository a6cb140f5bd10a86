// The command `report`: summarises a run of the conformance tests.
#include <dnnl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "conformance/report/claims.h"
#include "conformance/report/conformance_document.h"
#include "conformance/report/conformance_report.h"
#include "conformance/report/test_logs.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(
    std::string, testlogs, "",
    "the folder in which Bazel keeps the results of tests; the results in "
    "DIR/conformance are read, and those of tests that need a GPU. "
    "Default: bazel-testlogs in the workspace, or without `bazel run` in "
    "the current folder");
ABSL_FLAG(std::string, output_dir, "lockstep-conformance",
          "write to this folder; default: lockstep-conformance in the current "
          "folder");
ABSL_FLAG(
    bool, require_all, false,
    "exit with status 1 also if a claim holds only in part or was not run; "
    "tests that were skipped for lack of a GPU do not count");

namespace lockstep::conformance {
namespace {

Usage ReportUsage() {
  return {
      .command = "report",
      .introduction = R"(report [FLAGS]

Reports the results of the conformance tests when they were last run, by
  bazel test --keep_going //conformance/...
Failures come first. Then each claim is shown on each backend, in each type, at
each number of ranks, with the largest error over the allowed error. Then come
the tests that were skipped, and why, and those that were not run, that are
older than the checked-out commit, or that were built differently. Prints a
table in Markdown, and writes conformance.md, conformance.json and
conformance.html, which opens offline.
)",
      .sections = {{"", "testlogs=DIR output_dir=DIR require_all"}},
      .ending =
          R"(Exit status: 0 if no test failed, even if some were not run, which the first
line says; 1 if a test failed, or for another error; 2 for a wrong flag.
)"};
}

// Returns the first line that a command prints; "" if it does not exit with 0.
std::string FirstLine(const std::vector<std::string>& command) {
  const SubprocessResult result = RunSubprocess(command, absl::Seconds(10));
  if (result.exit_status != 0) return "";
  return result.out.substr(0, result.out.find('\n'));
}

// Returns the version of the `bazel` on the path, which is the one that runs
// `bazel run`; "" if it is unknown. The query starts no server. Debian's bazel
// does not know its version, so its package is asked.
std::string Bazel() {
  const std::string line = FirstLine({"bazel", "--version"});
  absl::string_view version = line;
  absl::ConsumePrefix(&version, "bazel ");
  if (version != "no_version") return std::string(version);
  return FirstLine(
      {"dpkg-query", "--show", "--showformat=${Version}", "bazel-bootstrap"});
}

// Returns the components that this program was built with or runs on, with
// their versions. Bazel is included only if `bazel --version` answers.
std::vector<std::pair<std::string, std::string>> Versions() {
#ifdef __clang__
  const char* const compiler = "";  // Its version includes its name.
#else
  const char* const compiler = "GCC ";
#endif
#ifdef ABSL_LTS_RELEASE_VERSION
  const std::string abseil = absl::StrCat(ABSL_LTS_RELEASE_VERSION);
#else
  const std::string abseil = "between releases";
#endif
  const dnnl_version_t& onednn = *dnnl_version();
  std::vector<std::pair<std::string, std::string>> versions = {
      {"Compiler", absl::StrCat(compiler, __VERSION__)},
      {"abseil", abseil},
      {"oneDNN",
       absl::StrCat(onednn.major, ".", onednn.minor, ".", onednn.patch)}};
  const std::string bazel = Bazel();
  if (!bazel.empty()) versions.emplace_back("Bazel", bazel);
  return versions;
}

// Returns when the commit was made that is checked out where `bazel run` was
// called; nothing if git gives no answer.
std::optional<absl::Time> CommitTime() {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (workspace == nullptr) return std::nullopt;
  const std::string line = FirstLine(
      {"git", "-C", workspace, "show", "--no-patch", "--format=%ct", "HEAD"});
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(line, &seconds)) return std::nullopt;
  return absl::FromUnixSeconds(seconds);
}

std::string TestLogsFromFlags() {
  const std::string& given = absl::GetFlag(FLAGS_testlogs);
  if (!given.empty()) return ResolveUserPath(given);
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  return workspace != nullptr ? absl::StrCat(workspace, "/bazel-testlogs")
                              : ResolveUserPath("bazel-testlogs");
}

// Returns the exit status: kFailure if something failed or, with --require_all,
// was not run.
absl::StatusOr<int> Run(std::span<char* const> argv) {
  const std::string folder = ResolveUserPath(absl::GetFlag(FLAGS_output_dir));
  LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(folder));
  const std::string testlogs = TestLogsFromFlags();
  std::vector<std::string> expected;
  for (const KnownClaim& claim : KnownClaims()) {
    for (const ExpectedRow& row : claim.rows) expected.push_back(row.test);
  }
  const auto targets = ReadTestLogs(testlogs, expected);
  if (!targets.ok()) {
    return absl::Status(
        targets.status().code(),
        absl::StrCat(targets.status().message(),
                     "; run bazel test //conformance/... first, or name "
                     "another folder with --testlogs"));
  }
  ConformanceReport report = MakeReport(*targets, KnownClaims());
  report.testlogs = testlogs;
  report.origin = report::OriginOf("//conformance:report", argv);
  if (const auto committed = CommitTime()) MarkOlder(*committed, report);
  report.versions = Versions();
  const report::Document document = ConformanceDocument(report);
  const report::Document page = ConformancePage(report);
  Print(report::MarkdownPage(document) + "\n");
  LOCKSTEP_RETURN_IF_ERROR(WriteReport(folder, "conformance", document, &page));
  const ReportTotals totals = TotalsOf(report);
  const bool all = totals.claims_in_part + totals.claims_not_run == 0;
  const bool passed =
      report.failures.empty() && (all || !absl::GetFlag(FLAGS_require_all));
  return passed ? 0 : kFailure;
}

}  // namespace
}  // namespace lockstep::conformance

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::conformance::ReportUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::conformance::Run);
}
