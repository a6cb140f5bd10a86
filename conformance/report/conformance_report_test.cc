// From what the tests say to cells, claims and totals.
#include "conformance/report/conformance_report.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "conformance/report/claims.h"
#include "conformance/report/sample_report.h"
#include "conformance/report/test_logs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr char kSums[] = "//conformance:sums_test";
constexpr char kGpu[] = "//sums:gpu_test";

// "sums" with these rows, and two claims of which nothing is run.
std::vector<KnownClaim> ClaimsWith(const std::vector<ExpectedRow>& sums) {
  std::vector<KnownClaim> claims = SampleClaims();
  claims[0].rows = sums;
  claims[1].rows = {{"threads", "//conformance:bits_test", {"float32"}, {1}}};
  return claims;
}

// Two cells of one claim, and a GPU.
std::vector<KnownClaim> SumsClaims() {
  return ClaimsWith({{"threads", kSums, {"float32"}, {1, 2}},
                     {"gpus", kGpu, {}, {}, "small sums"}});
}

TestCaseResult SumsAt(int world_size,
                      TestOutcome outcome = TestOutcome::kPassed) {
  return SampleCase(
      "Sums", outcome,
      {SampleClaim("sums", "threads", world_size, "float32", 0.5)},
      outcome == TestOutcome::kPassed ? "" : "why");
}

ConformanceReport ReportOf(const std::vector<TestTarget>& targets) {
  return MakeReport(targets, SumsClaims());
}

ConformanceReport ReportOfCases(const std::vector<TestCaseResult>& cases) {
  return ReportOf({SampleTarget(kSums, cases)});
}

ClaimState StateOfSums(const ConformanceReport& report) {
  return StateOf(report.claims[0]);
}

TEST(MakeReportTest, SortsCellsByClaimBackendAndType) {
  const ConformanceReport report = SampleReport();
  EXPECT_THAT(report.world_sizes, ElementsAre(1, 2, 4));
  ASSERT_THAT(report.claims, SizeIs(3));
  const std::vector<ClaimRow>& rows = report.claims[0].rows;
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[0].backend, "processes");
  EXPECT_EQ(CellText(rows[0].cells.at(2)), "FAIL 12.5");
  // Two types that say the same, of 20 and 10 cases.
  EXPECT_EQ(rows[1].backend, "threads");
  EXPECT_THAT(rows[1].types, ElementsAre("float16", "float64"));
  EXPECT_EQ(CellText(rows[1].cells.at(1)), "0.5");
  EXPECT_EQ(rows[1].cells.at(1).cases, 30);
  EXPECT_EQ(rows[1].cells.at(1).passed, 3);
  EXPECT_THAT(rows[2].types, ElementsAre("float32"));
  EXPECT_EQ(CellText(report.claims[1].rows[0].cells.at(4)), "skip");
  EXPECT_EQ(CellText(report.claims[1].rows[1].cells.at(4)), "exact");
  EXPECT_EQ(report.first_started, "2026-01-01T00:00:00.000");
}

TEST(MakeReportTest, CountsAndNamesWhatFailedAndWasSkipped) {
  const ConformanceReport report = SampleReport();
  const ReportTotals totals = TotalsOf(report);
  EXPECT_EQ(totals.claims_hold, 0);
  EXPECT_EQ(totals.claims_in_part, 1);
  EXPECT_EQ(totals.claims_not_run, 1);
  EXPECT_EQ(totals.claims_failed, 1);
  EXPECT_EQ(totals.tests_passed, 3);
  EXPECT_EQ(totals.tests_failed, 1);
  EXPECT_EQ(totals.tests_skipped, 2);
  EXPECT_THAT(totals.configurations, ElementsAre(Pair("optimised", 2)));
  ASSERT_THAT(report.failures, SizeIs(1));
  EXPECT_EQ(report.failures[0].test, "Sums.C");
  EXPECT_EQ(report.failures[0].what,
            "sums_test.cc:7 Expected: right Actual: wrong");
  ASSERT_THAT(report.skips, SizeIs(1));
  EXPECT_EQ(report.skips[0].why, "no mpirun here");
  EXPECT_EQ(report.skips[0].tests, 2);
}

TEST(MakeReportTest, AProblemOfATargetIsAFailure) {
  TestTarget target = SampleTarget(kSums, {});
  target.problems = {"shard 1 of 2: it wrote no test.xml"};
  const ConformanceReport report = ReportOf({target});
  ASSERT_THAT(report.failures, SizeIs(1));
  EXPECT_EQ(report.failures[0].what, "shard 1 of 2: it wrote no test.xml");
  EXPECT_EQ(TotalsOf(report).tests_failed, 1);
}

