// Tests how test results become cells, claims and totals, and the report as
// Markdown, JSON and a page.
#include "conformance/report/conformance_report.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "conformance/report/claims.h"
#include "conformance/report/conformance_document.h"
#include "conformance/report/test_logs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"
#include "report/write.h"
#include "report/write_html.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

constexpr char kSums[] = "//conformance:sums_test";
constexpr char kBits[] = "//conformance:bits_test";
constexpr char kAbsent[] = "//conformance:absent_test";
constexpr char kGpu[] = "//sums:gpu_test";

// Returns three claims. "sums" allows a rounding error: on threads (float32 at
// 1 and 2 ranks, float16 and float64 at 1), processes (float32 at 2) and a GPU.
// "bits" allows no error: on threads and mpi (float32 at 4). "absent" allows no
// error: on threads.
std::vector<KnownClaim> SampleClaims() {
  const std::vector<ExpectedRow> sums = {
      {"threads", kSums, {"float32"}, {1, 2}},
      {"threads", kSums, {"float16"}, {1}},
      {"threads", kSums, {"float64"}, {1}},
      {"processes", kSums, {"float32"}, {2}},
      {"gpus", kGpu, {}, {}, "small sums"}};
  const std::vector<ExpectedRow> bits = {{"threads", kBits, {"float32"}, {4}},
                                         {"mpi", kBits, {"float32"}, {4}}};
  const ExpectedRow absent = {"threads", kAbsent, {"float32"}, {1}};
  return {{"sums", "Sums are right.", "a rounding", sums},
          {"bits", "Bits are the same.", kNoError, bits},
          {"absent", "Nobody asks.", kNoError, {absent}}};
}

// Returns a result over ten cases.
ClaimResult SampleClaim(const std::string& name, const std::string& backend,
                        int world_size, const std::string& type, double error,
                        bool exact = false) {
  return {name, backend, world_size, type, 10, error, exact};
}

// Returns a test of half a second that recorded the claims.
TestCaseResult SampleCase(const std::string& name, TestOutcome outcome,
                          const std::vector<ClaimResult>& claims,
                          const std::string& message = "") {
  TestCaseResult result = {
      .name = name, .outcome = outcome, .message = message, .seconds = 0.5};
  for (const ClaimResult& claim : claims) {
    result.properties.emplace_back(
        kClaimProperty + std::to_string(result.properties.size()),
        FormatClaimResult(claim));
  }
  result.properties.emplace_back(kConfigurationProperty, "optimised");
  return result;
}

// Returns a target that started at midnight; its last shard started a minute
// later.
TestTarget SampleTarget(const std::string& label,
                        std::vector<TestCaseResult> cases) {
  return {.label = label,
          .cases = std::move(cases),
          .first_started = "2026-01-01T00:00:00.000",
          .last_started = "2026-01-01T00:01:00.000"};
}

// Returns a report in which sums fail on processes and hold on threads at one
// rank. bits hold on threads and are skipped on mpi. Nothing else was run.
ConformanceReport SampleReport() {
  std::vector<TestTarget> targets = {
      SampleTarget(
          kSums,
          {SampleCase("Sums.A", TestOutcome::kPassed,
                      {SampleClaim("sums", "threads", 1, "float32", 0.5),
                       SampleClaim("sums", "threads", 1, "float16", 0.5)}),
           SampleCase("Sums.B", TestOutcome::kPassed,
                      {SampleClaim("sums", "threads", 1, "float16", 0.25),
                       SampleClaim("sums", "threads", 1, "float64", 0.5)}),
           SampleCase("Sums.C", TestOutcome::kFailed,
                      {SampleClaim("sums", "processes", 2, "float32", 12.5)},
                      "sums_test.cc:7\nExpected: right\n  Actual: wrong")}),
      SampleTarget(
          kBits,
          {SampleCase("Bits.A", TestOutcome::kPassed,
                      {SampleClaim("bits", "threads", 4, "float32", 0, true)}),
           SampleCase("Bits.B", TestOutcome::kSkipped,
                      {SampleClaim("bits", "mpi", 4, "float32", 0, true)},
                      "/a/bits_test.cc:12\nno mpirun here"),
           SampleCase("Bits.C", TestOutcome::kSkipped, {},
                      "/a/bits_test.cc:12\nno mpirun here")})};
  ConformanceReport report = MakeReport(targets, SampleClaims());
  report.origin = {.machine = {.cpu = "a CPU", .cores = 2, .system = "Linux"},
                   .command = "bazel run //conformance:report"};
  report.testlogs = "logs";
  report.versions = {{"Compiler", "GCC 12"}};
  return report;
}

