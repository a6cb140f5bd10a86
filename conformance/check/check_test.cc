// Tests of the report (counts, cells, documented differences) and of the
// command `check`, on trainers of the suite that need no Python.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "conformance/check/check_report.h"
#include "conformance/check/judge/judge.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/document.h"
#include "report/write.h"
#include "report/write_html.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

Verdict VerdictOf(const std::string& name, Claim claim, Outcome outcome,
                  std::optional<double> error = {}) {
  return {.case_name = name,
          .claim = claim,
          .outcome = outcome,
          .error_over_allowed = error};
}

Verdict Failure(const std::string& name, Claim claim, Outcome outcome) {
  return {.case_name = name,
          .claim = claim,
          .outcome = outcome,
          .error_over_allowed = 12,
          .cause = Cause::kMeanOfMeans,
          .what = "W1 is off by 0.5.",
          .why = "Means are averaged.",
          .fix = "Weight them."};
}

// Four cases: one passes, one fails, one fails as documented, one is
// unsupported.
CheckReport Report() {
  CheckReport report;
  report.software = "Trainer 1.0";
  report.origin.command = "check --command=`x`";
  report.cases = {
      {.name = "even",
       .about = "Even.",
       .verdicts = {VerdictOf("even", Claim::kRun, Outcome::kPassed),
                    VerdictOf("even", Claim::kGradients, Outcome::kPassed,
                              0.25)},
       .seconds = 1.5},
      {.name = "uneven",
       .about = "Uneven.",
       .verdicts = {VerdictOf("uneven", Claim::kRun, Outcome::kPassed),
                    Failure("uneven", Claim::kGradients, Outcome::kFailed),
                    VerdictOf("uneven", Claim::kState, Outcome::kSkipped)}},
      {.name = "evaluation",
       .about = "Evaluated.",
       .verdicts = {Failure("evaluation", Claim::kEvaluation,
                            Outcome::kDocumented)}},
      {.name = "sync_bn",
       .about = "Batch norm.",
       .verdicts = {VerdictOf("sync_bn", Claim::kRun, Outcome::kSkipped)}}};
  report.cases[2].verdicts[0].cited = "its manual";
  report.cases[3].verdicts[0].what = "There is no batch norm.";
  return report;
}

TEST(CheckReportTest, HasACellForEachOutcome) {
  const CheckReport report = Report();
  EXPECT_EQ(CellOf(report.cases[0], Claim::kRun), "ok");
  EXPECT_EQ(CellOf(report.cases[0], Claim::kGradients), "0.25");
  EXPECT_EQ(CellOf(report.cases[0], Claim::kEvaluation), "-");
  EXPECT_EQ(CellOf(report.cases[1], Claim::kGradients), "FAIL");
  EXPECT_EQ(CellOf(report.cases[1], Claim::kState), "skip");
  EXPECT_EQ(CellOf(report.cases[2], Claim::kEvaluation), "docs");
}

// A case counts as its worst claim.
TEST(CheckReportTest, SaysWhatIsWrongAndHowToMendIt) {
  const std::string table = TerminalText(CheckDocument(Report()));
  EXPECT_THAT(table, HasSubstr("Trainer 1.0: 2 ranks against 1; 4 cases\n"));
  EXPECT_THAT(table, HasSubstr("\nuneven, gradients: failed (mean_of_means)\n"
                               "What: W1 is off by 0.5.\nWhy: Means are "
                               "averaged.\nFix: Weight them.\n"));
  EXPECT_THAT(table, HasSubstr("\nevaluation, evaluation: documented"));
  EXPECT_THAT(table, HasSubstr("\nDocumented: its manual\n"));
  EXPECT_THAT(table, HasSubstr("sync_bn, skipped: There is no batch norm.\n"));
  EXPECT_THAT(table, StartsWith("1 case holds, 1 fails, 1 differs as "
                                "documented, 1 skipped.\n"));
  // A claim that is not judged after a failure is not reported.
  EXPECT_THAT(table, Not(HasSubstr("uneven, skipped")));
}

