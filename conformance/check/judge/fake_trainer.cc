#include "conformance/check/judge/fake_trainer.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_parts.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

using enum TrainerMutant;

using Indices = std::vector<int64_t>;

void Add(FakeTensors& sum, float factor, const FakeTensors& term) {
  for (const auto& [name, values] : term) {
    std::vector<float>& to = sum[name];
    to.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) to[i] += factor * values[i];
  }
}

// One rank.
struct Replica {
  FakeTensors weights;
  FakeTensors velocity;
  RankOutput output;
};

class Trainer {
 public:
  Trainer(const CasePlan& plan, const CaseFiles& files, TrainerMutant mutant)
      : plan_(plan), c_(plan.c), files_(files), mutant_(mutant) {}

  TrainerRun Run();

 private:
  bool Is(TrainerMutant mutant) const { return mutant_ == mutant; }
  // The same, for a mutant that only several ranks can have.
  bool IsParallel(TrainerMutant mutant) const {
    return mutant_ == mutant && n_ > 1;
  }
  float Ranks() const { return static_cast<float>(n_); }
  int LastRank() const { return n_ - 1; }
  FakeMode Mode() const;

  void Start();
  std::vector<FakePass> Forward(const FakeStep& step);
  std::vector<FakeTensors> Reduce(const FakeStep& step,
                                  const std::vector<FakePass>& passes) const;
  FakeTensors Average(const FakeStep& step,
                      const std::vector<FakePass>& passes) const;
  void ScaleGradients(FakeTensors& gradients) const;
  void UpdateBuffers(const std::vector<FakePass>& passes);
  void UpdateBuffersOnce(Replica& replica, const FakePass& pass) const;
  void Update(int rank, int64_t step, const FakeTensors& gradients);
  bool Trains(const std::string& name, int rank) const;
  void Report(const FakeStep& step, const std::vector<FakePass>& passes);

  const CasePlan& plan_;
  const Case& c_;
  const CaseFiles& files_;
  const TrainerMutant mutant_;
  const int n_ = c_.world_size();
  std::vector<Replica> replicas_;
};

FakeMode Trainer::Mode() const {
  return {.batch_norm = c_.batch_norm != "none",
          .training = true,
          .bfloat16 = c_.dtype == "bfloat16"};
}

void Trainer::Start() {
  FakeTensors weights;
  for (const auto& [name, tensor] : files_.weights.tensors) {
    for (const double value : ToValues(tensor)) {
      weights[name].push_back(static_cast<float>(value));
    }
  }
  for (int r = 0; r < n_; ++r) {
    replicas_.push_back({.weights = weights, .velocity = {}, .output = {}});
    replicas_.back().output.rank = r;
    replicas_.back().output.world_size = n_;
    replicas_.back().output.software = "fake";
  }
}

// By rank; empty where a rank has no samples.
std::vector<FakePass> Trainer::Forward(const FakeStep& step) {
  std::vector<FakePass> passes(static_cast<size_t>(n_));
  for (size_t r = 0; r < passes.size(); ++r) {
    if (step.shares[r].empty()) continue;
    FakeBatch batch = GatherFake(files_, "train", step.shares[r]);
    if (Is(kDropout) || Is(kReducesNothingWithDropout)) {
      // Which inputs are dropped depends on a sample's place in the batch.
      for (size_t i = 0; i < batch.x.size(); i += 2) batch.x[i][i % 4] = 0;
    }
    passes[r] = RunFakeModel(replicas_[r].weights, batch, Mode());
  }
  const bool sync = c_.batch_norm == "sync" && !IsParallel(kLocalBatchNorm);
  if (!sync) return passes;
  Indices all;
  for (const Indices& share : step.shares) {
    all.insert(all.end(), share.begin(), share.end());
  }
  const FakePass whole = RunFakeModel(replicas_[0].weights,
                                      GatherFake(files_, "train", all), Mode());
  size_t begin = 0;
  for (size_t r = 0; r < passes.size(); ++r) {
    const auto count = step.shares[r].size();
    const auto first =
        whole.losses.begin() + static_cast<std::ptrdiff_t>(begin);
    passes[r].losses.assign(first, first + static_cast<std::ptrdiff_t>(count));
    passes[r].gradients = whole.gradients;
    if (!IsParallel(kLocalBuffers)) {
      passes[r].mean = whole.mean;
      passes[r].variance = whole.variance;
    }
    begin += count;
  }
  return passes;
}

