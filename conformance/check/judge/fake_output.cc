// What the fake trainer's ranks report and write.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_parts.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

using enum TrainerMutant;

using Losses = std::vector<std::optional<double>>;

float MeanOf(const std::vector<float>& values) {
  const float sum = std::accumulate(values.begin(), values.end(), 0.0f);
  return sum / static_cast<float>(values.size());
}

// By mutants of several ranks alone.
double Scaled(double loss, size_t count, int64_t batch_size,
              TrainerMutant mutant) {
  if (mutant == kReportsScaledLoss) return 1.1 * loss;
  if (mutant == kReportsRoundedLoss) {
    return std::round(loss * 1000) / 1000;
  }
  if (mutant == kReportsLossOfFullBatch) {
    return loss * static_cast<double>(count) / static_cast<double>(batch_size);
  }
  return loss;
}

using Indices = std::vector<int64_t>;

// Sums over the samples of a share, and over its batches' means.
struct Sums {
  double loss = 0, right = 0, count = 0;
  double batch_losses = 0, batch_accuracies = 0, batches = 0;

  void Add(const Sums& other) {
    loss += other.loss;
    right += other.right;
    count += other.count;
    batch_losses += other.batch_losses;
    batch_accuracies += other.batch_accuracies;
    batches += other.batches;
  }
};

Sums SumsOf(const FakeTensors& weights, const CaseFiles& files,
            const Indices& share, int64_t batch, const FakeMode& mode) {
  Sums sums;
  const auto all = static_cast<int64_t>(share.size());
  for (int64_t begin = 0; begin < all; begin += batch) {
    const Indices part(share.begin() + begin,
                       share.begin() + std::min(all, begin + batch));
    const FakePass pass =
        RunFakeModel(weights, GatherFake(files, "test", part), mode);
    double loss = 0;
    for (const float of_sample : pass.losses) loss += of_sample;
    const auto count = static_cast<double>(part.size());
    const auto right = static_cast<double>(
        std::count(pass.correct.begin(), pass.correct.end(), true));
    sums.Add({.loss = loss,
              .right = right,
              .count = count,
              .batch_losses = loss / count,
              .batch_accuracies = right / count,
              .batches = 1});
  }
  return sums;
}

// What a rank reports: of all sums, or of what it takes for them.
EvaluationOutput Report(TrainerMutant mutant, const Sums& all,
                        const std::vector<Sums>& ranks, size_t rank) {
  EvaluationOutput output;
  const Sums* of = &all;
  if (mutant == kFirstRanksMetrics) of = &ranks[0];
  if (mutant == kOwnMetrics) of = &ranks[rank];
  output.loss = of->loss / of->count;
  output.accuracy = of->right / of->count;
  if (mutant == kMeanOfBatchMetrics) {
    output.loss = all.batch_losses / all.batches;
    output.accuracy = all.batch_accuracies / all.batches;
  }
  if (mutant == kMeanOfRankMetrics) {
    output.loss = output.accuracy = 0;
    for (const Sums& own : ranks) {
      const double share = own.count * static_cast<double>(ranks.size());
      output.loss += own.loss / share;
      output.accuracy += own.right / share;
    }
  }
  if (mutant == kTruncatesAccuracy && ranks.size() > 1) {
    output.accuracy = std::floor(output.accuracy * 100) / 100;
  }
  return output;
}

void SpoilOutput(TrainerMutant mutant, bool parallel, RankOutput& output) {
  if (mutant == kThinksItIsAlone) output.world_size = 1;
  if (mutant == kLeavesOutEvaluation ||
      (mutant == kFirstRankEvaluatesAll && output.rank > 0)) {
    output.evaluation.reset();
  }
  if (parallel && mutant == kWritesOtherShape) {
    for (auto& [key, tensor] : output.tensors) tensor.shape.push_back(1);
  }
  if (mutant == kLeavesOutTensor) {
    std::erase_if(output.tensors, [](const auto& entry) {
      return entry.first.ends_with("/b2");
    });
  }
  if (parallel && mutant == kWritesForeignIndex) {
    output.steps[0].indices[0] = -1;
  }
}

}  // namespace

