// Judge passes the right trainer and names every mutant; every cause is
// explained in whole sentences, with its placeholders filled.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/judge_mutants.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/check/run/trainer_run.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

using enum TrainerMutant;

TEST(CausesTest, NamesAreUniqueAndInSnakeCase) {
  std::set<std::string> names;
  for (const Cause cause : AllCauses()) {
    const std::string name = CauseName(cause);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(std::all_of(name.begin(), name.end(), [](char c) {
      return std::islower(c) || c == '_';
    })) << name;
  }
  EXPECT_EQ(CauseName(Cause::kRanksShuffleApart), "ranks_shuffle_apart");
}

TEST(CausesTest, ListsEveryCause) {
  // The last of the enumeration.
  const int last = static_cast<int>(Cause::kMetricsOfOneRank);
  EXPECT_EQ(AllCauses().size(), static_cast<size_t>(last + 1));
  const std::set<Cause> causes(AllCauses().begin(), AllCauses().end());
  EXPECT_EQ(causes.size(), AllCauses().size());
}

TEST(CausesTest, ExplainsInSentences) {
  for (const Cause cause : AllCauses()) {
    if (cause == Cause::kNone) continue;
    const Explanation said = Explain(cause, {.k = 0.5,
                                             .world_size = 2,
                                             .rank = 1,
                                             .step = 3,
                                             .accumulate = 4,
                                             .tensors = "W3"});
    for (const std::string& sentence : {said.why, said.fix}) {
      EXPECT_TRUE(sentence.ends_with('.')) << sentence;
      EXPECT_FALSE(std::islower(sentence[0])) << sentence;
    }
    EXPECT_EQ(said.why.find('{'), std::string::npos) << said.why;
  }
  EXPECT_EQ(Explain(Cause::kNone, {}).why, "");
}

TEST(CausesTest, FillsInWhatIsKnown) {
  const std::string summed =
      Explain(Cause::kSummedNotAveraged,
              {.k = 2, .world_size = 2, .tensors = "W3 (the last)"})
          .why;
  EXPECT_EQ(summed,
            "Gradients of W3 (the last) are 2 times one rank's on 2 ranks: "
            "summed and not averaged, or reduced twice.");
  EXPECT_TRUE(Explain(Cause::kRankSkipsLastBatch, {.rank = 1})
                  .why.starts_with("Rank 1 leaves out"));
  EXPECT_NE(Explain(Cause::kWrongWorldSize, {}).fix.find("{world_size}"),
            std::string::npos);
}

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
      const auto verdicts = JudgeTrainer(kNone, check);
      ASSERT_EQ(verdicts.size(), check.claims.size());
      for (const Verdict& verdict : verdicts) {
        EXPECT_EQ(verdict.outcome, Outcome::kPassed) << Said(verdict);
        EXPECT_EQ(verdict.cause, Cause::kNone) << Said(verdict);
        EXPECT_LE(verdict.error_over_allowed, 1) << Said(verdict);
      }
    }
  }
}

