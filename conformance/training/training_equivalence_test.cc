// Tests the seed's recipe on the real Fashion-MNIST: 2 ranks stay within
// rounding of 1 rank for the first hundred steps, or the first twenty in a
// slice (slice.h).
//
// Reference runs (reordered.h) show the effect of rounding alone: one rank
// with every sum added in another order. For the sums, 2 ranks are such a
// reordering too. The test checks three things.
//
// 1. In each step, bit for bit: the ranks' gradient is the sum of one rank's
//    gradients on each shard, at the ranks' current parameters.
// 2. In each step, from the ranks' current parameters: the distance of their
//    step from one rank's step on the global batch is at most kSpread times
//    that of the furthest reference run.
// 3. Over the whole path: after the last step, the distance from one rank is
//    like that of reference runs that went their own way from the start.
//
// Nearly every step meets 2 by a wide margin, but a right step need not. If a
// ReLU's input is zero up to rounding (weights and biases start near zero), one
// order of additions lets a sample through and another does not. The gradient
// then jumps by a thousand times its rounding error, in the ranks' step or in a
// reference run's. A jump is one unit's part in one sample's gradient. A step
// that leaves the bound must therefore stay below a quarter of a whole sample's
// weight, and at most 2 in 5 steps may leave it.
//
// This happens to 2 ranks as often as to a reference run. If its probability is
// q, the ranks leave the bound of K runs with probability q (1 - q)^K, which is
// at most 0.067 for K = 5, for any q. A false failure has therefore a
// probability below 4e-4 in the 10 steps of the controls, below 1e-5 in 20 and
// below 1e-20 in 100.
//
// Such jumps, and training itself, magnify small distances. Over a hundred
// steps a rounding error grows ten thousandfold, in ranks and reference runs
// alike, by factors that differ between them by ten. Check 3 therefore allows
// kSpread times the furthest run. Its control is training on the same images in
// another order.
//
// The controls show that these tolerances still reject mistakes: mutants leave
// the bound of 2 within ten steps.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/checks.h"
#include "conformance/training/mutants.h"
#include "conformance/training/reordered.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/reference/bounded.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

constexpr int kReferenceRuns = 5;
constexpr double kSpread = 16;

using Flat = std::vector<float>;

int64_t StepsOfRecipe() { return IsExhaustive() ? 100 : 20; }

const absl::StatusOr<FashionMnist>& Data() {
  static const auto& data =
      *new absl::StatusOr<FashionMnist>(LoadFashionMnist());
  return data;
}

// The seed's recipe: batch 256 unless set otherwise, learning rate 0.2.
struct Recipe {
  TrainerOptions trainer;
  std::vector<int64_t> epochs = {0};
  int64_t steps_per_epoch = StepsOfRecipe();
};

absl::StatusOr<std::vector<RankTrace>> Record(int world_size,
                                              const Mutation& mutation,
                                              const Recipe& recipe) {
  std::vector<RankTrace> traces(world_size);
  const auto rank = [&](Communicator& group) -> absl::Status {
    SetComputeThreads(1);
    const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
    RecordingModel recorder(*model);
    LOCKSTEP_RETURN_IF_ERROR(
        Train(group, recorder, Data()->train, recipe.trainer, mutation,
              recipe.epochs, [&](const StepReport& report) {
                return report.step + 1 < recipe.steps_per_epoch;
              }));
    traces[group.rank()] = recorder.Finish();
    return absl::OkStatus();
  };
  for (const absl::Status& status :
       RunRanks(Backend::kThreads, world_size, rank)) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return traces;
}

absl::StatusOr<RankTrace> RecordOneRank(const Recipe& recipe) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<RankTrace> traces,
                            Record(1, Mutation(), recipe));
  return std::move(traces[0]);
}

// Returns the parameters after one step of SGD, rounded like the trainer's
// update.
Flat Stepped(const Flat& parameters, std::span<const float> gradient,
             float learning_rate) {
  Flat after(parameters.size());
  for (size_t i = 0; i < after.size(); ++i) {
    after[i] = parameters[i] - learning_rate * gradient[i];
  }
  return after;
}

