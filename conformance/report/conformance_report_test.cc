// From what the tests say to cells, Markdown, JSON and the page.
#include "conformance/report/conformance_report.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "conformance/report/claim_result.h"
#include "conformance/report/expected_rows.h"
#include "conformance/report/known_claims.h"
#include "conformance/report/test_logs.h"
#include "conformance/report/test_xml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/page_checks.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const std::vector<KnownClaim>& Known() {
  static const auto& known = *new std::vector<KnownClaim>{
      {"sums", "Sums are right.", "a rounding", "//conformance:sums_test"},
      {"bits", "Bits are the same.", "none", "//conformance:bits_test"},
      {"absent", "Nobody asks.", "none", "//conformance:absent_test"}};
  return known;
}

const std::vector<ExpectedRow>& Expected() {
  static const auto& rows = *new std::vector<ExpectedRow>{
      {"sums", "gpus", "//sums:gpu_test", "needs a GPU"},
      {"sums", "threads", "//conformance:sums_test", ""},
      {"absent", "threads", "//conformance:absent_test", ""}};
  return rows;
}

ClaimResult Claim(const std::string& name, const std::string& backend,
                  int world_size, const std::string& type, double error,
                  bool exact = false) {
  return {name, backend, world_size, type, 10, error, exact};
}

TestCaseResult Case(const std::string& name, TestOutcome outcome,
                    const std::vector<ClaimResult>& claims,
                    const std::string& message = "") {
  TestCaseResult result;
  result.name = name;
  result.outcome = outcome;
  result.message = message;
  result.seconds = 0.5;
  for (const ClaimResult& claim : claims) {
    result.properties.emplace_back(
        kClaimProperty + std::to_string(result.properties.size()),
        FormatClaimResult(claim));
  }
  return result;
}

TestTarget Target(const std::string& label, std::vector<TestCaseResult> cases) {
  TestTarget target;
  target.label = label;
  target.cases = std::move(cases);
  target.first_started = "2026-01-01T00:00:00.000";
  target.last_started = "2026-01-01T00:01:00.000";
  return target;
}

// One claim that fails at two ranks, one that holds where it was not skipped.
ConformanceReport Report() {
  std::vector<TestTarget> targets = {
      Target("//conformance:sums_test",
             {Case("Sums.A", TestOutcome::kPassed,
                   {Claim("sums", "threads", 1, "float32", 0.5),
                    Claim("sums", "threads", 1, "float16", 0.5)}),
              Case("Sums.B", TestOutcome::kPassed,
                   {Claim("sums", "threads", 1, "float32", 0.25),
                    Claim("sums", "threads", 1, "float64", 0.125)}),
              Case("Sums.C", TestOutcome::kFailed,
                   {Claim("sums", "processes", 2, "float32", 12.5)},
                   "sums_test.cc:7\nExpected: right\n  Actual: wrong")}),
      Target("//conformance:bits_test",
             {Case("Bits.A", TestOutcome::kPassed,
                   {Claim("bits", "threads", 4, "float32", 0, true)}),
              Case("Bits.B", TestOutcome::kSkipped,
                   {Claim("bits", "mpi", 4, "float32", 0, true)},
                   "/a/bits_test.cc:12\nno mpirun here"),
              Case("Bits.C", TestOutcome::kSkipped, {},
                   "/a/bits_test.cc:12\nno mpirun here")})};
  ConformanceReport report = MakeReport(targets, Known(), Expected());
  report.command = "bazel run //conformance:report";
  report.testlogs = "logs";
  report.machine.cpu = "a CPU";
  report.machine.cores = 2;
  report.machine.system = "Linux";
  report.versions = {{"Compiler", "GCC 12"}};
  return report;
}

TEST(MakeReportTest, SortsCellsByClaimBackendAndType) {
  const ConformanceReport report = Report();
  EXPECT_THAT(report.world_sizes, ElementsAre(1, 2, 4));
  ASSERT_THAT(report.claims, SizeIs(3));
  const std::vector<ClaimRow>& rows = report.claims[0].rows;
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[0].backend, "processes");
  EXPECT_EQ(CellText(rows[0].cells.at(2)), "FAIL 12.5");
  // Two types that say the same, of 10 and 20 cases.
  EXPECT_EQ(rows[1].backend, "threads");
  EXPECT_THAT(rows[1].types, ElementsAre("float16", "float32"));
  EXPECT_EQ(CellText(rows[1].cells.at(1)), "0.5");
  EXPECT_EQ(rows[1].cells.at(1).cases, 30);
  EXPECT_THAT(rows[2].types, ElementsAre("float64"));
  EXPECT_EQ(CellText(report.claims[1].rows[0].cells.at(4)), "skip");
  EXPECT_EQ(CellText(report.claims[1].rows[1].cells.at(4)), "exact");
  EXPECT_THAT(report.claims[2].rows, IsEmpty());
  EXPECT_EQ(report.first_started, "2026-01-01T00:00:00.000");
}

