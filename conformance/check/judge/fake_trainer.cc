#include "conformance/check/judge/fake_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <valarray>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_parts.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

void Add(FakeTensors& sum, float factor, const FakeTensors& term) {
  for (const auto& [name, values] : term) {
    FakeValues& to = sum[name];
    if (to.size() == 0) to.resize(values.size());
    to += factor * values;
  }
}

// Sums over test samples: the losses, the right answers, the samples.
using Sums = std::valarray<double>;

// Returns the mean of the parts' means, without weights.
EvaluationOutput MeanOf(std::span<const Sums> parts) {
  EvaluationOutput mean;
  for (const Sums& part : parts) {
    const double share = part[2] * static_cast<double>(parts.size());
    mean.loss += part[0] / share;
    mean.accuracy += part[1] / share;
  }
  return mean;
}

// The state of one rank.
struct Replica {
  FakeTensors weights;
  FakeTensors velocity;
  RankOutput output;
};

class Trainer {
 public:
  Trainer(const CasePlan& plan, const CaseFiles& files,
          const std::string& mutant)
      : plan_(plan), c_(plan.c), files_(files), mutant_(mutant) {}

  TrainerRun Run() {
    Start();
    for (const FakeStep& step :
         FakeSchedule(plan_, SampleCount(files_, "train"), mutant_)) {
      ++step_;
      ReportStep(step, Forward(step));
      std::vector<FakeTensors> gradients;
      for (const FakeStep& part : PartsWithUpdates(step)) {
        const std::vector<FakePass> passes = Forward(part);
        gradients = Reduce(part, passes);
        UpdateBuffers(passes);
        for (size_t r = 0; r < n_; ++r) Update(r, gradients[r]);
      }
      for (size_t r = 0; r < n_; ++r) WriteStep(gradients[r], replicas_[r]);
    }
    if (c_.evaluate) Evaluate();
    TrainerRun run;
    run.world_size = static_cast<int>(n_);
    for (Replica& replica : replicas_) {
      run.ranks.push_back(
          {.status = absl::OkStatus(), .output = std::move(replica.output)});
    }
    return run;
  }

 private:
  bool Is(absl::string_view mutant) const { return mutant_ == mutant; }
  // Returns whether this is the mutant and several ranks run, for a mutant that
  // one rank cannot have.
  bool IsParallel(absl::string_view mutant) const {
    return mutant_ == mutant && n_ > 1;
  }
  float Ranks() const { return static_cast<float>(n_); }
  bool IsLast(size_t rank) const { return n_ > 1 && rank + 1 == n_; }

  void Start() {
    FakeTensors weights;
    for (const auto& [name, tensor] : files_.weights.tensors) {
      const Values values = ToValues(tensor);
      weights[name].resize(values.size());
      std::ranges::copy(values, std::begin(weights[name]));
    }
    for (size_t r = 0; r < n_; ++r) {
      replicas_.push_back({.weights = weights,
                           .velocity = {},
                           .output = {.rank = static_cast<int>(r),
                                      .world_size = static_cast<int>(n_),
                                      .software = "fake"}});
    }
    if (IsParallel("first_weights_differ")) {
      replicas_.back().weights["W1"] *= 1.02f;
    }
  }

  // Returns the parts of a step that an update follows: the whole step or, for
  // the mutants, its micro-batches.
  std::vector<FakeStep> PartsWithUpdates(const FakeStep& step) const {
    if (!Is("updates_each_micro_batch") &&
        !Is("scaled_updates_each_micro_batch")) {
      return {step};
    }
    std::vector<FakeStep> parts;
    for (int64_t i = 0; i < c_.accumulate; ++i) {
      FakeStep& part = parts.emplace_back(FakeStep{step.epoch, {}});
      for (const FakeIndices& share : step.shares) {
        const auto size = static_cast<int64_t>(share.size()) / c_.accumulate;
        const auto begin = share.begin() + i * size;
        part.shares.emplace_back(begin, begin + size);
      }
    }
    return parts;
  }