// Returns "sums" with these rows, and two claims that are not run.
std::vector<KnownClaim> ClaimsWith(const std::vector<ExpectedRow>& sums) {
  std::vector<KnownClaim> claims = SampleClaims();
  claims[0].rows = sums;
  claims[1].rows = {{"threads", kBits, {"float32"}, {1}}};
  return claims;
}

TestCaseResult SumsAt(int world_size,
                      TestOutcome outcome = TestOutcome::kPassed) {
  return SampleCase(
      "Sums", outcome,
      {SampleClaim("sums", "threads", world_size, "float32", 0.5)},
      outcome == TestOutcome::kPassed ? "" : "why");
}

// Returns the report on one claim with two cells and a row of a GPU.
ConformanceReport ReportOf(const std::vector<TestTarget>& targets) {
  return MakeReport(targets,
                    ClaimsWith({{"threads", kSums, {"float32"}, {1, 2}},
                                {"gpus", kGpu, {}, {}, "small sums"}}));
}

ConformanceReport ReportOfCases(const std::vector<TestCaseResult>& cases) {
  return ReportOf({SampleTarget(kSums, cases)});
}

ClaimState StateOfSums(const ConformanceReport& report) {
  return StateOf(report.claims[0]);
}

// If one of two shards crashed or the test ran too long, the measurements do
// not show the claim.
TEST(MakeReportTest, AClaimFailsWithAPartOfItsTestThatRecordedNothing) {
  TestTarget crashed = SampleTarget(kSums, {SumsAt(1), SumsAt(2)});
  crashed.problems = {"shard 2 of 2: it wrote no test.xml"};
  TestTarget late = SampleTarget(kSums, {});
  late.problems = {"it ran past its time limit"};
  const TestTarget control = SampleTarget(
      kSums, {SumsAt(1), SumsAt(2),
              SampleCase("Control", TestOutcome::kFailed, {}, "passed")});
  for (const TestTarget& target : {crashed, late, control}) {
    const ConformanceReport report = ReportOf({target});
    ASSERT_THAT(report.failures, SizeIs(1));
    EXPECT_EQ(report.failures[0].what,
              target.problems.empty() ? "passed" : target.problems[0]);
    EXPECT_THAT(report.claims[0].failed_tests, ElementsAre(kSums));
    EXPECT_EQ(StateOfSums(report), ClaimState::kFailed);
    EXPECT_EQ(TotalsOf(report).claims_failed, 1);
    EXPECT_EQ(TotalsOf(report).tests_failed, 1);
    EXPECT_EQ(TotalsOf(report).claims_not_run, 2);
  }
  // A failure of another test.
  const ConformanceReport report = ReportOf(
      {SampleTarget(kSums, {SumsAt(1), SumsAt(2)}),
       SampleTarget(kBits,
                    {SampleCase("B", TestOutcome::kFailed, {}, "bad")})});
  EXPECT_EQ(StateOfSums(report), ClaimState::kHolds);
  EXPECT_EQ(StateOf(report.claims[1]), ClaimState::kFailed);
}

