// Tests that Judge passes the right trainer and names every mutant, and that
// every cause has an explanation in whole sentences with filled placeholders.
#include "conformance/check/judge/judge.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/judge_mutants.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

TEST(CausesTest, HaveNamesOfTheirOwnInSnakeCase) {
  // The last enumerator.
  const int last = static_cast<int>(Cause::kMetricsOfOneRank);
  EXPECT_EQ(AllCauses().size(), static_cast<size_t>(last + 1));
  std::set<std::string> names;
  for (const Cause cause : AllCauses()) {
    const std::string name = CauseName(cause);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(std::ranges::all_of(name, [](char c) {
      return std::islower(c) || c == '_';
    })) << name;
  }
  EXPECT_EQ(CauseName(Cause::kRanksShuffleApart), "ranks_shuffle_apart");
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
            "summed instead of averaged, or reduced twice.");
  EXPECT_TRUE(Explain(Cause::kRankSkipsLastBatch, {.rank = 1})
                  .why.starts_with("Rank 1 leaves out"));
  EXPECT_NE(Explain(Cause::kWrongWorldSize, {}).fix.find("{world_size}"),
            std::string::npos);
}

constexpr int kWorldSizes[] = {2, 3, 4};

std::string Said(const Verdict& verdict) {
  return absl::StrCat(verdict.case_name, " ", ClaimName(verdict.claim), " ",
                      OutcomeName(verdict.outcome), " ",
                      verdict.error_over_allowed.value_or(-1), " ",
                      CauseName(verdict.cause), ": ", verdict.what, " ",
                      verdict.why, " ", verdict.fix);
}

Verdict FirstFailed(const std::vector<Verdict>& verdicts) {
  const auto failed =
      std::ranges::find(verdicts, Outcome::kFailed, &Verdict::outcome);
  EXPECT_NE(failed, verdicts.end()) << Said(verdicts.back());
  return failed == verdicts.end() ? Verdict() : *failed;
}