  // Returns the passes by rank; empty for a rank without samples.
  std::vector<FakePass> Forward(const FakeStep& step) const {
    std::vector<FakePass> passes(n_);
    FakeIndices all;
    for (size_t r = 0; r < n_; ++r) {
      const FakeIndices& share = step.shares[r];
      all.insert(all.end(), share.begin(), share.end());
      if (share.empty()) continue;
      FakeBatch batch = GatherFake(files_, "train", share);
      if (Is("dropout") || Is("not_reduced_with_dropout")) {
        // The mutant drops inputs by the sample's position in the batch.
        for (size_t i = 0; i < batch.x.size(); i += 2) batch.x[i][i % 4] = 0;
      }
      passes[r] = RunFakeModel(replicas_[r].weights, batch, c_, true);
    }
    if (c_.batch_norm != "sync" || IsParallel("local_batch_norm"))
      return passes;
    std::vector<size_t> local_sizes;
    for (const FakeIndices& share : step.shares) {
      if (Is("local_batch_norm_backward")) local_sizes.push_back(share.size());
    }
    const FakePass whole =
        RunFakeModel(replicas_[0].weights, GatherFake(files_, "train", all), c_,
                     true, local_sizes);
    const float* next = whole.losses.data();
    for (size_t r = 0; r < n_; ++r) {
      const size_t count = step.shares[r].size();
      passes[r].losses.assign(next, next + count);
      next += count;
      passes[r].gradients = whole.gradients;
      if (IsParallel("local_buffers")) continue;
      passes[r].mean = whole.mean;
      passes[r].variance = whole.variance;
    }
    return passes;
  }

  // Rounds to the type that the mutant reduces in; otherwise does nothing.
  void RoundToNarrowType(FakeTensors& tensors) const {
    for (auto& [name, values] : tensors) {
      for (float& value : values) {
        if (IsParallel("reduced_in_bfloat16")) {
          value = ToFloat(ToBFloat16(value));
        }
        if (IsParallel("reduced_in_float16")) {
          value = ToFloat(ToFloat16(value));
        }
      }
    }
  }

  void ScaleGradients(FakeTensors& gradients) const {
    float factor = 1;
    const auto accumulate = static_cast<float>(c_.accumulate);
    if (Is("summed") || Is("summed_bfloat16") || Is("sum_of_means"))
      factor = Ranks();
    if (Is("divided_twice")) factor = 1 / Ranks();
    if (Is("accumulation_summed")) factor = accumulate;
    if (Is("accumulation_divided_twice")) factor = 1 / accumulate;
    if (Is("ranks_and_micro_batches")) factor = Ranks() * accumulate;
    if (Is("scaled_updates_each_micro_batch")) factor = 1 / accumulate;
    if (IsParallel("loss_scale")) factor = 0.65f;
    for (auto& [name, values] : gradients) {
      const bool twice = Is("one_reduced_twice") && name == "W2";
      values *= twice ? Ranks() : factor;
    }
    if (IsParallel("uneven_gradient")) {
      for (auto& [name, values] : gradients) values[0] *= 1.001f;
    }
    if (Is("infinite_gradient")) {
      gradients["b1"][0] = std::numeric_limits<float>::infinity();
    }
  }

  // Returns the gradient of the mean over all ranks' samples, or the mutant's
  // version of that mean.
  FakeTensors Average(const FakeStep& step,
                      const std::vector<FakePass>& passes) const {
    const bool unweighted =
        Is("mean_of_means") || Is("mean_of_local_means") || Is("sum_of_means");
    const bool sums = Is("sum_over_samples");
    const bool idle = IsParallel("idle_ranks");
    float total = 0;
    std::vector<float> weights;
    for (const FakeIndices& share : step.shares) {
      const auto count = static_cast<float>(share.size());
      weights.push_back((unweighted || idle) && count > 0 ? 1 : count);
      total += weights.back();
    }
    if (idle) total = Ranks();
    if (IsParallel("full_batch")) {
      total = static_cast<float>(c_.global_batch());
    }
    if (sums) total = Ranks();
    FakeTensors sum;
    for (size_t r = 0; r < n_; ++r) {
      if (weights[r] == 0) continue;
      FakeTensors part;
      Add(part, weights[r] / total, passes[r].gradients);
      RoundToNarrowType(part);
      Add(sum, 1, part);
      RoundToNarrowType(sum);
    }
    ScaleGradients(sum);
    return sum;
  }