TEST(MakeReportTest, CountsAndNamesWhatFailedAndWasSkipped) {
  const ConformanceReport report = Report();
  const ReportTotals totals = TotalsOf(report);
  EXPECT_EQ(totals.claims_hold, 1);
  EXPECT_EQ(totals.claims_failed, 1);
  EXPECT_EQ(totals.claims_not_run, 1);
  EXPECT_EQ(totals.tests_passed, 3);
  EXPECT_EQ(totals.tests_failed, 1);
  EXPECT_EQ(totals.tests_skipped, 2);
  ASSERT_THAT(report.failures, SizeIs(1));
  EXPECT_EQ(report.failures[0].test, "Sums.C");
  EXPECT_EQ(report.failures[0].what,
            "sums_test.cc:7 Expected: right Actual: wrong");
  ASSERT_THAT(report.skips, SizeIs(1));
  EXPECT_EQ(report.skips[0].why, "no mpirun here");
  EXPECT_EQ(report.skips[0].tests, 2);
}

TEST(MakeReportTest, AProblemOfATargetIsAFailure) {
  TestTarget target = Target("//conformance:sums_test", {});
  target.problems = {"shard 1 of 2: it wrote no test.xml"};
  const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
  ASSERT_THAT(report.failures, SizeIs(1));
  EXPECT_EQ(report.failures[0].what, "shard 1 of 2: it wrote no test.xml");
  EXPECT_EQ(TotalsOf(report).tests_failed, 1);
  EXPECT_THAT(FormatReportMarkdown(report),
              HasSubstr("- `//conformance:sums_test`: shard 1 of 2: it wrote"));
}

// Of two shards one crashed: what the other measured does not show the claim.
TEST(MakeReportTest, AClaimFailsWithAPartOfItsTestThatRecordedNothing) {
  const TestCaseResult measured =
      Case("Sums.A", TestOutcome::kPassed,
           {Claim("sums", "threads", 2, "float32", 0.5)});
  TestTarget crashed = Target("//conformance:sums_test", {measured});
  crashed.problems = {"shard 2 of 2: it wrote no test.xml"};
  const TestTarget control =
      Target("//conformance:sums_test",
             {measured, Case("Control", TestOutcome::kFailed, {}, "passed")});
  for (const TestTarget& target : {crashed, control}) {
    const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
    const ClaimReport& claim = report.claims[0];
    EXPECT_THAT(claim.failed_tests, ElementsAre("//conformance:sums_test"));
    EXPECT_EQ(OutcomeOf(claim), TestOutcome::kFailed);
    EXPECT_EQ(TotalsOf(report).claims_hold, 0);
    EXPECT_EQ(TotalsOf(report).claims_failed, 1);
    EXPECT_EQ(TotalsOf(report).claims_not_run, 2);
    EXPECT_THAT(
        FormatReportMarkdown(report),
        AllOf(HasSubstr("| **FAIL** sums | threads | float32 | 0.5 |"),
              HasSubstr("- sums: not shown to hold, since part of "
                        "`//conformance:sums_test` failed and recorded")));
    EXPECT_EQ(ReportJson(report)["claims"][0]["failed_tests"][0],
              "//conformance:sums_test");
  }
  // A failure that says which claim it is of, and one of another test.
  const TestTarget other = Target("//conformance:bits_test",
                                  {Case("B", TestOutcome::kFailed, {}, "bad")});
  const std::vector<TestTarget> targets = {
      Target("//conformance:sums_test",
             {measured, Case("Sums.B", TestOutcome::kFailed,
                             {Claim("absent", "mpi", 2, "float32", 7)})}),
      other};
  const ConformanceReport report = MakeReport(targets, Known(), {});
  EXPECT_EQ(OutcomeOf(report.claims[0]), TestOutcome::kPassed);
  EXPECT_EQ(OutcomeOf(report.claims[1]), TestOutcome::kFailed);
  EXPECT_EQ(OutcomeOf(report.claims[2]), TestOutcome::kFailed);
}

// What it would have measured is not known.
TEST(MakeReportTest, AClaimWhoseTestFailedAndRecordedNothingIsNotOnlyNotRun) {
  TestTarget target = Target("//conformance:sums_test", {});
  target.problems = {"it ran past its time limit"};
  const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
  EXPECT_EQ(OutcomeOf(report.claims[0]), TestOutcome::kFailed);
  EXPECT_EQ(OutcomeOf(report.claims[1]), TestOutcome::kSkipped);
  EXPECT_EQ(ReportJson(report)["claims"][0]["outcome"], "failed");
}