TEST(JudgeTest, NamesEveryMutant) {
  std::map<std::pair<std::string, int>, CheckCase> cases;
  for (const int world_size : kWorldSizes) {
    for (CheckCase& check : BuiltInCases(world_size)) {
      const std::string name = check.name;
      cases[{name, world_size}] = WithFakeModel(std::move(check));
    }
  }
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    for (const int world_size : kWorldSizes) {
      SCOPED_TRACE(absl::StrCat(mutant.name, " at ", world_size));
      const std::vector<Verdict> verdicts =
          JudgeTrainer(mutant.mutant, cases.at({mutant.case_name, world_size}));
      ASSERT_FALSE(verdicts.empty());
      bool found = false;
      for (const Verdict& verdict : verdicts) {
        if (verdict.outcome != Outcome::kFailed) continue;
        EXPECT_EQ(verdict.claim, mutant.claim) << Said(verdict);
        EXPECT_EQ(verdict.cause, mutant.cause) << Said(verdict);
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

// Mutants that no cause describes: a false one must not be named.
constexpr struct {
  TrainerMutant mutant;
  const char* case_name;
  Claim claim;
} kNameless[] = {
    {kLosesASample, "uneven_last_batch", Claim::kSamples},
    {kReportsRoundedLoss, "even", Claim::kLoss},
    {kOtherBuffersOnLastRank, "sync_bn", Claim::kState},
    {kFirstRankEvaluatesAllToo, "evaluation", Claim::kEvaluation},
    {kTruncatesAccuracy, "evaluation", Claim::kEvaluation},
};

TEST(JudgeTest, GuessesNothingWhereNoCauseFits) {
  for (const auto& nameless : kNameless) {
    for (const int world_size : kWorldSizes) {
      const CheckCase check = FakeCase(nameless.case_name, world_size);
      const auto verdicts = JudgeTrainer(nameless.mutant, check);
      const auto failed = std::find_if(
          verdicts.begin(), verdicts.end(),
          [](const Verdict& v) { return v.outcome == Outcome::kFailed; });
      ASSERT_NE(failed, verdicts.end()) << Said(verdicts.back());
      EXPECT_EQ(failed->claim, nameless.claim) << Said(*failed);
      EXPECT_EQ(failed->cause, Cause::kUnknown) << Said(*failed);
    }
  }
}

TEST(JudgeTest, LetsOneRankEvaluateForAll) {
  const CheckCase check = FakeCase("evaluation", 3);
  constexpr TrainerMutant kAlone = kFirstRankEvaluatesAll;
  for (const Verdict& verdict : JudgeTrainer(kAlone, check)) {
    EXPECT_EQ(verdict.outcome, Outcome::kPassed) << Said(verdict);
  }
}

// A rank that stopped where the case says so has left nothing out.
TEST(JudgeTest, BlamesNoRankThatWasToStop) {
  const CheckCase check = FakeCase("resume", 2);
  CaseRuns runs = FakeRuns(check, kNone);
  runs.all_ranks.end = TrainerRun::End::kFailed;
  runs.all_ranks.how = "rank 1 exited with status 1";
  runs.all_ranks.ranks[0].output.steps.resize(
      static_cast<size_t>(check.all_ranks.c.stop_after));
  runs.all_ranks.ranks[1] = {.status = absl::NotFoundError("no file"),
                             .output = {}};
  EXPECT_EQ(Judge(check, runs, FakeExtraRuns(kNone))[0].cause, Cause::kCrashes);
}

// Two mutants at once: what is said is true of each tensor that is named.
TEST(JudgeTest, NamesTheTensorsThatHaveTheFactor) {
  const CheckCase check = FakeCase("even", 2);
  CaseRuns runs = FakeRuns(check, kReducesTwiceOneParameter);
  for (TrainerRun::Rank& rank : runs.all_ranks.ranks) {
    NamedTensor& other = rank.output.tensors.at("gradient.1/b1");
    std::vector<float> values;
    for (const double value : ToValues(other)) {
      values.push_back(static_cast<float>(value / 2));
    }
    other = NamedTensor::Of<float>(other.shape, values);
  }
  const auto verdicts = Judge(check, runs, FakeExtraRuns(kNone));
  const Verdict& gradients = verdicts.at(3);
  EXPECT_EQ(gradients.cause, Cause::kDividedTwice) << Said(gradients);
  EXPECT_NE(gradients.why.find("b1"), std::string::npos) << Said(gradients);
  EXPECT_EQ(gradients.why.find("W2"), std::string::npos) << Said(gradients);
}

TEST(JudgeTest, EveryCauseAndClaimHasAMutant) {
  std::set<Cause> causes = {Cause::kNone, Cause::kUnknown};
  std::set<Claim> claims;
  std::set<TrainerMutant> mutants = {kNone, kFirstRankEvaluatesAll};
  for (const auto& nameless : kNameless) mutants.insert(nameless.mutant);
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    causes.insert(mutant.cause);
    claims.insert(mutant.claim);
    mutants.insert(mutant.mutant);
  }
  for (const Cause cause : AllCauses()) {
    EXPECT_TRUE(causes.contains(cause)) << CauseName(cause);
  }
  for (const Claim claim : kAllClaims) {
    EXPECT_TRUE(claims.contains(claim)) << ClaimName(claim);
  }
  for (int i = 0; i <= static_cast<int>(kFirstRanksMetrics); ++i) {
    EXPECT_TRUE(mutants.contains(static_cast<TrainerMutant>(i))) << i;
  }
}

TEST(JudgeTest, SkipsWhatATrainerDoesNotSupport) {
  const CheckCase check = FakeCase("sync_bn", 2);
  CaseRuns runs = FakeRuns(check, kNone);
  runs.all_ranks.ranks[0].output.unsupported = "no SyncBN on CPUs";
  for (const Verdict& verdict : Judge(check, runs, FakeExtraRuns(kNone))) {
    EXPECT_EQ(verdict.outcome, Outcome::kSkipped) << Said(verdict);
    EXPECT_NE(verdict.what.find("no SyncBN on CPUs"), std::string::npos)
        << Said(verdict);
  }
}

TEST(JudgeTest, SaysWhatItKnowsWhenExtraRunsFail) {
  const RunExtra failing = [](const ExtraStart&) -> absl::StatusOr<TrainerRun> {
    return absl::DeadlineExceededError("no time for another run");
  };
  const CheckCase check = FakeCase("local_bn", 2);
  const auto verdicts = Judge(check, FakeRuns(check, kNone), failing);
  const auto failed = std::find_if(
      verdicts.begin(), verdicts.end(),
      [](const Verdict& v) { return v.outcome == Outcome::kFailed; });
  ASSERT_NE(failed, verdicts.end());
  EXPECT_EQ(failed->claim, Claim::kGradients);
  EXPECT_NE(failed->what.find("no time for another run"), std::string::npos);
  const CheckCase uneven = FakeCase("uneven_batches", 2);
  for (const Verdict& verdict :
       Judge(uneven, FakeRuns(uneven, kMeanOfMeans), failing)) {
    if (verdict.claim != Claim::kGradients) continue;
    EXPECT_EQ(verdict.cause, Cause::kUnknown) << Said(verdict);
    EXPECT_EQ(verdict.outcome, Outcome::kFailed) << Said(verdict);
  }
}

}  // namespace
}  // namespace lockstep