TEST(MakeReportTest, AClaimOfWhichAllWasRunHolds) {
  const ConformanceReport report = ReportOfCases({SumsAt(1), SumsAt(2)});
  EXPECT_EQ(StateOfSums(report), ClaimState::kHolds);
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_THAT(report.claims[0].missing, IsEmpty());
  // A row that is skipped for lack of a GPU does not count.
  ASSERT_THAT(report.claims[0].gpu_rows, SizeIs(1));
  EXPECT_EQ(report.claims[0].gpu_rows[0].state, ClaimState::kSkipped);
  EXPECT_THAT(report.claims[0].gpu_rows[0].why, HasSubstr("needs a GPU"));
}

// After --test_filter, the report has the column and shows the missing cell.
TEST(MakeReportTest, AClaimOfWhichACellWasNotRunHoldsInPart) {
  const ConformanceReport report = ReportOfCases({SumsAt(1)});
  EXPECT_EQ(StateOfSums(report), ClaimState::kInPart);
  EXPECT_THAT(report.world_sizes, ElementsAre(1, 2));
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(1)), "0.5");
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(2)), "not run");
  ASSERT_THAT(report.claims[0].missing, SizeIs(1));
  EXPECT_EQ(report.claims[0].missing[0].cells, 1);
  EXPECT_EQ(report.claims[0].missing[0].expected, 2);
  EXPECT_EQ(TotalsOf(report).claims_hold, 0);
  EXPECT_EQ(TotalsOf(report).claims_in_part, 1);
  EXPECT_EQ(TotalsOf(report).claims_not_run, 2);
  EXPECT_EQ(StateOfSums(ReportOf({})), ClaimState::kNotRun);
}

TEST(MakeReportTest, ACellWithASkippedTestIsShownInPart) {
  const ConformanceReport report =
      ReportOfCases({SumsAt(1), SumsAt(1, TestOutcome::kSkipped), SumsAt(2)});
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(1)), "0.5 in part");
  EXPECT_EQ(StateOfSums(report), ClaimState::kInPart);
  // A failure is worse than a skip and a missing cell.
  const ConformanceReport failed = ReportOfCases(
      {SumsAt(1, TestOutcome::kSkipped), SumsAt(1, TestOutcome::kFailed)});
  EXPECT_EQ(StateOf(failed.claims[0].rows[0].cells.at(1)), ClaimState::kFailed);
}

// Each test must record its own cell.
TEST(MakeReportTest, ACellThatOneOfItsTwoTestsRecordedIsShownInPart) {
  const TestTarget target = SampleTarget(kSums, {SumsAt(1)});
  const ConformanceReport report = MakeReport(
      {&target, 1},
      ClaimsWith({{"threads", kSums, {"float32"}, {1}},
                  {"threads", "//conformance:other_test", {"float32"}, {1}}}));
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(1)), "0.5 in part");
  EXPECT_THAT(report.failures, IsEmpty());
}

// The whole grid counts whether its slice was run or not.
TEST(MakeReportTest, AWholeGridCountsAsItsSlice) {
  const std::string whole = std::string(kSums) + "_exhaustive";
  const TestTarget grid = SampleTarget(whole, {SumsAt(1), SumsAt(2)});
  const ConformanceReport alone = ReportOf({grid});
  EXPECT_EQ(StateOfSums(alone), ClaimState::kHolds);
  EXPECT_EQ(alone.targets[0].label, whole);
  const ConformanceReport both =
      ReportOf({SampleTarget(kSums, {SumsAt(1)}), grid});
  EXPECT_EQ(StateOfSums(both), ClaimState::kHolds);
  TestTarget broken = grid;
  broken.problems = {"it wrote no test.xml"};
  EXPECT_THAT(ReportOf({broken}).claims[0].failed_tests, ElementsAre(kSums));
}

// --test_filter can exclude some of the tests of a cell.
TEST(MakeReportTest, AFilteredTestHoldsInPart) {
  TestCaseResult filtered = SumsAt(2);
  filtered.properties.back() = {kConfigurationProperty, "optimised, filtered"};
  const ConformanceReport report = ReportOfCases({SumsAt(1), filtered});
  EXPECT_EQ(StateOfSums(report), ClaimState::kInPart);
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(2)), "0.5 in part");
  EXPECT_THAT(
      TotalsOf(report).configurations,
      ElementsAre(Pair("optimised", 1), Pair("optimised, filtered", 1)));
}