absl::StatusOr<Flat> OneRankGradient(Model& model, const Flat& parameters,
                                     const Samples& samples, float scale) {
  std::copy(parameters.begin(), parameters.end(),
            model.parameters().values().begin());
  LOCKSTEP_RETURN_IF_ERROR(
      model.ForwardBackward({samples.images, samples.labels}, scale, [](int) {})
          .status());
  const std::span<const float> gradient = model.parameters().gradients();
  return Flat(gradient.begin(), gradient.end());
}

double Distance(const Flat& a, const Flat& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    sum += d * d;
  }
  return std::sqrt(sum);
}

Samples FirstOf(const Samples& batch) {
  const auto image = batch.images.begin();
  return {{image, image + batch.images.size() / batch.size()},
          {batch.labels[0]}};
}

// The distances of one step from the same parameters, for the ranks and for
// reference runs.
struct StepDistance {
  double ranks = 0;     // From the result of one rank's step.
  double rounding = 0;  // The furthest of the reference runs.
  double sample = 0;    // The length of a step on one sample alone.
};

// Returns whether the order of additions alone explains the distance.
bool IsRounding(const StepDistance& step) {
  return step.ranks <= kSpread * step.rounding;
}

// Returns whether the distance may come from a ReLU that lets a sample through
// in one order of additions and stops it in another.
bool MayBeJump(const StepDistance& step) {
  return step.ranks <= 0.25 * step.sample;
}

// Measures each step, up to the first that neither function explains. `ranks`
// has each step's parameters, `one_rank` the global batches.
absl::StatusOr<std::vector<StepDistance>> MeasureSteps(
    const RankTrace& one_rank, const RankTrace& ranks, float learning_rate) {
  const size_t steps = one_rank.samples.size();
  if (ranks.samples.size() != steps) {
    return absl::DataLossError(absl::StrCat("took ", ranks.samples.size(),
                                            " steps, one rank takes ", steps));
  }
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
  std::vector<ReorderedLeNet> references;
  for (int k = 1; k <= kReferenceRuns; ++k) references.emplace_back(k);
  std::vector<StepDistance> distances;
  for (size_t s = 0; s < steps; ++s) {
    StepDistance& distance = distances.emplace_back();
    const Flat& before = ranks.parameters[s];
    const Samples& batch = one_rank.samples[s];
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Flat gradient,
        OneRankGradient(*model, before, batch, 1.0f / batch.size()));
    const Flat after = Stepped(before, gradient, learning_rate);
    distance.ranks = Distance(after, ranks.parameters[s + 1]);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Flat sample,
        OneRankGradient(*model, before, FirstOf(batch), 1.0f / batch.size()));
    distance.sample = Distance(before, Stepped(before, sample, learning_rate));
    for (ReorderedLeNet& reference : references) {
      LOCKSTEP_ASSIGN_OR_RETURN(const Flat other,
                                reference.Gradient(before, batch));
      distance.rounding =
          std::max(distance.rounding,
                   Distance(after, Stepped(before, other, learning_rate)));
    }
    if (!IsRounding(distance) && !MayBeJump(distance)) break;
  }
  return distances;
}

// Check 2.
absl::Status CheckStepsAreOneRanks(const std::vector<StepDistance>& steps) {
  std::vector<size_t> left;
  for (size_t s = 0; s < steps.size(); ++s) {
    const StepDistance& step = steps[s];
    if (IsRounding(step)) continue;
    left.push_back(s);
    if (MayBeJump(step)) continue;
    return absl::DataLossError(absl::StrFormat(
        "step %d is not one rank's: it leads %.3g away from where that leads, "
        "and one sample weighs %.3g",
        s, step.ranks, step.sample));
  }
  if (5 * left.size() <= 2 * steps.size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%d of %d steps are not one rank's: step %d leads %.3g away from where "
      "that leads, and another order of additions explains %.3g",
      left.size(), steps.size(), left[0], steps[left[0]].ranks,
      steps[left[0]].rounding));
}