// If the command cannot be found, all cases fail in the same way.
TEST(CheckReportTest, SaysOnceWhatIsTheSameInSeveralCases) {
  CheckReport report = Report();
  Verdict missing = Failure("even", Claim::kRun, Outcome::kFailed);
  missing.last_lines = {"[0] sh: no such trainer"};
  for (CaseReport& c : report.cases) {
    missing.case_name = c.name;
    c.verdicts = {missing};
  }
  const std::string table = TerminalText(CheckDocument(report));
  EXPECT_THAT(table, HasSubstr("\n4 cases (even, uneven, evaluation, sync_bn), "
                               "run: failed (mean_of_means)\nWhat: W1 "));
  const std::string line = "  [0] sh: no such trainer\n";
  ASSERT_THAT(table, HasSubstr(line));
  EXPECT_EQ(table.find(line), table.rfind(line));
  // A case with a different failure has its own finding.
  report.cases[3].verdicts[0].last_lines = {"[0] sh: another"};
  const std::string other = TerminalText(CheckDocument(report));
  EXPECT_THAT(other, AllOf(HasSubstr("\n3 cases (even, uneven, evaluation), "),
                           HasSubstr("\nsync_bn, run: failed"),
                           HasSubstr("  [0] sh: another\n")));
}

TEST(CheckReportTest, HasItsCommandsNameAndFindingsInFullSize) {
  const std::string page = HtmlPage(CheckDocument(Report()));
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep check</h1>\n<p class=\"verdict "
                              "bad\">1 case holds, 1 fails"));
  EXPECT_THAT(page, HasSubstr("<dt>Why</dt>\n<dd>Means are averaged.</dd>"));
  EXPECT_THAT(page, Not(HasSubstr("class=\"note\">Means")));
}

TEST(CheckReportTest, HasNoLineBeyondTheWidth) {
  CheckReport report = Report();
  report.cases[1].verdicts[1].what = std::string(30, 'x');
  for (int i = 0; i < 40; ++i) {
    report.cases[1].verdicts[1].what += " word" + std::to_string(i);
  }
  for (const absl::string_view line :
       absl::StrSplit(TerminalText(CheckDocument(report)), '\n')) {
    EXPECT_LE(line.size(), static_cast<size_t>(kTableColumns)) << line;
  }
}

TEST(CheckReportTest, HasEveryVerdict) {
  const report::Value json = CheckDocument(Report()).data;
  EXPECT_EQ(json["software"], "Trainer 1.0");
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["totals"]["failed"], 1);
  ASSERT_EQ(json["cases"].size(), 4u);
  const report::Value& verdict = json["cases"][1]["verdicts"][1];
  EXPECT_EQ(verdict["claim"], "gradients");
  EXPECT_EQ(verdict["outcome"], "failed");
  EXPECT_EQ(verdict["cause"], "mean_of_means");
  EXPECT_EQ(verdict["fix"], "Weight them.");
}

// 0.125 lies between two cells: every form must round it in the same direction.
TEST(CheckReportTest, ShowsTheSameCellsInEveryForm) {
  CheckReport report = Report();
  report.cases[0].verdicts[1].error_over_allowed = 0.125;
  const report::Document document = CheckDocument(report);
  EXPECT_EQ(document.data["cases"][0]["verdicts"][1]["cell"], "0.12");
  EXPECT_THAT(TerminalText(document), HasSubstr(" 0.12 "));
  EXPECT_THAT(MarkdownPage(document),
              HasSubstr("| even | ok | - | - | 0.12 | - | - | - | 1.5 |"));
  EXPECT_THAT(HtmlPage(document), HasSubstr(">0.12</td>"));
}

constexpr char kOne[] =
    R"([{"case": "evaluation", "claim": "evaluation",
         "cause": "evaluation_padded", "cited": "the manual"}])";

TEST(DocumentedTest, ReadsAFile) {
  const auto documented = ParseDocumented(kOne, "f.json");
  ASSERT_THAT(documented, IsOk());
  ASSERT_THAT(*documented, SizeIs(1));
  EXPECT_EQ((*documented)[0].case_name, "evaluation");
  EXPECT_EQ((*documented)[0].claim, Claim::kEvaluation);
  EXPECT_EQ((*documented)[0].cause, Cause::kEvaluationPadded);
  EXPECT_EQ((*documented)[0].cited, "the manual");
  const auto none = ParseDocumented("[]", "f.json");
  ASSERT_THAT(none, IsOk());
  EXPECT_THAT(*none, IsEmpty());
}