TEST(MakeReportTest, WhatNobodyExpectsFails) {
  const ClaimResult kUnexpected[] = {
      SampleClaim("sums", "thread", 2, "float32", 0.5),
      SampleClaim("sums", "threads", 3, "float32", 0.5),
      SampleClaim("sums", "threads", 2, "float31", 0.5),
      SampleClaim("sum", "threads", 2, "float32", 0.5)};
  for (const ClaimResult& claim : kUnexpected) {
    for (const auto outcome : {TestOutcome::kPassed, TestOutcome::kSkipped}) {
      const ConformanceReport report = ReportOfCases(
          {SumsAt(1), SumsAt(2), SampleCase("A", outcome, {claim})});
      ASSERT_THAT(report.failures, SizeIs(1));
      EXPECT_THAT(report.failures[0].what,
                  HasSubstr("which claims.cc does not have"));
      EXPECT_EQ(TotalsOf(report).claims_failed, 1);
    }
  }
  // The cell is expected of another test.
  const ConformanceReport report =
      ReportOf({SampleTarget("//conformance:other_test", {SumsAt(1)})});
  EXPECT_THAT(report.failures, SizeIs(1));
}

// A test of GPUs records nothing: its row has the state of its target.
TEST(MakeReportTest, ARowOfAGpuIsWhatItsTestLeft) {
  const auto passed = SampleCase("A", TestOutcome::kPassed, {});
  const auto failed = SampleCase("B", TestOutcome::kFailed, {}, "bad");
  const auto skipped = SampleCase("C", TestOutcome::kSkipped, {}, "no GPU");
  const struct {
    std::vector<TestCaseResult> cases;
    ClaimState row;
    ClaimState claim;
  } kCases[] = {{{passed}, ClaimState::kHolds, ClaimState::kHolds},
                {{passed, skipped}, ClaimState::kInPart, ClaimState::kHolds},
                {{skipped}, ClaimState::kSkipped, ClaimState::kHolds},
                {{}, ClaimState::kNotRun, ClaimState::kInPart},
                {{passed, failed}, ClaimState::kFailed, ClaimState::kFailed}};
  for (const auto& test : kCases) {
    const ConformanceReport report =
        ReportOf({SampleTarget(kSums, {SumsAt(1), SumsAt(2)}),
                  SampleTarget(kGpu, test.cases)});
    const GpuRow& row = report.claims[0].gpu_rows.at(0);
    EXPECT_EQ(row.state, test.row);
    EXPECT_EQ(row.why, test.row == ClaimState::kSkipped ||
                               test.row == ClaimState::kInPart
                           ? "no GPU"
                           : "");
    EXPECT_EQ(StateOfSums(report), test.claim);
  }
}

// The machine's GPUs decide which cells such a test records. It must not record
// another claim.
TEST(MakeReportTest, ATestOfAGpuMayRecordAnyCellOfItsClaim) {
  const auto report_of = [](const std::string& claim) {
    const ClaimResult result =
        SampleClaim(claim, "gpus", 7, "int8", 0, /*exact=*/claim == "bits");
    return ReportOf({SampleTarget(
        kGpu, {SampleCase("Gpu.A", TestOutcome::kPassed, {result})})});
  };
  EXPECT_THAT(report_of("sums").failures, IsEmpty());
  EXPECT_THAT(report_of("bits").failures, SizeIs(1));
}

