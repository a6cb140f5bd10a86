// Metrics, summed rightly and averaged wrongly.
#include "conformance/check/fake_evaluation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "conformance/check/case_files.h"
#include "conformance/check/fake_fault.h"
#include "conformance/check/fake_model.h"
#include "conformance/check/fake_schedule.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

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
EvaluationOutput Report(FakeFault fault, const Sums& all,
                        const std::vector<Sums>& ranks, size_t rank) {
  EvaluationOutput output;
  const Sums* of = &all;
  if (fault == FakeFault::kFirstRanksMetrics) of = &ranks[0];
  if (fault == FakeFault::kOwnMetrics) of = &ranks[rank];
  output.loss = of->loss / of->count;
  output.accuracy = of->right / of->count;
  if (fault == FakeFault::kMeanOfBatchMetrics) {
    output.loss = all.batch_losses / all.batches;
    output.accuracy = all.batch_accuracies / all.batches;
  }
  if (fault == FakeFault::kMeanOfRankMetrics) {
    output.loss = output.accuracy = 0;
    for (const Sums& own : ranks) {
      const double share = own.count * static_cast<double>(ranks.size());
      output.loss += own.loss / share;
      output.accuracy += own.right / share;
    }
  }
  if (fault == FakeFault::kTruncatesAccuracy && ranks.size() > 1) {
    output.accuracy = std::floor(output.accuracy * 100) / 100;
  }
  return output;
}

}  // namespace

std::vector<EvaluationOutput> FakeEvaluations(
    const Case& c, const CaseFiles& files,
    const std::vector<FakeTensors>& weights, FakeFault fault) {
  if (weights.empty()) return {};
  const int64_t size = SampleCount(files, "test");
  const auto shares = FakeTestShares(c.world_size(), size, fault);
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
    outputs.push_back(Report(fault, all, ranks, r));
    outputs.back().indices = shares[r];
    const bool padded = fault == FakeFault::kPadsEvaluation;
    outputs.back().count = padded ? static_cast<int64_t>(all.count) : size;
  }
  return outputs;
}

}  // namespace lockstep