TEST(DocumentedTest, SaysWhatIsWrongWithAFile) {
  const auto expect_error = [](const std::string& text,
                               const std::string& says) {
    EXPECT_THAT(ParseDocumented(text, "f.json"),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(HasSubstr("f.json"), HasSubstr(says))))
        << text;
  };
  expect_error("", "");
  expect_error("{}", "not a JSON array");
  expect_error("[1]", "[0]");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "hangs"}])", "cited");
  expect_error(R"([{"case": "x", "claim": "x", "cause": "hangs",
                    "cited": "x"}])",
               "claim");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "x",
                    "cited": "x"}])",
               "cause");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "hangs",
                    "cited": "x", "more": 1}])",
               "more");
}

TEST(DocumentedTest, OnlyTheSameFailureIsDocumented) {
  const auto documented = ParseDocumented(kOne, "f.json");
  ASSERT_THAT(documented, IsOk());
  Verdict same = Failure("evaluation", Claim::kEvaluation, Outcome::kFailed);
  same.cause = Cause::kEvaluationPadded;
  std::vector<Verdict> verdicts(5, same);
  verdicts[1].case_name = "even";
  verdicts[2].claim = Claim::kSamples;
  verdicts[3].cause = Cause::kMetricsUnweighted;
  verdicts[4].outcome = Outcome::kPassed;
  ApplyDocumented(*documented, verdicts);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kDocumented);
  EXPECT_EQ(verdicts[0].cited, "the manual");
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(verdicts[i].outcome, Outcome::kFailed) << i;
    EXPECT_EQ(verdicts[i].cited, "") << i;
  }
  EXPECT_EQ(verdicts[4].outcome, Outcome::kPassed);
}

constexpr absl::Duration kDeadline = absl::Minutes(2);

SubprocessResult RunCheck(std::vector<std::string> flags,
                          const Environment& environment = {}) {
  flags.insert(flags.begin(), "conformance/check/check");
  return RunSubprocess(flags, kDeadline, {.environment = environment});
}

std::string OutputDir() {
  const testing::TestInfo* const test =
      testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(testing::TempDir(), "/", test->name());
}

TEST(CheckTest, TheProjectsOwnTrainerHolds) {
  const std::string folder = OutputDir();
  const SubprocessResult result = RunCheck(
      {"--trainer=lockstep", "--world_size=3", "--output_dir=" + folder});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("Lockstep: 3 ranks against 1"));
  EXPECT_THAT(result.out, HasSubstr(", 0 fail"));
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    if (absl::StrContains(line, folder))
      continue;  // This line has a long
                 // path.
    EXPECT_LE(line.size(), 100u) << line;
  }
  const auto json = nlohmann::json::parse(
      ReadFile(folder + "/check.json").value_or(""), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_GE(json["totals"]["passed"], 6);
  EXPECT_EQ(json["totals"]["failed"], 0);
  EXPECT_THAT(ReadFile(folder + "/check.md").value_or(""),
              HasSubstr("| even |"));
  EXPECT_THAT(ReadFile(folder + "/check.html").value_or(""),
              HasSubstr("</html>"));
}

// Every trainer breaks the protocol in its own way.
TEST(CheckTest, ABadTrainerGetsAVerdict) {
  const struct {
    const char* command;
    const char* says;
  } kTrainers[] = {
      {"exec sleep 1000", "(hangs)"},
      {"trap '' TERM; while :; do sleep 1000; done", "(hangs)"},
      {"echo broken on purpose; exit 3", "broken on purpose"},
      {"kill -SEGV $$", "(crashes)"},
      {"/no/such/trainer", "(crashes)"},
      {"true", "(writes_nothing)"},
      {"head -c 999 /dev/urandom > $LOCKSTEP_OUTPUT/rank0.json",
       "(writes_garbage)"},
      {"mkfifo $LOCKSTEP_OUTPUT/rank0.json", "(writes_garbage)"},
      {"echo '{' > $LOCKSTEP_OUTPUT/rank0.json", "(writes_garbage)"},
      {"yes | head -c 30000000; exit 1", "(crashes)"},
  };
  for (const auto& trainer : kTrainers) {
    const SubprocessResult result =
        RunCheck({absl::StrCat("--command=", trainer.command), "--cases=even",
                  "--timeout=1", "--output_dir=" + OutputDir()});
    EXPECT_EQ(result.exit_status, 1) << trainer.command;
    EXPECT_THAT(result.err, IsEmpty()) << trainer.command;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("even, run: failed"), HasSubstr(trainer.says)))
        << trainer.command;
    EXPECT_THAT(result.out, StartsWith("0 cases hold, 1 fails.\n"));
    const auto json = nlohmann::json::parse(
        ReadFile(OutputDir() + "/check.json").value_or(""), nullptr, false);
    ASSERT_TRUE(json.is_object());
    for (const auto& verdict : json["cases"][0]["verdicts"]) {
      EXPECT_TRUE(verdict["error_over_allowed"].is_null()) << verdict;
    }
  }
}