  std::vector<FakeTensors> Reduce(const FakeStep& step,
                                  const std::vector<FakePass>& passes) const {
    std::vector<FakeTensors> gradients(n_, Average(step, passes));
    for (size_t r = 0; r < n_; ++r) {
      const FakeTensors& own = passes[r].gradients;
      if (Is("not_reduced") || Is("not_reduced_with_dropout")) {
        gradients[r] = own;
      }
      if (Is("one_left_out") || Is("one_left_out_uneven"))
        gradients[r]["W2"] = own.at("W2");
      if (IsParallel("reduced_with_neighbour")) {
        gradients[r].clear();
        Add(gradients[r], 0.75f, own);
        Add(gradients[r], 0.25f, passes[(r + 1) % n_].gradients);
      }
      if (IsParallel("own_order") && r > 0) {
        for (float& value : gradients[r]["W1"]) {
          value = std::nextafter(value, 0.0f);
        }
      }
      if (Is("decay_in_each_gradient")) {
        const float decay = Ranks() * static_cast<float>(c_.weight_decay);
        for (auto& [name, values] : gradients[r]) {
          values += decay * replicas_[r].weights.at(name);
        }
      }
      if (Is("first_ranks_gradients")) gradients[r] = passes[0].gradients;
      if (Is("nan_without_samples") && step.shares[r].empty()) {
        for (FakeTensors& all : gradients) {
          all["W1"][0] = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
    return gradients;
  }

  void UpdateBuffers(const std::vector<FakePass>& passes) {
    constexpr float kMomentum = 0.1f;
    if (c_.batch_norm == "none") return;
    for (size_t r = 0; r < n_; ++r) {
      const FakePass& pass = passes[Is("first_ranks_buffers") ? 0 : r];
      if (pass.losses.empty()) continue;
      if (Is("only_first_rank_has_buffers") && r > 0) continue;
      FakeTensors& weights = replicas_[r].weights;
      FakeValues& mean = weights["bn.running_mean"];
      FakeValues& variance = weights["bn.running_var"];
      for (int times = IsParallel("buffers_twice") ? 2 : 1; times > 0;
           --times) {
        mean = (1 - kMomentum) * mean + kMomentum * pass.mean;
        variance = (1 - kMomentum) * variance + kMomentum * pass.variance;
        weights["bn.num_batches_tracked"] += 1;
      }
      if (Is("other_buffers_on_last_rank") && IsLast(r)) variance[0] *= 1.01f;
    }
  }

  // Returns whether the optimizer has the parameter.
  bool Trains(const std::string& name, size_t rank) const {
    if (IsFakeBuffer(name)) return false;
    if (Includes(c_.frozen, name)) {
      return Is("frozen_decays") ||
             (Is("frozen_decays_on_one_rank") && IsLast(rank));
    }
    return !Includes(c_.unused, name) || IsParallel("unused_decays");
  }

  // Returns the weight decay of the optimizer.
  float WeightDecay() const {
    const auto decay = static_cast<float>(c_.weight_decay);
    if (Is("decay_per_rank")) return decay * Ranks();
    const bool none = Is("decay_in_each_gradient") || IsParallel("no_decay");
    return none ? 0 : decay;
  }

  void Update(size_t rank, const FakeTensors& gradients) {
    Replica& replica = replicas_[rank];
    auto rate = static_cast<float>(c_.learning_rate);
    if (Is("rate_times_ranks")) rate *= Ranks();
    if (Is("rate_times_root")) rate *= std::sqrt(Ranks());
    if (Is("last_ranks_rate") && IsLast(rank)) rate *= 0.8f;
    if (Is("last_ranks_first_rate") && step_ == 1 && IsLast(rank)) rate *= 0.8f;
    if (IsParallel("other_schedule") && step_ >= 3) rate *= 0.8f;
    if (Is("one_rank_drifts") && step_ >= 3 && IsLast(rank)) rate *= 0.8f;
    const bool loses_momentum =
        Is("momentum_lost") ||
        (Is("momentum_lost_on_one_rank") && IsLast(rank));
    if (loses_momentum && plan_.resumed.has_value() &&
        step_ == c_.stop_after + 1) {
      replica.velocity.clear();
    }
    for (auto& [name, values] : replica.weights) {
      if (!Trains(name, rank)) continue;
      FakeValues change = WeightDecay() * values;
      const auto gradient = gradients.find(name);
      if (gradient != gradients.end() && !Includes(c_.frozen, name)) {
        change += gradient->second;
      }
      FakeValues& velocity = replica.velocity[name];
      if (velocity.size() == 0) velocity.resize(values.size());
      velocity = static_cast<float>(c_.momentum) * velocity + change;
      values -= rate * velocity;
    }
  }

  // Each rank reports the mean loss of its samples; no loss if it has none.
  void ReportStep(const FakeStep& step, const std::vector<FakePass>& passes) {
    std::vector<float> means;
    for (const FakePass& pass : passes) {
      const std::vector<float>& losses = pass.losses;
      const float sum = std::accumulate(losses.begin(), losses.end(), 0.0f);
      means.push_back(losses.empty() ? 0
                                     : sum / static_cast<float>(losses.size()));
    }
    const float sum = std::accumulate(means.begin(), means.end(), 0.0f);
    for (size_t r = 0; r < n_; ++r) {
      std::optional<double> loss;
      if (!passes[r].losses.empty()) loss = means[r];
      if (Is("unweighted_loss")) loss = sum / Ranks();
      if (Is("summed_loss")) loss = sum;
      if (Is("reported_sum") && loss.has_value()) {
        *loss *= static_cast<double>(passes[r].losses.size());
      }
      if (Is("first_ranks_loss")) loss = means[0];
      if (Is("micro_batch_loss")) {
        loss = means[r] / static_cast<float>(c_.accumulate);
      }
      const FakeIndices& share = step.shares[r];
      if (loss.has_value() && n_ > 1) {
        if (Is("scaled_loss")) *loss *= 1.1;
        if (Is("rounded_loss")) *loss = std::round(*loss * 1000) / 1000;
        if (Is("loss_of_full_batch")) {
          *loss *= static_cast<double>(share.size()) /
                   static_cast<double>(c_.batch_sizes[r]);
        }
      }
      replicas_[r].output.steps.push_back(
          {.epoch = step.epoch, .indices = share, .loss = loss});
    }
  }

  // Writes the gradients of the step, and the parameters and buffers after it,
  // if the case asks for them.
  void WriteStep(const FakeTensors& gradients, Replica& replica) const {
    const auto write = [&](const char* kind, const std::string& name,
                           const FakeValues& values) {
      const auto& shape = files_.weights.tensors.at(name).shape;
      replica.output.tensors[absl::StrCat(kind, ".", step_, "/", name)] =
          name.ends_with("tracked")
              ? NamedTensor::Of<int64_t>(
                    shape, FakeIndices{static_cast<int64_t>(values[0])})
              : NamedTensor::Of<float>(shape,
                                       {std::begin(values), values.size()});
    };
    for (const auto& [name, values] : replica.weights) {
      const auto gradient = gradients.find(name);
      if (Includes(c_.write_gradients, step_) && gradient != gradients.end() &&
          !Includes(c_.frozen, name)) {
        write("gradient", name, gradient->second);
      }
      if (Includes(c_.write_state, step_)) {
        write(IsFakeBuffer(name) ? "buffer" : "parameter", name, values);
      }
    }
  }

  // Evaluates each rank's share of the test set in batches of the rank's size.
  // Reports the metrics of all ranks' sums, or the mutant's version of them.
  void Evaluate() {
    const int64_t size = SampleCount(files_, "test");
    const auto shares = FakeTestShares(n_, size, mutant_);
    Sums all(3);
    std::vector<Sums> ranks(n_, all), batches;
    for (size_t r = 0; r < n_; ++r) {
      for (auto next = shares[r].begin(); next != shares[r].end();) {
        const auto begin = next;
        next += std::min(c_.batch_sizes[r], shares[r].end() - begin);
        const FakePass pass = RunFakeModel(
            replicas_[r].weights,
            GatherFake(files_, "test", FakeIndices(begin, next)), c_, false);
        const double loss =
            std::accumulate(pass.losses.begin(), pass.losses.end(), 0.0);
        batches.push_back(
            {loss, pass.right, static_cast<double>(next - begin)});
        ranks[r] += batches.back();
      }
      all += ranks[r];
    }
    for (size_t r = 0; r < n_; ++r) {
      EvaluationOutput output = MeanOf({&all, 1});
      if (Is("first_ranks_metrics")) output = MeanOf({&ranks[0], 1});
      if (Is("own_metrics")) output = MeanOf({&ranks[r], 1});
      if (Is("mean_of_batch_metrics")) output = MeanOf(batches);
      if (Is("mean_of_rank_metrics")) output = MeanOf(ranks);
      if (Is("mean_of_rank_accuracies")) {
        output.accuracy = MeanOf(ranks).accuracy;
      }
      if (Is("own_accuracy")) output.accuracy = MeanOf({&ranks[r], 1}).accuracy;
      if (IsParallel("truncated_accuracy")) {
        output.accuracy = std::floor(output.accuracy * 100) / 100;
      }
      output.indices = shares[r];
      output.count =
          Is("evaluation_padded") ? static_cast<int64_t>(all[2]) : size;
      replicas_[r].output.evaluation = std::move(output);
    }
  }

  const CasePlan& plan_;
  const Case& c_;
  const CaseFiles& files_;
  const std::string mutant_;
  const size_t n_ = c_.batch_sizes.size();
  std::vector<Replica> replicas_;
  int64_t step_ = 0;  // From 1.
};

void SpoilOutput(const std::string& mutant, bool parallel, RankOutput& output) {
  if (mutant == "alone") output.world_size = 1;
  if (mutant == "evaluation_left_out" ||
      (mutant == "first_rank_evaluates_all" && output.rank > 0)) {
    output.evaluation.reset();
  }
  if (parallel && mutant == "other_shape") {
    for (auto& [key, tensor] : output.tensors) tensor.shape.push_back(1);
  }
  if (mutant == "tensor_left_out") {
    std::erase_if(output.tensors, [](const auto& entry) {
      return entry.first.ends_with("/b2");
    });
  }
  if (parallel && mutant == "foreign_index") {
    output.steps[0].indices[0] = -1;
  }
}

// Changes how a run ended, as the mutant would, and removes or damages the
// ranks' outputs. Does nothing for mutants of numbers.
void SpoilRun(const std::string& mutant, TrainerRun& run) {
  const bool parallel = run.world_size > 1;
  const auto last = static_cast<size_t>(run.world_size - 1);
  const auto silence = [&run](size_t ranks, const absl::Status& status) {
    std::fill_n(run.ranks.begin(), ranks, TrainerRun::Rank{status, {}});
  };
  const bool hangs = mutant == "others_hang";
  const bool crashes = mutant == "others_crash";
  const bool skips = mutant == "rank_skips_last_batch";
  if (parallel && (hangs || crashes || skips)) {
    run.ranks[last].output.steps.pop_back();
    if (!skips) silence(last, absl::NotFoundError("no file"));
  }
  if ((parallel && hangs) || mutant == "hangs") {
    run.end = TrainerRun::End::kTimedOut;
    run.how = "it did not end within 60 s";
  }
  if ((parallel && crashes) || mutant == "crashes") {
    run.end = TrainerRun::End::kFailed;
    run.how = "rank 0 exited with status 1";
    run.last_lines = {"[0] RuntimeError: connection closed by peer"};
  }
  if (mutant == "hangs" || mutant == "crashes" || mutant == "writes_nothing") {
    silence(last + 1, absl::NotFoundError("no file"));
  }
  if (mutant == "writes_garbage") {
    silence(1, absl::DataLossError("rank0.json: not JSON at byte 0"));
  }
  for (TrainerRun::Rank& rank : run.ranks) {
    SpoilOutput(mutant, parallel, rank.output);
  }
}

TrainerRun FakeRun(const CasePlan& plan, const CaseFiles& files,
                   const std::string& mutant) {
  TrainerRun run = Trainer(plan, files, mutant).Run();
  SpoilRun(mutant, run);
  return run;
}

}  // namespace

CaseRuns FakeRuns(const CheckCase& check, const std::string& mutant) {
  CaseRuns runs;
  runs.one_rank = FakeRun(check.one_rank, check.files, mutant);
  runs.all_ranks = FakeRun(check.all_ranks, check.files, mutant);
  for (const ExtraStart& start : ReorderedStarts(check)) {
    runs.reordered.push_back(FakeRun(start.plan, start.files, mutant));
  }
  return runs;
}

RunExtra FakeExtraRuns(const std::string& mutant) {
  return [mutant](const ExtraStart& start) -> absl::StatusOr<TrainerRun> {
    return FakeRun(start.plan, start.files, mutant);
  };
}

}  // namespace lockstep::conformance