// A test may pass without checking its claim. Whether an error is allowed is
// decided by claims.cc, not by the test.
TEST(MakeReportTest, AClaimThatIsNotWithinWhatIsAllowedFails) {
  const struct {
    const char* claim;
    double error;
    bool exact;
    bool holds;
    int64_t cases = 10;
  } kClaims[] = {
      {"bits", 0, true, true},
      {"bits", 0, true, false, 0},
      {"bits", 0, false, false},
      {"bits", 0.9, false, false},
      {"bits", 1e-9, true, false},
      {"sums", 0, true, false},
      {"sums", 0.5, false, false, 0},
      {"sums", 1, false, true},
      {"sums", 1.0001, false, false},
      {"sums", std::numeric_limits<double>::infinity(), false, false}};
  std::vector<KnownClaim> claims =
      ClaimsWith({{"threads", kSums, {"float32"}, {1}}});
  claims[1].rows = claims[0].rows;
  for (const auto& claim : kClaims) {
    ClaimResult result = SampleClaim(claim.claim, "threads", 1, "float32",
                                     claim.error, claim.exact);
    result.cases = claim.cases;
    const TestTarget target = SampleTarget(
        kSums, {SampleCase("Sums.A", TestOutcome::kPassed, {result})});
    const ConformanceReport report = MakeReport({&target, 1}, claims);
    EXPECT_EQ(report.failures.empty(), claim.holds)
        << claim.claim << " " << claim.error;
    EXPECT_EQ(TotalsOf(report).claims_hold, claim.holds ? 1 : 0);
  }
}

TEST(MakeReportTest, APropertyThatIsNoClaimFails) {
  TestCaseResult test = SampleCase("Sums.A", TestOutcome::kPassed, {});
  test.properties = {{"other", "{"}};
  EXPECT_THAT(ReportOfCases({test}).failures, IsEmpty());
  for (const char* value : {"", "{"}) {
    test.properties = {{"lockstep_claim_0", value}};
    const ConformanceReport report = ReportOfCases({test});
    ASSERT_THAT(report.failures, SizeIs(1)) << value;
    EXPECT_EQ(report.failures[0].what,
              "it recorded a claim that is no JSON object");
    EXPECT_EQ(StateOfSums(report), ClaimState::kFailed);
  }
}

TEST(MakeReportTest, TellsConfigurationsApart) {
  TestCaseResult sanitized = SumsAt(2), old = SumsAt(2);
  sanitized.properties.back().second = "optimised, address sanitizer";
  old.properties.pop_back();
  const ConformanceReport report =
      ReportOfCases({SumsAt(1), sanitized, old,
                     SampleCase("Other", TestOutcome::kPassed, {})});
  EXPECT_THAT(
      report.targets[0].configurations,
      ElementsAre("optimised", "optimised, address sanitizer", "unknown"));
}

TEST(MarkOlderTest, MarksWhatBeganBeforeTheCommit) {
  TestTarget later = SampleTarget("//conformance:later_test", {});
  later.first_started = "2026-01-01T00:00:00.001";
  TestTarget unknown = SampleTarget("//conformance:unknown_test", {});
  unknown.first_started = "some time";
  ConformanceReport report =
      ReportOf({SampleTarget(kSums, {}), later, unknown});
  EXPECT_EQ(TotalsOf(report).targets_older, 0);
  // 2026-01-01T00:00:00.0005 in UTC.
  MarkOlder(absl::FromUnixMicros(1767225600000500), report);
  EXPECT_TRUE(report.targets[0].older);
  EXPECT_FALSE(report.targets[1].older);
  EXPECT_FALSE(report.targets[2].older);
  EXPECT_EQ(TotalsOf(report).targets_older, 1);
  EXPECT_EQ(report.committed, "2026-01-01T00:00:00Z");
}

TEST(CellTextTest, SaysHowFarAFailureIsOff) {
  ClaimCell cell = {.failed = 1, .error_over_allowed = 0.5, .exact = false};
  EXPECT_EQ(CellText(cell), "FAIL");
  cell.error_over_allowed = 1234567;
  EXPECT_EQ(CellText(cell), "FAIL 1.23e+06");
  cell.error_over_allowed = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CellText(cell), "FAIL");
  cell = {.passed = 1, .exact = false};
  EXPECT_EQ(CellText(cell), "0");
  cell = {.passed = 1, .skipped = 1};
  EXPECT_EQ(CellText(cell), "exact in part");
}

std::string Markdown(const ConformanceReport& report) {
  return MarkdownPage(ConformanceDocument(report));
}