// The gradient of the mean over all ranks' samples, or what is taken for it.
FakeTensors Trainer::Average(const FakeStep& step,
                             const std::vector<FakePass>& passes) const {
  const bool unweighted = Is(kMeanOfMeans) || Is(kSumOfMeans);
  const bool idle = IsParallel(kAveragesIdleRanks);
  float total = 0;
  std::vector<float> weights;
  for (const Indices& share : step.shares) {
    const auto count = static_cast<float>(share.size());
    weights.push_back((unweighted || idle) && count > 0 ? 1 : count);
    total += weights.back();
  }
  if (idle) total = Ranks();
  if (IsParallel(kDividesByFullBatch)) {
    total = static_cast<float>(c_.global_batch());
  }
  FakeTensors sum;
  for (size_t r = 0; r < passes.size(); ++r) {
    if (weights[r] > 0) Add(sum, weights[r] / total, passes[r].gradients);
  }
  ScaleGradients(sum);
  return sum;
}

void Trainer::ScaleGradients(FakeTensors& gradients) const {
  float factor = 1;
  const auto accumulate = static_cast<float>(c_.accumulate);
  if (Is(kSums) || Is(kSumOfMeans)) {
    factor = Ranks();
  }
  if (Is(kDividesTwice)) factor = 1 / Ranks();
  if (Is(kAccumulationSums)) factor = accumulate;
  if (Is(kAccumulationDividesTwice)) factor = 1 / accumulate;
  if (Is(kSumsRanksAndMicroBatches)) {
    factor = Ranks() * accumulate;
  }
  if (IsParallel(kLossScale)) factor = 0.65f;
  for (auto& [name, values] : gradients) {
    const bool twice = Is(kReducesTwiceOneParameter) && name == "W2";
    for (float& value : values) value *= twice ? Ranks() : factor;
  }
  if (Is(kInfiniteGradient)) {
    gradients["b1"][0] = std::numeric_limits<float>::infinity();
  }
}