// Returns the ratio of the steps' errors to the limits of check 2: at most 1 if
// they pass. The 2 in 5 steps that may leave the bound count relative to a
// sample's weight.
double LargestError(const std::vector<StepDistance>& steps) {
  std::vector<double> errors;
  double beyond = 0;
  for (const StepDistance& step : steps) {
    errors.push_back(ErrorOverAllowed(step.ranks, kSpread * step.rounding));
    if (IsRounding(step)) continue;
    beyond = std::max(beyond, ErrorOverAllowed(step.ranks, 0.25 * step.sample));
  }
  std::sort(errors.begin(), errors.end());
  return std::max(beyond, errors[errors.size() - 1 - 2 * errors.size() / 5]);
}

class TrainingEquivalenceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(Data(), IsOk()); }
};

// The cell of these tests, which run two threads.
ClaimCellId TwoThreads(const char* claim) {
  return {claim, "threads", 2, "float32"};
}

TEST_F(TrainingEquivalenceTest, AHundredStepsAreOneRanksSteps) {
  ClaimRecorder recorder(TwoThreads("recipe_steps"));
  const Recipe recipe;
  const auto one_rank = RecordOneRank(recipe);
  ASSERT_THAT(one_rank, IsOk());
  ASSERT_EQ(one_rank->samples.size(), StepsOfRecipe());
  const auto ranks = Record(2, Mutation(), recipe);
  ASSERT_THAT(ranks, IsOk());
  ASSERT_EQ((*ranks)[0].parameters[0], one_rank->parameters[0]);
  const auto steps =
      MeasureSteps(*one_rank, (*ranks)[0], recipe.trainer.learning_rate);
  ASSERT_THAT(steps, IsOk());
  EXPECT_THAT(CheckStepsAreOneRanks(*steps), IsOk());
  recorder.Measure(LargestError(*steps));
  ASSERT_EQ(steps->size(), StepsOfRecipe());
  std::vector<double> rounding;
  for (const StepDistance& step : *steps) rounding.push_back(step.rounding);
  std::sort(rounding.begin(), rounding.end());
  RecordProperty("rounding_of_a_step",
                 absl::StrCat(rounding[rounding.size() / 2]));
}

// The controls: five steps in each of two epochs.
TEST_F(TrainingEquivalenceTest, PlantedBugsDoNotStepAsOneRank) {
  Recipe recipe;
  recipe.trainer.batch_size = 64;
  recipe.epochs = {0, 1};
  recipe.steps_per_epoch = 5;
  const auto one_rank = RecordOneRank(recipe);
  ASSERT_THAT(one_rank, IsOk());
  const auto check = [&](const Mutation& mutation) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankTrace> ranks,
                              Record(2, mutation, recipe));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<StepDistance> steps,
        MeasureSteps(*one_rank, ranks[0], recipe.trainer.learning_rate));
    return CheckStepsAreOneRanks(steps);
  };
  EXPECT_THAT(check(Mutation()), IsOk());
  // These are no mistakes here: no batch is partial, the two shards are even,
  // two addends have one order, and CreateLeNet starts every rank alike.
  const std::set<std::string> harmless = {"LastBatchAsFull", "MeanOfMeans",
                                          "SummedFromOwnRank", "NotBroadcast",
                                          "WrongRoot"};
  for (const auto& [mutant, mutation] : SliceOf(AllTrainingMutants(), 4)) {
    if (harmless.count(mutant.name) > 0) continue;
    EXPECT_THAT(check(mutation), StatusIs(absl::StatusCode::kDataLoss,
                                          HasSubstr("not one rank's")))
        << mutant.planted;
  }
}

// Returns the end of a reference run that starts at one rank's start and goes
// its own way.
absl::StatusOr<Flat> EndOfReferenceRun(uint32_t seed, const RankTrace& one_rank,
                                       float learning_rate) {
  SetComputeThreads(1);
  ReorderedLeNet reference(seed);
  Flat at = one_rank.parameters.front();
  for (const Samples& batch : one_rank.samples) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Flat gradient,
                              reference.Gradient(at, batch));
    at = Stepped(at, gradient, learning_rate);
  }
  return at;
}