Losses FakeLosses(const Case& c,
                  const std::vector<std::vector<int64_t>>& shares,
                  const std::vector<FakePass>& passes, TrainerMutant mutant) {
  std::vector<float> means;
  for (const FakePass& pass : passes) {
    means.push_back(pass.losses.empty() ? 0 : MeanOf(pass.losses));
  }
  const float sum = std::accumulate(means.begin(), means.end(), 0.0f);
  Losses losses;
  for (size_t r = 0; r < passes.size(); ++r) {
    std::optional<double>& loss = losses.emplace_back();
    if (!passes[r].losses.empty()) loss = means[r];
    if (mutant == kReportsUnweightedLoss) {
      loss = sum / static_cast<float>(passes.size());
    }
    if (mutant == kReportsSummedLoss) loss = sum;
    if (mutant == kReportsFirstRanksLoss) loss = means[0];
    if (mutant == kReportsMicroBatchLoss) {
      loss = means[r] / static_cast<float>(c.accumulate);
    }
    if (loss.has_value() && passes.size() > 1) {
      loss = Scaled(*loss, shares[r].size(), c.batch_sizes[r], mutant);
    }
  }
  return losses;
}

std::vector<EvaluationOutput> FakeEvaluations(
    const Case& c, const CaseFiles& files,
    const std::vector<FakeTensors>& weights, TrainerMutant mutant) {
  if (weights.empty()) return {};
  const int64_t size = SampleCount(files, "test");
  const auto shares = FakeTestShares(c.world_size(), size, mutant);
  const FakeMode mode = {.batch_norm = c.batch_norm != "none",
                         .training = false,
                         .bfloat16 = c.dtype == "bfloat16"};
  Sums all;
  std::vector<Sums> ranks;
  for (size_t r = 0; r < shares.size(); ++r) {
    ranks.push_back(
        SumsOf(weights[r], files, shares[r], c.batch_sizes[r], mode));
    all.Add(ranks.back());
  }
  std::vector<EvaluationOutput> outputs;
  for (size_t r = 0; r < shares.size(); ++r) {
    outputs.push_back(Report(mutant, all, ranks, r));
    outputs.back().indices = shares[r];
    const bool padded = mutant == kPadsEvaluation;
    outputs.back().count = padded ? static_cast<int64_t>(all.count) : size;
  }
  return outputs;
}

void WriteFakeStep(const Case& c, const CaseFiles& files, int64_t step,
                   const FakeTensors& gradients, const FakeTensors& weights,
                   RankOutput& output) {
  const auto write = [&](const char* kind, const std::string& name,
                         const std::vector<float>& values) {
    const auto& shape = files.weights.tensors.at(name).shape;
    output.tensors[absl::StrCat(kind, ".", step, "/", name)] =
        name.ends_with("tracked")
            ? NamedTensor::Of<int64_t>(
                  shape, std::vector<int64_t>{static_cast<int64_t>(values[0])})
            : NamedTensor::Of<float>(shape, values);
  };
  for (const auto& [name, values] : weights) {
    const auto gradient = gradients.find(name);
    if (Has(c.write_gradients, step) && gradient != gradients.end() &&
        !Has(c.frozen, name)) {
      write("gradient", name, gradient->second);
    }
    if (Has(c.write_state, step)) {
      write(IsFakeBuffer(name) ? "buffer" : "parameter", name, values);
    }
  }
}

void SpoilRun(TrainerMutant mutant, TrainerRun& run) {
  const bool parallel = run.world_size > 1;
  const auto last = static_cast<size_t>(run.world_size - 1);
  const auto silence = [&run](size_t ranks, const absl::Status& status) {
    std::fill_n(run.ranks.begin(), ranks, TrainerRun::Rank{status, {}});
  };
  const bool hangs = mutant == kLastRankSkipsAndOthersHang;
  const bool crashes = mutant == kLastRankSkipsAndOthersCrash;
  const bool skips = mutant == kLastRankSkipsLastBatch;
  if (parallel && (hangs || crashes || skips)) {
    run.ranks[last].output.steps.pop_back();
    if (!skips) silence(last, absl::NotFoundError("no file"));
  }
  if ((parallel && hangs) || mutant == kHangs) {
    run.end = TrainerRun::End::kTimedOut;
    run.how = "it did not end within 60 s";
  }
  if ((parallel && crashes) || mutant == kCrashes) {
    run.end = TrainerRun::End::kFailed;
    run.how = "rank 0 exited with status 1";
    run.last_lines = {"[0] RuntimeError: connection closed by peer"};
  }
  if (mutant == kHangs || mutant == kCrashes || mutant == kWritesNothing) {
    silence(last + 1, absl::NotFoundError("no file"));
  }
  if (mutant == kWritesGarbage) {
    silence(1, absl::DataLossError("rank0.json: not JSON at byte 0"));
  }
  for (TrainerRun::Rank& rank : run.ranks) {
    SpoilOutput(mutant, parallel, rank.output);
  }
}

}  // namespace lockstep