TEST(MakeReportTest, AnExpectedRowOfWhichNothingWasRecordedIsMissing) {
  const ConformanceReport report = Report();
  ASSERT_THAT(report.claims[0].missing, SizeIs(1));
  EXPECT_EQ(report.claims[0].missing[0].backend, "gpus");
  ASSERT_THAT(report.claims[2].missing, SizeIs(1));
  EXPECT_THAT(FormatReportMarkdown(report),
              AllOf(HasSubstr("| sums | gpus | skip | | | |\n"),
                    HasSubstr("- skipped: sums, gpus, by `//sums:gpu_test`: "
                              "needs a GPU\n"),
                    HasSubstr("| absent | threads | not run | | | |\n"),
                    HasSubstr("- not run: absent, threads, by "
                              "`//conformance:absent_test`\n")));
  const nlohmann::ordered_json json = ReportJson(report);
  EXPECT_EQ(json["claims"][0]["missing"][0]["skipped"], "needs a GPU");
  EXPECT_EQ(json["claims"][0]["missing"].size(), 1u);
}

// A test that crashed before it could record its row.
TEST(MakeReportTest, AClaimFailsWithTheTestOfAnExpectedRow) {
  TestTarget crashed = Target("//sums:gpu_test", {});
  EXPECT_EQ(OutcomeOf(MakeReport({&crashed, 1}, Known(), Expected()).claims[0]),
            TestOutcome::kSkipped);
  crashed.problems = {"it ended badly"};
  const ConformanceReport report =
      MakeReport({&crashed, 1}, Known(), Expected());
  EXPECT_EQ(OutcomeOf(report.claims[0]), TestOutcome::kFailed);
  EXPECT_THAT(report.claims[0].failed_tests, ElementsAre("//sums:gpu_test"));
}

// Were a test to record what it does not ask.
TEST(MakeReportTest, AClaimThatIsNotWithinWhatIsAllowedFails) {
  const struct {
    double error;
    bool exact;
    bool holds;
    int64_t cases = 10;
  } kClaims[] = {{0, true, true},
                 {0, true, false, 0},
                 {0.5, false, false, 0},
                 {1e-9, true, false},
                 {1, false, true},
                 {1.0001, false, false},
                 {std::numeric_limits<double>::infinity(), false, false}};
  for (const auto& claim : kClaims) {
    ClaimResult result =
        Claim("sums", "threads", 2, "float32", claim.error, claim.exact);
    result.cases = claim.cases;
    const TestTarget target =
        Target("//conformance:sums_test",
               {Case("Sums.A", TestOutcome::kPassed, {result})});
    const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
    EXPECT_EQ(report.failures.empty(), claim.holds) << claim.error;
    EXPECT_EQ(OutcomeOf(report.claims[0]),
              claim.holds ? TestOutcome::kPassed : TestOutcome::kFailed)
        << claim.error;
  }
}

TEST(MakeReportTest, APropertyThatIsNoClaimFails) {
  TestCaseResult test = Case("Sums.A", TestOutcome::kPassed, {});
  test.properties = {{"other", "{"}};
  TestTarget target = Target("//conformance:sums_test", {test});
  EXPECT_THAT(MakeReport({&target, 1}, Known(), {}).failures, IsEmpty());
  // One that its test took back.
  target.cases[0].properties = {{"lockstep_claim_0", ""}};
  EXPECT_THAT(MakeReport({&target, 1}, Known(), {}).failures, IsEmpty());
  target.cases[0].properties = {{"lockstep_claim_0", "{"}};
  const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
  ASSERT_THAT(report.failures, SizeIs(1));
  EXPECT_EQ(report.failures[0].what,
            "it recorded a claim that is no JSON object");
}

TEST(MakeReportTest, AClaimThatNoOneKnowsIsShown) {
  const TestTarget target =
      Target("//conformance:sums_test",
             {Case("Sums.A", TestOutcome::kPassed,
                   {Claim("unheard of", "threads", 2, "float32", 0.5)})});
  const ConformanceReport report = MakeReport({&target, 1}, Known(), {});
  ASSERT_THAT(report.claims, SizeIs(4));
  EXPECT_EQ(report.claims[3].name, "unheard of");
  EXPECT_THAT(FormatReportMarkdown(report),
              AllOf(HasSubstr("| claim | backend | type | 2 ranks |\n"),
                    HasSubstr("| unheard of | threads | float32 | 0.5 |")));
}

TEST(CellTextTest, SaysHowFarAFailureIsOff) {
  ClaimCell cell = {TestOutcome::kFailed, 0.5, false, 1};
  EXPECT_EQ(CellText(cell), "FAIL");
  cell.error_over_allowed = 1234567;
  EXPECT_EQ(CellText(cell), "FAIL 1.23e+06");
  cell.error_over_allowed = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CellText(cell), "FAIL");
  cell = {TestOutcome::kPassed, 0, false, 1};
  EXPECT_EQ(CellText(cell), "0");
}