// Returns the largest distance of a reference run's end from one rank's end.
absl::StatusOr<double> ReachOfRounding(const RankTrace& one_rank,
                                       float learning_rate) {
  std::vector<absl::StatusOr<Flat>> ends(kReferenceRuns);
  std::vector<std::thread> threads;
  for (int k = 0; k < kReferenceRuns; ++k) {
    threads.emplace_back([&, k] {
      ends[k] = EndOfReferenceRun(k + 1, one_rank, learning_rate);
    });
  }
  for (std::thread& thread : threads) thread.join();
  double reach = 0;
  for (const absl::StatusOr<Flat>& end : ends) {
    LOCKSTEP_RETURN_IF_ERROR(end.status());
    reach = std::max(reach, Distance(one_rank.parameters.back(), *end));
  }
  return reach;
}

// The control sees the images in the order of another epoch.
TEST_F(TrainingEquivalenceTest, TwoRanksEndWhereOneRankEnds) {
  ClaimRecorder recorder(TwoThreads("recipe_end"));
  const Recipe recipe;
  const auto one_rank = RecordOneRank(recipe);
  ASSERT_THAT(one_rank, IsOk());
  const auto reach = ReachOfRounding(*one_rank, recipe.trainer.learning_rate);
  ASSERT_THAT(reach, IsOk());
  const Flat& end = one_rank->parameters.back();
  const auto ranks = Record(2, Mutation(), recipe);
  ASSERT_THAT(ranks, IsOk());
  const double apart = Distance(end, (*ranks)[0].parameters.back());
  EXPECT_LE(apart, kSpread * *reach);
  recorder.Measure(ErrorOverAllowed(apart, kSpread * *reach));
  const auto other = Record(2, Mutation(), {.trainer = {}, .epochs = {1}});
  ASSERT_THAT(other, IsOk());
  EXPECT_GT(Distance(end, (*other)[0].parameters.back()), kSpread * *reach);
  RecordProperty("moved",
                 absl::StrCat(Distance(one_rank->parameters.front(), end)));
  RecordProperty("apart", absl::StrCat(apart));
  RecordProperty("reach", absl::StrCat(*reach));
}

// Replays the steps of two ranks with one model. Returns CheckBitsAgree's
// verdict on the sum of the shards' gradients, step by step.
absl::Status CheckGradientsAreSumsOfShards(std::span<const RankTrace> traces) {
  SetComputeThreads(1);
  const std::vector<ParameterSpec> specs = LeNetSpecs();
  const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
  for (size_t s = 0; s < traces[0].samples.size(); ++s) {
    Flat sum(traces[0].gradients[s].size());
    for (const RankTrace& trace : traces) {
      LOCKSTEP_ASSIGN_OR_RETURN(const Flat part,
                                OneRankGradient(*model, traces[0].parameters[s],
                                                trace.samples[s], 1.0f / 256));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    const std::vector<Flat> gradients = {sum, traces[0].gradients[s],
                                         traces[1].gradients[s]};
    LOCKSTEP_RETURN_IF_ERROR(CheckBitsAgree(specs, "gradients", gradients));
  }
  return absl::OkStatus();
}

// Two addends have one sum, in any order. The control is a gradient that is one
// bfloat16 rounding away.
TEST_F(TrainingEquivalenceTest, GradientsAreTheSumsOfTheShardsToTheBit) {
  ClaimRecorder recorder(TwoThreads("gradient_sums"));
  const auto traces = Record(2, Mutation(), Recipe());
  ASSERT_THAT(traces, IsOk());
  ASSERT_EQ((*traces)[0].samples.size(), StepsOfRecipe());
  EXPECT_THAT(CheckGradientsAreSumsOfShards(*traces), IsOk());
  recorder.AddExact(StepsOfRecipe());
  for (const auto& [mutant, mutation] : AllTrainingMutants()) {
    if (mutant.name != "SummedInBFloat16") continue;
    const auto rounded = Record(
        2, mutation, {.trainer = {}, .epochs = {0}, .steps_per_epoch = 2});
    ASSERT_THAT(rounded, IsOk());
    EXPECT_THAT(CheckGradientsAreSumsOfShards(*rounded),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("disagree")));
  }
}

}  // namespace
}  // namespace lockstep::conformance