TEST(CheckTest, ShowsTheLastTwentyLinesOfATrainerThatFailed) {
  const SubprocessResult result =
      RunCheck({"--command=seq 100 130; exit 3", "--cases=even",
                "--output_dir=" + OutputDir()});
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("lines:\n  [0] 111\n  [0] 112\n"),
                    HasSubstr("\n  [0] 130\n"), Not(HasSubstr("[0] 110"))));
}

// Runs a script and returns its output.
SubprocessResult RunShell(const std::string& script,
                          const Environment& environment = {}) {
  return RunSubprocess({"/bin/sh", "-c", script}, kDeadline,
                       {.environment = environment});
}

TEST(CheckTest, KeepsTheCaseAndTheCommandOfATrainerThatFailed) {
  const std::string kept = OutputDir() + " it's kept";
  const SubprocessResult result = RunCheck(
      {"--command=echo \"it's $RANK of $WORLD_SIZE\"; exit 3", "--cases=even",
       "--keep=" + kept, "--output_dir=" + OutputDir()});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out, HasSubstr("Kept every start, with its run.sh, in"));
  const std::string start = kept + "/even/start1";
  EXPECT_TRUE(std::filesystem::exists(start + "/case/case.json"));
  EXPECT_EQ(ReadFile(start + "/logs/rank-0.log").value_or(""), "it's 0 of 1\n");
  const auto json = nlohmann::json::parse(
      ReadFile(OutputDir() + "/check.json").value_or(""), nullptr, false);
  ASSERT_TRUE(json.is_object());
  const auto& verdict = json["cases"][0]["verdicts"][0];
  EXPECT_EQ(verdict["last_lines"][0], "[0] it's 0 of 1");
  ASSERT_TRUE(verdict["by_hand"].is_string());
  const SubprocessResult by_hand = RunShell(verdict["by_hand"]);
  EXPECT_EQ(by_hand.exit_status, 3) << by_hand.err;
  EXPECT_THAT(by_hand.out, testing::EndsWith("it's 0 of 1\n"));
  // The folder now has content, so --keep rejects it.
  const SubprocessResult again = RunCheck({"--keep=" + kept});
  ExpectUsageError({again.exit_status, again.out + again.err}, "check",
                   "--keep", "is not empty; name a new folder");
}

TEST(CheckTest, StartsSeveralRanksByHand) {
  const std::string kept = OutputDir() + "_kept";
  const SubprocessResult result =
      RunCheck({"--trainer=lockstep", "--cases=even", "--keep=" + kept,
                "--output_dir=" + OutputDir()});
  ASSERT_EQ(result.exit_status, 0) << result.out << result.err;
  const std::string start = kept + "/even/start2";
  const SubprocessResult by_hand = RunShell(
      absl::StrCat("sh '", start, "/run.sh'"), {{"MASTER_PORT", "29417"}});
  EXPECT_EQ(by_hand.exit_status, 0) << by_hand.out << by_hand.err;
  const std::string output = start + "/output_by_hand_";
  EXPECT_THAT(by_hand.out, StartsWith("Output: " + output));
  EXPECT_EQ(RunShell(absl::StrCat("cd '", output, "'* && echo rank?.json")).out,
            "rank0.json rank1.json\n");
}

