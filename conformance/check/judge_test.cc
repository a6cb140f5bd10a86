// Judge passes the right trainer and names what is planted in the others.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/built_in_cases.h"
#include "conformance/check/causes.h"
#include "conformance/check/check_case.h"
#include "conformance/check/fake_fault.h"
#include "conformance/check/fake_model.h"
#include "conformance/check/fake_trainer.h"
#include "conformance/check/judge_faults.h"
#include "conformance/check/verdict.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kWorldSizes[] = {2, 3, 4};

std::string Said(const Verdict& verdict) {
  return absl::StrCat(verdict.case_name, " ", ClaimName(verdict.claim), " ",
                      OutcomeName(verdict.outcome), " ",
                      verdict.error_over_allowed, " ", CauseName(verdict.cause),
                      ": ", verdict.what, " ", verdict.why, " ", verdict.fix);
}

TEST(JudgeTest, PassesTheRightTrainer) {
  for (const int world_size : kWorldSizes) {
    for (CheckCase& built_in : BuiltInCases(world_size)) {
      const CheckCase check = WithFakeModel(std::move(built_in));
      const auto verdicts = Judge(check, FakeRuns(check, FakeFault::kNone),
                                  FakeProbe(FakeFault::kNone));
      ASSERT_EQ(verdicts.size(), check.claims.size());
      for (const Verdict& verdict : verdicts) {
        EXPECT_EQ(verdict.outcome, Outcome::kPassed) << Said(verdict);
        EXPECT_EQ(verdict.cause, Cause::kNone) << Said(verdict);
        EXPECT_LE(verdict.error_over_allowed, 1) << Said(verdict);
      }
    }
  }
}

TEST(JudgeTest, NamesEveryFault) {
  std::map<std::pair<std::string, int>, CheckCase> cases;
  for (const int world_size : kWorldSizes) {
    for (CheckCase& check : BuiltInCases(world_size)) {
      const std::string name = check.name;
      cases[{name, world_size}] = WithFakeModel(std::move(check));
    }
  }
  for (const JudgeFault& fault : AllJudgeFaults()) {
    for (const int world_size : kWorldSizes) {
      SCOPED_TRACE(absl::StrCat(fault.name, " at ", world_size));
      const std::vector<Verdict> verdicts =
          JudgeFaulty(fault, cases.at({fault.case_name, world_size}));
      ASSERT_FALSE(verdicts.empty());
      bool found = false;
      for (const Verdict& verdict : verdicts) {
        if (verdict.outcome != Outcome::kFailed) continue;
        EXPECT_EQ(verdict.claim, fault.claim) << Said(verdict);
        EXPECT_EQ(verdict.cause, fault.cause) << Said(verdict);
        EXPECT_NE(verdict.what, "") << Said(verdict);
        EXPECT_NE(verdict.why, "") << Said(verdict);
        EXPECT_NE(verdict.fix, "") << Said(verdict);
        EXPECT_EQ(Said(verdict).find('{'), Said(verdict).find("{world_size}"));
        found = true;
      }
      EXPECT_TRUE(found) << Said(verdicts.back());
    }
  }
}

TEST(JudgeTest, EveryCauseAndClaimHasAFault) {
  std::set<Cause> causes = {Cause::kNone, Cause::kUnknown};
  std::set<Claim> claims;
  std::set<FakeFault> faults = {FakeFault::kNone};
  for (const JudgeFault& fault : AllJudgeFaults()) {
    causes.insert(fault.cause);
    claims.insert(fault.claim);
    faults.insert(fault.fault);
  }
  for (const Cause cause : AllCauses()) {
    EXPECT_TRUE(causes.contains(cause)) << CauseName(cause);
  }
  for (const Claim claim : kAllClaims) {
    EXPECT_TRUE(claims.contains(claim)) << ClaimName(claim);
  }
  for (int i = 0; i <= static_cast<int>(FakeFault::kFirstRanksMetrics); ++i) {
    EXPECT_TRUE(faults.contains(static_cast<FakeFault>(i))) << i;
  }
}

TEST(JudgeTest, SkipsWhatATrainerDoesNotSupport) {
  const CheckCase check = FakeCase("sync_bn", 2);
  CaseRuns runs = FakeRuns(check, FakeFault::kNone);
  runs.all_ranks.ranks[0].output.unsupported = "no SyncBN on CPUs";
  for (const Verdict& verdict :
       Judge(check, runs, FakeProbe(FakeFault::kNone))) {
    EXPECT_EQ(verdict.outcome, Outcome::kSkipped) << Said(verdict);
    EXPECT_NE(verdict.what.find("no SyncBN on CPUs"), std::string::npos)
        << Said(verdict);
  }
}

TEST(JudgeTest, SaysWhatItKnowsWhenProbesFail) {
  const RunProbe failing = [](const Probe&) -> absl::StatusOr<TrainerRun> {
    return absl::DeadlineExceededError("no time for probes");
  };
  const CheckCase check = FakeCase("local_bn", 2);
  const auto verdicts =
      Judge(check, FakeRuns(check, FakeFault::kNone), failing);
  const auto failed = std::find_if(
      verdicts.begin(), verdicts.end(),
      [](const Verdict& v) { return v.outcome == Outcome::kFailed; });
  ASSERT_NE(failed, verdicts.end());
  EXPECT_EQ(failed->claim, Claim::kGradients);
  EXPECT_NE(failed->what.find("no time for probes"), std::string::npos);
  const CheckCase uneven = FakeCase("uneven_batches", 2);
  for (const Verdict& verdict :
       Judge(uneven, FakeRuns(uneven, FakeFault::kMeanOfMeans), failing)) {
    if (verdict.claim != Claim::kGradients) continue;
    EXPECT_EQ(verdict.cause, Cause::kUnknown) << Said(verdict);
    EXPECT_EQ(verdict.outcome, Outcome::kFailed) << Said(verdict);
  }
}

}  // namespace
}  // namespace lockstep