std::vector<FakeTensors> Trainer::Reduce(
    const FakeStep& step, const std::vector<FakePass>& passes) const {
  std::vector<FakeTensors> gradients(static_cast<size_t>(n_),
                                     Average(step, passes));
  for (size_t r = 0; r < passes.size(); ++r) {
    const FakeTensors& own = passes[r].gradients;
    if (Is(kReducesNothing) || Is(kReducesNothingWithDropout)) {
      gradients[r] = own;
    }
    if (Is(kLeavesOutOneParameter)) {
      gradients[r]["W2"] = own.at("W2");
    }
    if (IsParallel(kMixesWithNeighbour)) {
      gradients[r].clear();
      Add(gradients[r], 0.75f, own);
      Add(gradients[r], 0.25f, passes[(r + 1) % passes.size()].gradients);
    }
    if (IsParallel(kAddsInOwnOrder) && r > 0) {
      for (float& value : gradients[r]["W1"]) {
        value = std::nextafter(value, 0.0f);
      }
    }
    if (Is(kFirstRanksGradients)) {
      gradients[r] = passes[0].gradients;
    }
    if (Is(kDividesByNoSamples) && step.shares[r].empty()) {
      for (FakeTensors& all : gradients) {
        all["W1"][0] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  return gradients;
}

void Trainer::UpdateBuffersOnce(Replica& replica, const FakePass& pass) const {
  constexpr float kMomentum = 0.1f;
  for (size_t j = 0; j < kFakeHidden; ++j) {
    float& mean = replica.weights["bn.running_mean"][j];
    float& variance = replica.weights["bn.running_var"][j];
    mean = (1 - kMomentum) * mean + kMomentum * pass.mean[j];
    variance = (1 - kMomentum) * variance + kMomentum * pass.variance[j];
  }
  replica.weights["bn.num_batches_tracked"][0] += 1;
}

void Trainer::UpdateBuffers(const std::vector<FakePass>& passes) {
  if (c_.batch_norm == "none") return;
  for (size_t r = 0; r < passes.size(); ++r) {
    const bool first = Is(kFirstRanksBuffers);
    const FakePass& pass = passes[first ? 0 : r];
    const bool none = Is(kOnlyFirstRankHasBuffers) && r > 0;
    if (pass.losses.empty() || none) continue;
    UpdateBuffersOnce(replicas_[r], pass);
    if (IsParallel(kBuffersTwice)) {
      UpdateBuffersOnce(replicas_[r], pass);
    }
    if (IsParallel(kOtherBuffersOnLastRank) && r + 1 == passes.size()) {
      replicas_[r].weights["bn.running_var"][0] *= 1.01f;
    }
  }
}

// Whether the optimizer has the parameter.
bool Trainer::Trains(const std::string& name, int rank) const {
  if (IsFakeBuffer(name)) return false;
  if (Has(c_.frozen, name)) {
    return Is(kDecaysFrozen) ||
           (IsParallel(kDecaysFrozenOnLastRank) && rank == LastRank());
  }
  if (Has(c_.unused, name)) return IsParallel(kDecaysUnused);
  return true;
}

void Trainer::Update(int rank, int64_t step, const FakeTensors& gradients) {
  Replica& replica = replicas_[static_cast<size_t>(rank)];
  auto rate = static_cast<float>(c_.learning_rate);
  const bool last = n_ > 1 && rank == LastRank();
  if (Is(kLearningRateTimesRanks)) rate *= Ranks();
  if (Is(kLearningRateTimesRoot)) rate *= std::sqrt(Ranks());
  if (Is(kLastRanksLearningRate) && last) rate *= 0.8f;
  if (IsParallel(kSchedulesByRanks) && step >= 3) rate *= 0.8f;
  if (Is(kLastRankDrifts) && step >= 3 && last) rate *= 0.8f;
  if (Is(kForgetsMomentum) && plan_.resumed.has_value() &&
      step == c_.stop_after + 1) {
    replica.velocity.clear();
  }
  for (auto& [name, values] : replica.weights) {
    if (!Trains(name, rank)) continue;
    std::vector<float>& velocity = replica.velocity[name];
    velocity.resize(values.size());
    const auto gradient = gradients.find(name);
    const bool still = gradient == gradients.end() || Has(c_.frozen, name);
    for (size_t i = 0; i < values.size(); ++i) {
      const float g = (still ? 0 : gradient->second[i]) +
                      static_cast<float>(c_.weight_decay) * values[i];
      velocity[i] = static_cast<float>(c_.momentum) * velocity[i] + g;
      values[i] -= rate * velocity[i];
    }
  }
}

void Trainer::Report(const FakeStep& step,
                     const std::vector<FakePass>& passes) {
  const auto losses = FakeLosses(c_, step.shares, passes, mutant_);
  for (size_t r = 0; r < passes.size(); ++r) {
    replicas_[r].output.steps.push_back(
        {.epoch = step.epoch, .indices = step.shares[r], .loss = losses[r]});
  }
}

TrainerRun Trainer::Run() {
  Start();
  std::vector<FakeTensors> weights;
  int64_t number = 0;
  for (const FakeStep& step :
       FakeSchedule(plan_, SampleCount(files_, "train"), mutant_)) {
    ++number;
    const std::vector<FakePass> passes = Forward(step);
    const std::vector<FakeTensors> gradients = Reduce(step, passes);
    UpdateBuffers(passes);
    for (int r = 0; r < n_; ++r) {
      Update(r, number, gradients[static_cast<size_t>(r)]);
    }
    Report(step, passes);
    for (size_t r = 0; r < replicas_.size(); ++r) {
      WriteFakeStep(c_, files_, number, gradients[r], replicas_[r].weights,
                    replicas_[r].output);
    }
  }
  for (int r = 0; c_.evaluate && r < n_; ++r) {
    weights.push_back(replicas_[static_cast<size_t>(r)].weights);
  }
  const auto evaluations = FakeEvaluations(c_, files_, weights, mutant_);
  TrainerRun run;
  run.world_size = n_;
  for (size_t r = 0; r < replicas_.size(); ++r) {
    Replica& replica = replicas_[r];
    if (c_.evaluate) replica.output.evaluation = evaluations[r];
    run.ranks.push_back(
        {.status = absl::OkStatus(), .output = std::move(replica.output)});
  }
  SpoilRun(mutant_, run);
  return run;
}

}  // namespace

TrainerRun FakeRun(const CasePlan& plan, const CaseFiles& files,
                   TrainerMutant mutant) {
  return Trainer(plan, files, mutant).Run();
}

CaseRuns FakeRuns(const CheckCase& check, TrainerMutant mutant) {
  CaseRuns runs;
  runs.one_rank = FakeRun(check.one_rank, check.files, mutant);
  runs.all_ranks = FakeRun(check.all_ranks, check.files, mutant);
  for (const ExtraStart& start : ReorderedStarts(check)) {
    runs.reordered.push_back(FakeRun(start.plan, start.files, mutant));
  }
  return runs;
}

RunExtra FakeExtraRuns(TrainerMutant mutant) {
  return [mutant](const ExtraStart& start) -> absl::StatusOr<TrainerRun> {
    return FakeRun(start.plan, start.files, mutant);
  };
}

}  // namespace lockstep