// The adapters are found from the program's own path.
TEST(CheckTest, StartsItsOwnTrainerFromAnyFolder) {
  namespace fs = std::filesystem;
  const std::string folder = OutputDir() + "_elsewhere";
  const std::string check = fs::absolute("conformance/check/check").string();
  const std::string runfiles = folder + "/check.runfiles/lockstep/";
  fs::create_directories(runfiles + "conformance");
  fs::create_directory_symlink(fs::absolute("conformance/adapters"),
                               runfiles + "conformance/adapters");
  fs::create_symlink(check, folder + "/check");
  for (const std::string& program : {check, folder + "/check"}) {
    const SubprocessResult result = RunShell(absl::StrCat(
        "cd / && '", program,
        "' --trainer=lockstep --cases=even '--output_dir=", OutputDir(), "'"));
    EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
    EXPECT_THAT(result.out, StartsWith("1 case holds, 0 fail.\n"));
  }
}

TEST(CheckTest, SaysThatAnAdapterIsNotThere) {
  const std::string alone = OutputDir() + "_alone";
  std::filesystem::copy_file("conformance/check/check", alone);
  const SubprocessResult result =
      RunShell(absl::StrCat("'", alone, "' --output_dir='", OutputDir(), "'"));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, StartsWith("check: cannot find conformance/adapters/"
                                     "pytorch_ddp.py beside this program"));
}

TEST(CheckTest, ATrainerThatSupportsNoCaseIsSkipped) {
  const SubprocessResult result = RunCheck(
      {R"(--command=echo '{"protocol": 1, "rank": '$RANK', "world_size": )"
       R"('$WORLD_SIZE', "unsupported": "no such model"}' )"
       R"(> $LOCKSTEP_OUTPUT/rank$RANK.json)",
       "--cases=even,sync_bn", "--output_dir=" + OutputDir()});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("no such model"));
  EXPECT_THAT(result.out, HasSubstr("0 cases hold, 0 fail, 2 skipped."));
}

TEST(CheckTest, ListsTheCases) {
  const SubprocessResult result = RunCheck({"--list"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.out, AllOf(StartsWith("even "), HasSubstr("\nsync_bn "),
                                HasSubstr("\nbfloat16 ")));
}

TEST(CheckTest, HelpSaysEveryFlag) {
  const SubprocessResult result = RunCheck({"--help"});
  ExpectUsage({result.exit_status, result.out}, "check");
}

TEST(CheckTest, AWrongFlagIsOneLine) {
  const std::pair<const char*, const char*> kFlags[] = {
      {"--world_size=1", "--world_size is 1, must be in [2, 64]"},
      {"--world_size=65", "--world_size is 65"},
      {"--nproc=65", "--world_size is 65"},
      {"--world_size=two", "--world_size"},
      {"--cases=even,odd", "--cases: 'odd' is not one of even, "},
      {"--trainer=jax", "--trainer: 'jax' is not one of pytorch"},
      {"--command=", "--command is empty"},
      {"--timeout=0", "--timeout is 0 s, must be in [0.1, 86400]"},
      {"--timeout=nan", "--timeout is nan s"},
      {"--documented=/no/such/file", "--documented: /no/such/file"},
      {"--output_dir=/proc/none", "--output_dir"},
      {"--no_such_flag", "no_such_flag"},
      {"stray", "stray"},
  };
  for (const auto& [flag, says] : kFlags) {
    const SubprocessResult result = RunCheck({flag});
    ExpectUsageError({result.exit_status, result.out + result.err}, "check",
                     flag, says);
  }
  const SubprocessResult both =
      RunCheck({"--command=true", "--trainer=pytorch"});
  ExpectUsageError({both.exit_status, both.out + both.err}, "check",
                   "--trainer", "--trainer=pytorch and --command both choose");
  const std::string documented = OutputDir() + ".json";
  std::ofstream(documented) << "[1]";
  const SubprocessResult result = RunCheck({"--documented=" + documented});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("check: "), HasSubstr("[0]")));
}

// A run leaves nothing in the folder for temporary files.
TEST(CheckTest, LeavesNothingBehind) {
  const std::string folder = OutputDir() + "_tmp";
  std::filesystem::create_directories(folder);
  const SubprocessResult result = RunCheck(
      {"--command=true", "--cases=even", "--output_dir=" + OutputDir()},
      {{"TMPDIR", folder}});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace lockstep::conformance