// Of two shards one crashed: what the other measured does not show the claim.
TEST(MakeReportTest, AClaimFailsWithAPartOfItsTestThatRecordedNothing) {
  TestTarget crashed = SampleTarget(kSums, {SumsAt(1), SumsAt(2)});
  crashed.problems = {"shard 2 of 2: it wrote no test.xml"};
  const TestTarget control = SampleTarget(
      kSums, {SumsAt(1), SumsAt(2),
              SampleCase("Control", TestOutcome::kFailed, {}, "passed")});
  for (const TestTarget& target : {crashed, control}) {
    const ConformanceReport report = ReportOf({target});
    EXPECT_THAT(report.claims[0].failed_tests, ElementsAre(kSums));
    EXPECT_EQ(StateOfSums(report), ClaimState::kFailed);
    EXPECT_EQ(TotalsOf(report).claims_failed, 1);
    EXPECT_EQ(TotalsOf(report).claims_not_run, 2);
  }
  // A failure of another test.
  const ConformanceReport report = ReportOf(
      {SampleTarget(kSums, {SumsAt(1), SumsAt(2)}),
       SampleTarget("//conformance:bits_test",
                    {SampleCase("B", TestOutcome::kFailed, {}, "bad")})});
  EXPECT_EQ(StateOfSums(report), ClaimState::kHolds);
  EXPECT_EQ(StateOf(report.claims[1]), ClaimState::kFailed);
}

// What it would have measured is not known.
TEST(MakeReportTest, AClaimWhoseTestFailedAndRecordedNothingIsNotOnlyNotRun) {
  TestTarget target = SampleTarget(kSums, {});
  target.problems = {"it ran past its time limit"};
  const ConformanceReport report = ReportOf({target});
  EXPECT_EQ(StateOfSums(report), ClaimState::kFailed);
  EXPECT_EQ(StateOf(report.claims[1]), ClaimState::kNotRun);
}

TEST(MakeReportTest, AClaimOfWhichAllWasRunHolds) {
  const ConformanceReport report = ReportOfCases({SumsAt(1), SumsAt(2)});
  EXPECT_EQ(StateOfSums(report), ClaimState::kHolds);
  EXPECT_THAT(report.failures, IsEmpty());
  EXPECT_THAT(report.claims[0].missing, IsEmpty());
  // What is skipped for lack of a GPU does not count.
  ASSERT_THAT(report.claims[0].gpu_rows, SizeIs(1));
  EXPECT_EQ(report.claims[0].gpu_rows[0].state, ClaimState::kSkipped);
  EXPECT_THAT(report.claims[0].gpu_rows[0].why, HasSubstr("needs a GPU"));
}

// As after --test_filter: the column is there, and says so.
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
  // A failure is worse than both.
  const ConformanceReport failed = ReportOfCases(
      {SumsAt(1, TestOutcome::kSkipped), SumsAt(1, TestOutcome::kFailed)});
  EXPECT_EQ(StateOf(failed.claims[0].rows[0].cells.at(1)), ClaimState::kFailed);
}

// Each test has to record its own.
TEST(MakeReportTest, ACellThatOneOfItsTwoTestsRecordedIsShownInPart) {
  const TestTarget target = SampleTarget(kSums, {SumsAt(1)});
  const ConformanceReport report = MakeReport(
      {&target, 1},
      ClaimsWith({{"threads", kSums, {"float32"}, {1}},
                  {"threads", "//conformance:other_test", {"float32"}, {1}}}));
  EXPECT_EQ(CellText(report.claims[0].rows[0].cells.at(1)), "0.5 in part");
  EXPECT_THAT(report.failures, IsEmpty());
}

// Its slice was not run, or ran too.
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

// --test_filter can leave out some of the tests of a cell.
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
  // What is expected of another test.
  const ConformanceReport report =
      ReportOf({SampleTarget("//conformance:other_test", {SumsAt(1)})});
  EXPECT_THAT(report.failures, SizeIs(1));
}

// A test of GPUs records nothing: it is what its target is.
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

// Were a test to record what it does not ask.
TEST(MakeReportTest, AClaimThatIsNotWithinWhatIsAllowedFails) {
  const struct {
    double error;
    bool holds;
    int64_t cases = 10;
  } kClaims[] = {{0.5, false, 0},
                 {1, true},
                 {1.0001, false},
                 {std::numeric_limits<double>::infinity(), false}};
  for (const auto& claim : kClaims) {
    ClaimResult result =
        SampleClaim("sums", "threads", 2, "float32", claim.error);
    result.cases = claim.cases;
    const ConformanceReport report = ReportOfCases(
        {SumsAt(1), SampleCase("Sums.A", TestOutcome::kPassed, {result})});
    EXPECT_EQ(report.failures.empty(), claim.holds) << claim.error;
    EXPECT_EQ(StateOfSums(report),
              claim.holds ? ClaimState::kHolds : ClaimState::kFailed)
        << claim.error;
  }
}

// "Allowed: none" is no matter of what the test says.
TEST(MakeReportTest, AClaimOfTheWrongKindFails) {
  const struct {
    const char* claim;
    double error;
    bool exact;
    bool holds;
    int64_t cases = 10;
  } kClaims[] = {{"bits", 0, true, true},     {"bits", 0, true, false, 0},
                 {"bits", 0, false, false},   {"bits", 0.9, false, false},
                 {"bits", 1e-9, true, false}, {"sums", 0.9, false, true},
                 {"sums", 0, true, false}};
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

}  // namespace
}  // namespace lockstep
