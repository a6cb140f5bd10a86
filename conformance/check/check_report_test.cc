// The report's counts, table, Markdown, JSON and page; differences that are
// documented.
#include "conformance/check/check_report.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "conformance/check/judge/verdict.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/page_checks.h"
#include "report/terminal.h"
#include "report/write.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

Verdict VerdictOf(const std::string& name, Claim claim, Outcome outcome,
                  double error = 0) {
  Verdict verdict;
  verdict.case_name = name;
  verdict.claim = claim;
  verdict.outcome = outcome;
  verdict.error_over_allowed = error;
  return verdict;
}

Verdict Failure(const std::string& name, Claim claim, Outcome outcome) {
  Verdict verdict = VerdictOf(name, claim, outcome, 12);
  verdict.cause = Cause::kMeanOfMeans;
  verdict.what = "W1 is off by 0.5.";
  verdict.why = "Means are averaged.";
  verdict.fix = "Weight them.";
  return verdict;
}

// One case that holds, one that fails, one as documented, one unsupported.
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

TEST(CheckReportTest, CountsACaseAsItsWorstClaim) {
  const CheckTotals totals = TotalsOf(Report());
  EXPECT_EQ(totals.passed, 1);
  EXPECT_EQ(totals.failed, 1);
  EXPECT_EQ(totals.documented, 1);
  EXPECT_EQ(totals.skipped, 1);
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

TEST(CheckTableTest, SaysWhatIsWrongAndHowToMendIt) {
  const std::string table = TerminalText(CheckDocument(Report()));
  EXPECT_THAT(table, HasSubstr("Trainer 1.0: 2 ranks against 1; 4 cases\n"));
  EXPECT_THAT(table, HasSubstr("\nuneven, gradients: failed (mean_of_means)\n"
                               "W1 is off by 0.5.\nMeans are averaged.\n"
                               "Weight them.\n"));
  EXPECT_THAT(table, HasSubstr("\nevaluation, evaluation: documented"));
  EXPECT_THAT(table, HasSubstr("\nDocumented: its manual\n"));
  EXPECT_THAT(table, HasSubstr("sync_bn, skipped: There is no batch norm.\n"));
  EXPECT_THAT(table, HasSubstr("1 case holds, 1 fails, 1 differs as "
                               "documented, 1 skipped.\n"));
  // No news: a claim that was not judged after one that failed.
  EXPECT_THAT(table, Not(HasSubstr("uneven, skipped")));
}

TEST(CheckTableTest, HasNoLineBeyondTheWidth) {
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

TEST(CheckMarkdownTest, ShowsTextAsItIs) {
  CheckReport report = Report();
  report.cases[1].verdicts[1].what = "<b>|_x_*y*`z`\nnext";
  const std::string markdown = MarkdownPage(CheckDocument(report));
  EXPECT_THAT(markdown,
              HasSubstr("| even | ok | - | - | 0.25 | - | - | - | 1.5 |"));
  EXPECT_THAT(markdown, HasSubstr("- `` <b>|_x_*y*`z` next ``\n"));
}

TEST(CheckJsonTest, HasEveryVerdict) {
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

// 0.125 is between two cells: it must not be rounded up in one form and down in
// another.
TEST(CheckPageTest, ShowsTheCellsOfTheTable) {
  CheckReport report = Report();
  report.cases[0].verdicts[1].error_over_allowed = 0.125;
  const report::Document document = CheckDocument(report);
  EXPECT_EQ(document.data["cases"][0]["verdicts"][1]["cell"], "0.12");
  EXPECT_THAT(TerminalText(document), HasSubstr(" 0.12 "));
  EXPECT_THAT(HtmlPage(document), HasSubstr(">0.12</td>"));
}

TEST(CheckPageTest, IsWholeWhateverTheTrainerSays) {
  const std::string plain = HtmlPage(CheckDocument(Report()));
  ExpectWholePage(plain, /*charts=*/false);
  CheckReport hostile = Report();
  hostile.software = "</script><script>alert(1)</script><!--";
  hostile.cases[1].verdicts[1].what = "</script>\xff";
  const std::string page = HtmlPage(CheckDocument(hostile));
  ExpectWholePage(page, /*charts=*/false);
  ExpectSameElements(page, plain);
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
  Verdict same;
  same.case_name = "evaluation";
  same.claim = Claim::kEvaluation;
  same.cause = Cause::kEvaluationPadded;
  same.outcome = Outcome::kFailed;
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

}  // namespace
}  // namespace lockstep