TEST(ReportMarkdownTest, HasWhatFailedBeforeTheTable) {
  const std::string markdown = Markdown(SampleReport());
  EXPECT_THAT(
      markdown,
      AllOf(
          HasSubstr(
              "# Lockstep report: 0 claims hold, 1 in part, 1 not "
              "run, 1 fails; 3 tests pass, 1 fails, 2 skipped; 1 GPU "
              "row skipped\n\n## Failed\n\n- `//conformance:sums_test, Sums.C: "
              "sums_test.cc:7 Expected: right Actual: wrong`\n"),
          HasSubstr("| claim | backend | type | 1 rank | 2 | 4 |\n"
                    "| --- | --- | --- | ---: | ---: | ---: |\n"),
          HasSubstr("| sums | processes | float32 | - | FAIL 12.5 | - |"),
          HasSubstr("| sums | threads | float16, float64 | 0.5 | - | - |"),
          HasSubstr("| sums | threads | float32 | 0.5 | not run | - |"),
          HasSubstr("| bits | mpi | float32 | - | - | skip |"),
          HasSubstr("- `skipped: //conformance:bits_test, 2 tests: no "
                    "mpirun here`\n"),
          HasSubstr("- 2 targets record claims, built: optimised\n"),
          HasSubstr("- `Compiler GCC 12; tests begun 2026-01-01T00:00:00.000 "
                    "to 2026-01-01T00:01:00.000`\n"),
          HasSubstr("`bazel run //conformance:report`\n")));
  EXPECT_LT(markdown.find("## Failed"), markdown.find("| claim |"));
  // The report also shows the cells that were not run.
  EXPECT_THAT(
      markdown,
      AllOf(HasSubstr("| absent | threads | float32 | not run | - | - |\n"),
            HasSubstr("- `not run: absent, threads, 1 of the 1 cell of "
                      "//conformance:absent_test`\n"),
            HasSubstr("- `not run: sums, threads, 1 of the 2 cells of "
                      "//conformance:sums_test`\n"),
            HasSubstr("| sums | gpus | skipped | | | |\n"),
            HasSubstr("- `skipped: sums, gpus, by //sums:gpu_test: needs a "
                      "GPU (--config=cuda runs it). It asks: small sums`\n")));
}

TEST(ReportMarkdownTest, ShowsARowOfAGpuThatFailed) {
  const std::vector<TestTarget> targets = {
      SampleTarget(kGpu, {SampleCase("A", TestOutcome::kFailed, {}, "bad")})};
  EXPECT_THAT(Markdown(MakeReport(targets, SampleClaims())),
              AllOf(HasSubstr("- `//sums:gpu_test, A: bad`\n"),
                    HasSubstr("- `sums: not shown to hold, since part of "
                              "//sums:gpu_test failed and recorded nothing`"),
                    HasSubstr("| FAIL sums | gpus | FAIL | | | |\n")));
}

TEST(ReportMarkdownTest, NamesWhatIsOlderThanTheCommit) {
  ConformanceReport report = SampleReport();
  EXPECT_THAT(Markdown(report), Not(HasSubstr("older")));
  MarkOlder(absl::FromUnixSeconds(1800000000), report);
  EXPECT_THAT(
      Markdown(report),
      AllOf(HasSubstr("; 2 of 2 targets older than the checked-out commit"),
            HasSubstr("made 2027-01-15T08:00:00Z, so of another tree unless "
                      "Bazel found nothing changed: all targets")));
  report.targets[0].older = false;
  EXPECT_THAT(Markdown(report),
              HasSubstr("nothing changed: //conformance:bits_test`\n"));
  const report::Value data = ConformanceDocument(report).data;
  EXPECT_EQ(data["targets"][1]["older"], true);
  EXPECT_EQ(data["committed"], "2027-01-15T08:00:00Z");
  report.targets.resize(8, report.targets[1]);
  report.targets[0].older = false;
  EXPECT_THAT(Markdown(report),
              HasSubstr("//conformance:bits_test and 2 more`\n"));
}