TEST(JudgeTest, PassesTheRightTrainer) {
  for (const int world_size : kWorldSizes) {
    for (const CheckCase& built_in : BuiltInCases(world_size)) {
      const CheckCase check = FakeCase(built_in.name, world_size);
      const auto verdicts = JudgeTrainer("", check);
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
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    for (const int world_size : kWorldSizes) {
      SCOPED_TRACE(absl::StrCat(mutant.name, " at ", world_size));
      const std::vector<Verdict> verdicts =
          JudgeTrainer(mutant.name, FakeCase(mutant.case_name, world_size));
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

// Mutants that no cause describes. The judge must not name a false cause.
constexpr struct {
  const char* mutant;
  const char* case_name;
  Claim claim;
} kNameless[] = {
    {"loses_a_sample", "uneven_last_batch", Claim::kSamples},
    {"uneven_gradient", "even", Claim::kGradients},
    {"uneven_gradient", "momentum", Claim::kGradients},
    {"uneven_gradient", "accumulation", Claim::kGradients},
    {"rounded_loss", "even", Claim::kLoss},
    {"other_buffers_on_last_rank", "sync_bn", Claim::kState},
    {"first_rank_evaluates_all_too", "evaluation", Claim::kEvaluation},
    {"truncated_accuracy", "evaluation", Claim::kEvaluation},
};

TEST(JudgeTest, GuessesNothingWhereNoCauseFits) {
  for (const auto& nameless : kNameless) {
    for (const int world_size : kWorldSizes) {
      const CheckCase check = FakeCase(nameless.case_name, world_size);
      const auto verdicts = JudgeTrainer(nameless.mutant, check);
      const Verdict failed = FirstFailed(verdicts);
      EXPECT_EQ(failed.claim, nameless.claim) << Said(failed);
      EXPECT_EQ(failed.cause, Cause::kUnknown) << Said(failed);
    }
  }
}

TEST(JudgeTest, LetsOneRankEvaluateForAll) {
  const CheckCase check = FakeCase("evaluation", 3);
  const char kMutant[] = "first_rank_evaluates_all";
  const CaseRuns runs = FakeRuns(check, kMutant);
  EXPECT_FALSE(runs.all_ranks.ranks[1].output.evaluation.has_value());
  for (const Verdict& verdict : JudgeTrainer(kMutant, check)) {
    EXPECT_EQ(verdict.outcome, Outcome::kPassed) << Said(verdict);
  }
}

// A rank that stopped where the case says so left nothing out.
TEST(JudgeTest, BlamesNoRankThatWasToStop) {
  const CheckCase check = FakeCase("resume", 2);
  CaseRuns runs = FakeRuns(check, "");
  runs.all_ranks.end = TrainerRun::End::kFailed;
  runs.all_ranks.how = "rank 1 exited with status 1";
  runs.all_ranks.ranks[0].output.steps.resize(check.all_ranks.c.stop_after);
  runs.all_ranks.ranks[1] = {.status = absl::NotFoundError("no file")};
  EXPECT_EQ(Judge(check, runs, FakeExtraRuns(""))[0].cause, Cause::kCrashes);
}

// The lines and the command belong to the run that failed. No claim has a
// measured error, not even a skipped one.
TEST(JudgeTest, TellsOfTheRunThatFailed) {
  const CheckCase check = FakeCase("even", 2);
  CaseRuns runs = FakeRuns(check, "");
  runs.one_rank.by_hand = "sh one";
  runs.all_ranks.by_hand = "sh all";
  for (const Verdict& verdict : Judge(check, runs, FakeExtraRuns(""))) {
    EXPECT_EQ(verdict.by_hand, "");
  }
  runs.all_ranks.end = TrainerRun::End::kFailed;
  runs.all_ranks.last_lines = {"[0] one", "[1] two"};
  const auto verdicts = Judge(check, runs, FakeExtraRuns(""));
  EXPECT_EQ(verdicts[0].last_lines, runs.all_ranks.last_lines);
  EXPECT_EQ(verdicts[0].by_hand, "sh all");
  for (const Verdict& verdict : verdicts) {
    EXPECT_EQ(verdict.error_over_allowed, std::nullopt) << Said(verdict);
  }
  const Verdict differs = FirstFailed(JudgeTrainer(
      AllJudgeMutants()[0].name, FakeCase(AllJudgeMutants()[0].case_name, 2)));
  EXPECT_TRUE(differs.last_lines.empty());
}

// With two mutants at once, the sentence must be true for each tensor that it
// names.
TEST(JudgeTest, NamesTheTensorsThatHaveTheFactor) {
  const CheckCase check = FakeCase("even", 2);
  CaseRuns runs = FakeRuns(check, "one_reduced_twice");
  for (TrainerRun::Rank& rank : runs.all_ranks.ranks) {
    NamedTensor& other = rank.output.tensors.at("gradient.1/b1");
    std::vector<float> values;
    for (const double value : ToValues(other)) {
      values.push_back(static_cast<float>(value / 2));
    }
    other = NamedTensor::Of<float>(other.shape, values);
  }
  const auto verdicts = Judge(check, runs, FakeExtraRuns(""));
  const Verdict& gradients = verdicts.at(3);
  EXPECT_EQ(gradients.cause, Cause::kDividedTwice) << Said(gradients);
  EXPECT_NE(gradients.why.find("b1"), std::string::npos) << Said(gradients);
  EXPECT_EQ(gradients.why.find("W2"), std::string::npos) << Said(gradients);
}

// conformance/mutants/all_mutants_test.cc tests that every claim has a mutant,
// for all folders at once.
TEST(JudgeTest, EveryCauseHasAMutant) {
  std::set<Cause> causes = {Cause::kNone, Cause::kUnknown};
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    causes.insert(mutant.cause);
  }
  for (const Cause cause : AllCauses()) {
    EXPECT_TRUE(causes.contains(cause)) << CauseName(cause);
  }
}

TEST(JudgeTest, SkipsWhatATrainerDoesNotSupport) {
  const CheckCase check = FakeCase("sync_bn", 2);
  CaseRuns runs = FakeRuns(check, "");
  runs.all_ranks.ranks[0].output.unsupported = "no SyncBN on CPUs";
  for (const Verdict& verdict : Judge(check, runs, FakeExtraRuns(""))) {
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
  const auto verdicts = Judge(check, FakeRuns(check, ""), failing);
  const Verdict failed = FirstFailed(verdicts);
  EXPECT_EQ(failed.claim, Claim::kGradients);
  EXPECT_NE(failed.what.find("no time for another run"), std::string::npos);
  const CheckCase uneven = FakeCase("uneven_batches", 2);
  for (const Verdict& verdict :
       Judge(uneven, FakeRuns(uneven, "mean_of_means"), failing)) {
    if (verdict.claim != Claim::kGradients) continue;
    EXPECT_EQ(verdict.cause, Cause::kUnknown) << Said(verdict);
    EXPECT_EQ(verdict.outcome, Outcome::kFailed) << Said(verdict);
  }
}

constexpr double kUnit = 0x1p-23;  // One unit in the last place of 1.

// Returns a case with two layers: W1 and b1, W2 and b2.
CheckCase TwoLayers(const std::string& dtype = "float32") {
  CheckCase check;
  check.one_rank.c.dtype = dtype;
  check.layers = {{"the first", {"W1", "b1"}}, {"the last", {"W2", "b2"}}};
  for (const char* name : {"W1", "W2", "b1", "b2", "loose"}) {
    check.files.weights.tensors[name] =
        NamedTensor::Of<float>({2}, std::vector<float>{1, 1});
  }
  return check;
}

AllowedErrors Gradients(const Tensors& want,
                        const std::vector<Tensors>& reordered) {
  return AllowedErrorsOf(TwoLayers(), {}, want, reordered);
}

TEST(ToleranceTest, AllowsEightTimesTheShadows) {
  const AllowedErrors allowed =
      Gradients({{"W2", {1, -1}}}, {{{"W2", {1, -1}}}, {{"W2", {1, -1.0001}}}});
  EXPECT_NEAR(allowed.at("W2").error, 8e-4, 1e-12);
  EXPECT_TRUE(allowed.at("W2").meaningful);
}

TEST(ToleranceTest, AllowsUnitsInTheLastPlace) {
  const Tensors want = {{"W2", {1, -1.5}}};
  EXPECT_EQ(Gradients(want, {want, want}).at("W2").error, 4 * kUnit);
  CheckCase three = TwoLayers();
  three.all_ranks.c.batch_sizes = {1, 1, 1};
  EXPECT_EQ(AllowedErrorsOf(three, {}, want, {}).at("W2").error, 12 * kUnit);
  const CheckCase half = TwoLayers("bfloat16");
  EXPECT_EQ(AllowedErrorsOf(half, {}, want, {}).at("W2").error, 8 * 0x1p-7);
  // For a parameter: 4 units of float32 of the value, 8 of bfloat16 of the
  // change.
  EXPECT_EQ(AllowedErrorsOf(half, {{"W2", {1, -1}}}, want, {}).at("W2").error,
            4 * kUnit + 8 * 0x1p-8);
}

// Merged statistics shift the gradient of a scale by units of the gradient of
// its shift.
TEST(ToleranceTest, AllowsUnitsOfTheLayerInAMergedBatchNorm) {
  CheckCase check = TwoLayers();
  check.layers[0].tensors.push_back("bn.running_mean");
  const Tensors want = {{"W1", {0.25, 0.125}}, {"b1", {1, -1}}, {"W2", {0.25}}};
  const auto allowed = [&](const std::string& name) {
    return AllowedErrorsOf(check, {}, want, {}).at(name).error;
  };
  EXPECT_EQ(allowed("W1"), 4 * kUnit / 4);
  check.all_ranks.c.batch_norm = "sync";
  EXPECT_EQ(allowed("W1"), 4 * kUnit / 4 + 4 * kUnit);
  EXPECT_EQ(allowed("W2"), 4 * kUnit / 4);
}

TEST(ToleranceTest, CountsTheRoundingBehind) {
  const Tensors want = {{"W1", {4, 1}}, {"W2", {1, 1}}};
  const Tensors again = {{"W1", {4, 1}}, {"W2", {1, 1.0001}}};
  EXPECT_NEAR(Gradients(want, {again}).at("W1").error, 32e-4, 1e-12);
  const Tensors front = {{"W1", {4.0001, 1}}, {"W2", {1, 1}}};
  EXPECT_EQ(Gradients(want, {front}).at("W2").error, 4 * kUnit);
}

// The gradient of a bias in front of a batch norm is only rounding. Its spread
// says nothing about the gradients that flow through its layer.
TEST(ToleranceTest, DoesNotCountWhatCancelsBehind) {
  const Tensors want = {{"W1", {4, 1}}, {"W2", {1, 1}}, {"b2", {5e-4, 0}}};
  const Tensors again = {{"W1", {4, 1}}, {"W2", {1, 1}}, {"b2", {5.3e-4, 0}}};
  const AllowedErrors allowed = Gradients(want, {again});
  EXPECT_EQ(allowed.at("W1").error, 16 * kUnit);
  EXPECT_TRUE(allowed.at("W1").meaningful);
  EXPECT_TRUE(allowed.at("b2").meaningful);
}

TEST(ToleranceTest, RefusesToleranceWithoutMeaning) {
  const Tensors want = {{"W2", {1, 1}}};
  const Tensors far = {{"W2", {1, 1.002}}}, near = {{"W2", {1, 1.001}}};
  EXPECT_FALSE(Gradients(want, {far}).at("W2").meaningful);
  EXPECT_TRUE(Gradients(want, {near}).at("W2").meaningful);
  EXPECT_FALSE(Fits({"W2"}, want, want, Gradients(want, {far})));
  const Compared compared =
      Compare(TwoLayers(), want, want, Gradients(want, {far}));
  ASSERT_EQ(compared.differing.size(), 1u);
  EXPECT_NE(
      Describe(TwoLayers(), compared.differing[0]).find("cannot be judged"),
      std::string::npos);
  // For a parameter the change counts, not the value.
  const Tensors start = {{"W2", {0.99, 1}}};
  EXPECT_FALSE(AllowedErrorsOf(TwoLayers(), start, want,
                               std::vector<Tensors>{{{"W2", {1, 1.0001}}}})
                   .at("W2")
                   .meaningful);
}

TEST(ToleranceTest, HoldsNoiseToItsLayer) {
  const Tensors want = {{"W1", {1, 1}}, {"b1", {1e-8, -1e-8}}};
  const Tensors again = {{"W1", {1, 1}}, {"b1", {-1e-8, 3e-8}}};
  for (const std::vector<Tensors>& reordered :
       {std::vector<Tensors>{again}, std::vector<Tensors>{want}}) {
    const AllowedErrors allowed = Gradients(want, reordered);
    EXPECT_TRUE(allowed.at("b1").meaningful);
    EXPECT_EQ(allowed.at("b1").magnitude, 1);
    EXPECT_GE(allowed.at("b1").error, 64 * kUnit);
    EXPECT_LT(allowed.at("b1").error, 1e-5);
    const Tensors got = {{"W1", {1, 1}}, {"b1", {1e-5, 0}}};
    EXPECT_EQ(NamesOf(Compare(TwoLayers(), want, got, allowed)),
              std::vector<std::string>{"b1"});
  }
  // Without other tensors, there is no magnitude to compare with.
  EXPECT_FALSE(Gradients({{"b1", {1e-8, -1e-8}}}, {{{"b1", {-1e-8, 3e-8}}}})
                   .at("b1")
                   .meaningful);
}

// A tensor that is small beside its layer can still be a real number.
TEST(ToleranceTest, FindsThatASmallTensorIsZeroHalfOrDouble) {
  const Tensors want = {{"W1", {1, 1}}, {"b1", {5e-3, 1e-3}}, {"W2", {1, 1}}};
  // The rounding lies in a tensor behind it, or in the tensor itself.
  for (const Tensors& again :
       {Tensors{{"W1", {1, 1}}, {"b1", {5e-3, 1e-3}}, {"W2", {1, 1.0002}}},
        Tensors{{"W1", {1, 1}}, {"b1", {5.1e-3, 1e-3}}, {"W2", {1, 1}}}}) {
    const AllowedErrors allowed = Gradients(want, {again});
    EXPECT_TRUE(allowed.at("b1").meaningful);
    EXPECT_LT(allowed.at("b1").error, 2.5e-3);
    for (const double factor : {0.0, 0.5, 2.0}) {
      Tensors got = want;
      for (double& value : got["b1"]) value *= factor;
      EXPECT_EQ(NamesOf(Compare(TwoLayers(), want, got, allowed)),
                std::vector<std::string>{"b1"});
    }
    EXPECT_TRUE(Compare(TwoLayers(), want, again, allowed).differing.empty());
  }
}

// A tensor this small may be rounding that the reordered runs hide.
TEST(ToleranceTest, HoldsToItsLayerWhatMayBeRounding) {
  const Tensors want = {{"W1", {1, 1}}, {"b1", {1e-3, 0}}, {"W2", {1, 1}}};
  const Tensors again = {
      {"W1", {1, 1}}, {"b1", {1e-3, 0}}, {"W2", {1, 1.0001}}};
  const Allowed allowed = Gradients(want, {again}).at("b1");
  EXPECT_EQ(allowed.magnitude, 1);
  EXPECT_NEAR(allowed.error, 64e-4, 1e-9);
  EXPECT_TRUE(allowed.meaningful);
}

// A spread within its neighbours' tolerance does not make a tensor too noisy.
TEST(ToleranceTest, JudgesSmallTensorsInBFloat16) {
  const CheckCase half = TwoLayers("bfloat16");
  const Tensors want = {{"W1", {1, 1}}, {"b1", {3e-3, 0}}, {"W2", {1, 1}}};
  const Tensors again = {
      {"W1", {1, 1.01}}, {"b1", {3.01e-3, 0}}, {"W2", {1, 1.01}}};
  const AllowedErrors allowed =
      AllowedErrorsOf(half, {}, want, std::vector<Tensors>{again});
  for (const char* name : {"W1", "b1", "W2"}) {
    EXPECT_TRUE(allowed.at(name).meaningful) << name;
    EXPECT_NEAR(allowed.at(name).error, 0.08, 1e-9) << name;
  }
}

TEST(ToleranceTest, OfALayerlessTensorAllOthersAreTheScale) {
  const Tensors want = {{"W1", {1, 1}}, {"loose", {1e-8, 0}}};
  EXPECT_EQ(Gradients(want, {want}).at("loose").magnitude, 1);
}

TEST(ToleranceTest, RejectsNaNAndWhatIsMissing) {
  const Tensors want = {{"W1", {1, 1}}, {"W2", {1, 1}}};
  const AllowedErrors allowed = Gradients(want, {want});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Compared compared =
      Compare(TwoLayers(), want, {{"W2", {1, nan}}}, allowed);
  EXPECT_EQ(NamesOf(compared), (std::vector<std::string>{"W1", "W2"}));
  EXPECT_EQ(compared.differing[0].error, 1);
  EXPECT_EQ(compared.differing[1].element, 1u);
  EXPECT_EQ(compared.error_over_allowed,
            std::numeric_limits<double>::infinity());
  EXPECT_FALSE(Fits({"W2"}, want, {{"W2", {1, nan}}}, allowed));
  EXPECT_TRUE(Fits({"W2"}, want, want, allowed));
  EXPECT_FALSE(Fits({}, want, want, allowed));
}

TEST(ToleranceTest, SaysWhereAndByHowMuch) {
  const Tensors want = {{"W2", {1, 1}}};
  const Tensors got = {{"W2", {1, 1 + 100 * kUnit}}};
  const Compared compared =
      Compare(TwoLayers(), want, got, Gradients(want, {want}));
  EXPECT_EQ(compared.error_over_allowed, 25);
  const std::string said = Describe(TwoLayers(), compared.differing.at(0));
  EXPECT_NE(said.find("W2 (the last) is off by 1.19e-05 at element 1"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("100 units in the last place"), std::string::npos)
      << said;
}

TEST(ToleranceTest, OfScalars) {
  const CheckCase check = TwoLayers();
  EXPECT_EQ(AllowedScalarError(check, 1, {}).error, 16 * kUnit);
  const std::vector<double> reordered = {1e-4, -2e-4};
  EXPECT_NEAR(AllowedScalarError(check, 1, reordered).error, 16e-4, 1e-12);
  const std::vector<double> far = {0.002};
  EXPECT_FALSE(AllowedScalarError(check, 1, far).meaningful);
  const CheckCase half = TwoLayers("bfloat16");
  EXPECT_TRUE(AllowedScalarError(half, 1, {}).meaningful);
  EXPECT_EQ(AllowedScalarError(half, 1, {}).error, 16 * kUnit + 8 * 0x1p-7);
}

const std::vector<std::string> kBoth = {"W", "b"};

Tensors Want() { return {{"W", {1, -2, 3}}, {"b", {0.5, 0.25}}}; }

AllowedErrors Tight() {
  AllowedErrors allowed;
  for (const std::string& name : kBoth) allowed[name].error = 1e-6;
  return allowed;
}

TEST(FactorsTest, FindsTheNamedOnes) {
  const auto named = NamedFactors(/*world_size=*/4, /*accumulate=*/3);
  ASSERT_EQ(named.size(), 8u);
  for (const NamedFactor& factor : named) {
    const auto found = FactorOf(kBoth, Want(), Times(factor.k, Want()), Tight(),
                                named, /*any=*/false);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->cause, factor.cause);
    EXPECT_EQ(found->k, factor.k);
  }
  EXPECT_TRUE(NamedFactors(1, 1).empty());
}

// Numbers that are mostly rounding must not pass as 4 times other numbers.
TEST(FactorsTest, FindsNoneInWhatIsClose) {
  const Tensors want = {{"W", {1e-7, 2e-7}}}, got = {{"W", {4e-7, -7e-7}}};
  EXPECT_FALSE(FactorOf({"W"}, want, got, Tight(), NamedFactors(4, 1), true)
                   .has_value());
}

TEST(FactorsTest, OfASmallerBatch) {
  EXPECT_TRUE(BatchFactors({4, 4}, 8).empty());
  EXPECT_TRUE(BatchFactors({0, 0}, 8).empty());
  // One sample, on one of two ranks: divided by 8, by 4, or averaged over both.
  const auto one = BatchFactors({1, 0}, 8);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(one[0].k, 1.0 / 8);
  EXPECT_EQ(one[1].k, 1.0 / 4);
  EXPECT_EQ(one[1].cause, Cause::kDividedByFullBatch);
  EXPECT_EQ(one[2].k, 1.0 / 2);
  EXPECT_EQ(one[2].cause, Cause::kMeanOfMeans);
  // Means over different numbers of samples have no common factor.
  EXPECT_EQ(BatchFactors({2, 1, 0}, 9).size(), 1u);
  EXPECT_EQ(BatchFactors({2, 2}, 8).size(), 1u);
}

TEST(FactorsTest, RejectsWhatIsNoMultiple) {
  Tensors got = Times(4, Want());
  got["W"][1] += 1e-3;
  const auto named = NamedFactors(4, 3);
  EXPECT_FALSE(FactorOf(kBoth, Want(), got, Tight(), named, true).has_value());
  EXPECT_FALSE(FactorOf(kBoth, Want(), Times(0, Want()), Tight(), named, true)
                   .has_value());
  EXPECT_FALSE(FactorOf({}, Want(), Want(), Tight(), named, true).has_value());
  EXPECT_EQ(FittedFactor({"W"}, {{"W", {0, 0}}}, {{"W", {1, 1}}}), 0);
}

}  // namespace
}  // namespace lockstep::conformance