TEST(ReportMarkdownTest, HasWhatFailedBeforeTheTable) {
  const std::string markdown = FormatReportMarkdown(Report());
  EXPECT_THAT(
      markdown,
      AllOf(
          HasSubstr("### Conformance: 1 claim holds, 1 fails, 1 not run; 3 "
                    "tests pass, 1 fails, 2 skipped\n\n**Failed**\n\n- "
                    "`//conformance:sums_test`, Sums.C: sums"),
          HasSubstr("| claim | backend | type | 1 rank | 2 | 4 |\n"
                    "| --- | --- | --- | ---: | ---: | ---: |\n"),
          HasSubstr("| sums | processes | float32 | - | **FAIL 12.5** | - |"),
          HasSubstr("| sums | threads | float16, float32 | 0.5 | - | - |"),
          HasSubstr("| bits | mpi | float32 | - | - | skip |"),
          HasSubstr("- skipped: `//conformance:bits_test`, 2 tests: no "
                    "mpirun here\n"),
          HasSubstr("a CPU, 2 cores, Linux; checked out: unknown; Compiler GCC "
                    "12; tests begun 2026-01-01T00:00:00.000 to "
                    "2026-01-01T00:01:00.000; `bazel run"),
          HasSubstr("`bazel run //conformance:report`\n")));
  EXPECT_LT(markdown.find("**Failed**"), markdown.find("| claim |"));
}

TEST(ReportMarkdownTest, SaysThatThereIsNoClaim) {
  EXPECT_THAT(FormatReportMarkdown(MakeReport({}, Known(), {})),
              AllOf(HasSubstr("No test recorded a claim."),
                    Not(HasSubstr("| claim |"))));
}

// Everything that comes from a test, a folder or a flag.
ConformanceReport Hostile(const std::string& text) {
  TestTarget target = Target(
      text,
      {Case(text, TestOutcome::kFailed, {Claim(text, text, 2, text, 0.5)},
            text),
       Case(text, TestOutcome::kSkipped, {}, text),
       Case(text, TestOutcome::kPassed, {Claim("sums", text, 1, text, 0.5)})});
  target.problems = {text};
  target.first_started = target.last_started = text;
  ConformanceReport report =
      MakeReport({&target, 1}, Known(), {{"sums", text + "s", text, text}});
  report.testlogs = report.command = report.created = report.commit = text;
  report.machine.cpu = report.machine.system = text;
  report.versions = {{text, text}};
  return report;
}

TEST(ReportMarkdownTest, ShowsTextAsItIs) {
  const std::string markdown =
      FormatReportMarkdown(Hostile("<b>|*x*`y`\n# z[1](2)\x07"));
  EXPECT_THAT(markdown, HasSubstr("&lt;b>\\|\\*x\\*\\`y\\` # z\\[1\\](2)"));
  EXPECT_THAT(markdown, Not(HasSubstr("<b>\\|\\*")));
  EXPECT_THAT(markdown, Not(HasSubstr("\n# z")));
  EXPECT_THAT(markdown, Not(HasSubstr("\x07")));
}

TEST(ReportJsonTest, HasEveryCell) {
  const nlohmann::ordered_json json = ReportJson(Report());
  EXPECT_EQ(json["totals"]["claims_failed"], 1);
  const auto& claim = json["claims"][0];
  EXPECT_EQ(claim["name"], "sums");
  EXPECT_EQ(claim["outcome"], "failed");
  EXPECT_EQ(claim["rows"][0]["backend"], "processes");
  const auto& cell = claim["rows"][0]["cells"][0];
  EXPECT_EQ(cell["world_size"], 2);
  EXPECT_EQ(cell["outcome"], "failed");
  EXPECT_EQ(cell["error_over_allowed"], 12.5);
  EXPECT_EQ(cell["cases"], 10);
  EXPECT_EQ(json["claims"][2]["outcome"], "skipped");
  EXPECT_EQ(json["skipped"][0]["why"], "no mpirun here");
  EXPECT_EQ(json["targets"][0]["seconds"], 1.5);
  EXPECT_EQ(json["targets"][0]["started"], "2026-01-01T00:00:00.000");
  EXPECT_EQ(json["claims"][2]["rows"].size(), 0u);
  EXPECT_EQ(json["versions"]["Compiler"], "GCC 12");
}

TEST(ReportPageTest, IsWholeWhateverTheTestsSay) {
  const std::string plain = FormatReportPage(Hostile("plain"));
  ExpectWholePage(plain);
  const std::string text = "</script><script>alert(1)</script><!--\xff";
  const std::string page = FormatReportPage(Hostile(text));
  ExpectWholePage(page);
  ExpectSameElements(page, plain);
  EXPECT_THAT(EmbeddedReport(page)["failures"], SizeIs(2));
}

}  // namespace
}  // namespace lockstep