TEST(ReportMarkdownTest, SaysThatThereIsNoClaimOrConfigurationsAreMixed) {
  EXPECT_THAT(Markdown(MakeReport({}, {})),
              AllOf(HasSubstr("No test recorded a claim."),
                    Not(HasSubstr("| claim |"))));
  ConformanceReport report = SampleReport();
  EXPECT_THAT(Markdown(report), Not(HasSubstr("configurations mixed")));
  report.targets[0].configurations = {"optimised, thread sanitizer"};
  EXPECT_THAT(Markdown(report),
              AllOf(HasSubstr("; 2 configurations mixed"),
                    HasSubstr("- 1 target records claims, built: optimised, "
                              "thread sanitizer\n")));
}

// A result of a GPU's test, even a failure, is not a skipped row.
TEST(ReportTotalsTest, CountTheRowsOfGpusThatWereSkipped) {
  EXPECT_EQ(TotalsOf(SampleReport()).gpu_rows_skipped, 1);
  const ConformanceReport passed = ReportOf(
      {SampleTarget(kGpu, {SampleCase("A", TestOutcome::kPassed, {})})});
  EXPECT_EQ(TotalsOf(passed).gpu_rows_skipped, 0);
  EXPECT_THAT(Markdown(passed), Not(HasSubstr("GPU row")));
}

TEST(ReportPageTest, BeginsWithItsCommandAndTotals) {
  const std::string page = HtmlPage(ConformancePage(SampleReport()));
  EXPECT_THAT(page, HasSubstr("<h1>Lockstep report</h1>\n<p class=\"verdict "
                              "bad\">0 claims hold, 1 in part, "));
  EXPECT_THAT(page, HasSubstr("a dash: no test asks the claim at that number"));
}

TEST(ReportJsonTest, HasEveryCell) {
  const report::Value json = ConformanceDocument(SampleReport()).data;
  EXPECT_EQ(json["totals"]["claims_failed"], 1);
  EXPECT_EQ(json["totals"]["claims_in_part"], 1);
  EXPECT_EQ(json["totals"]["gpu_rows_skipped"], 1);
  EXPECT_EQ(json["totals"]["configurations"]["optimised"], 2);
  const report::Value& claim = json["claims"][0];
  EXPECT_EQ(claim["name"], "sums");
  EXPECT_EQ(claim["outcome"], "failed");
  EXPECT_EQ(claim["test"], kSums);
  EXPECT_EQ(claim["rows"][0]["backend"], "processes");
  EXPECT_EQ(claim["gpu_rows"][0]["asks"], "small sums");
  EXPECT_EQ(claim["gpu_rows"][0]["outcome"], "skipped");
  EXPECT_EQ(claim["missing"][0]["cells"], 1);
  const report::Value& cell = claim["rows"][0]["cells"][0];
  EXPECT_EQ(cell["world_size"], 2);
  EXPECT_EQ(cell["outcome"], "failed");
  EXPECT_EQ(cell["error_over_allowed"], 12.5);
  EXPECT_EQ(cell["cases"], 10);
  // Two types with equal results share a row of 20 + 10 cases.
  EXPECT_EQ(claim["rows"][1]["types"].size(), 2u);
  EXPECT_EQ(claim["rows"][1]["cells"][0]["cases"], 30);
  EXPECT_EQ(json["claims"][1]["outcome"], "in_part");
  EXPECT_EQ(json["claims"][2]["outcome"], "not_run");
  EXPECT_EQ(json["claims"][2]["rows"][0]["cells"][0]["outcome"], "not_run");
  EXPECT_EQ(json["skipped"][0]["why"], "no mpirun here");
  EXPECT_EQ(json["targets"][0]["seconds"], 1.5);
  EXPECT_EQ(json["targets"][0]["started"], "2026-01-01T00:00:00.000");
  EXPECT_EQ(json["versions"]["Compiler"], "GCC 12");
}

}  // namespace
}  // namespace lockstep::conformance
