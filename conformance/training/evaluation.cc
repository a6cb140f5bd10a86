// The check compares bit by bit and finds the causes of differences. The runs
// evaluate LeNet. The mutants evaluate it wrongly.
#include "conformance/training/evaluation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/reference/lenet_reference.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/shard.h"

namespace lockstep::conformance {
namespace {

using CheckName = NameIn<kEvaluationChecks>;

// Returns the error of a check. All rejections use it.
absl::Status Wrong(CheckName check, const std::string& what) {
  return absl::DataLossError(absl::StrCat(check.name(), ": ", what));
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Formats with all digits that distinguish doubles.
std::string Digits(double value) { return absl::StrFormat("%.17g", value); }

// Returns whether a and b are equal up to the rounding of sums of n losses.
bool AreNear(double a, double b, int64_t n) {
  return std::abs(a - b) <= 2 * static_cast<double>(n) * 0x1p-53 * std::abs(b);
}

// Returns the evaluation of each rank's share, dealt as the trainer does: whole
// batches, in order. With fewer batches than ranks, some shares have no
// samples.
std::vector<Evaluation> SharesOf(const OneRankEvaluation& want, size_t ranks) {
  std::vector<Evaluation> shares;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Shard shard =
        ExactShard(static_cast<int64_t>(want.batches.size()),
                   static_cast<int>(ranks), static_cast<int>(rank));
    Evaluation& share = shares.emplace_back();
    for (int64_t i = shard.begin; i < shard.end; ++i) {
      const Evaluation& batch = want.batches[static_cast<size_t>(i)];
      const auto samples = static_cast<double>(batch.samples);
      share.loss += batch.loss * samples;
      share.accuracy += batch.accuracy * samples;
      share.samples += batch.samples;
    }
    const auto samples = static_cast<double>(share.samples);
    if (samples > 0) {
      share.loss /= samples;
      share.accuracy /= samples;
    }
  }
  return shares;
}

bool HasNoSamples(const Evaluation& share) { return share.samples == 0; }

bool ReportsShare(const Evaluation& report, const Evaluation& share) {
  if (report.samples != share.samples) return false;
  return HasNoSamples(share) ||
         (AreNear(report.loss, share.loss, share.samples) &&
          AreNear(report.accuracy, share.accuracy, share.samples));
}

absl::Status CheckRanksReportTheSame(const OneRankEvaluation& want,
                                     std::span<const Evaluation> ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const Evaluation& a = ranks[0];
    const Evaluation& b = ranks[rank];
    if (SameBits(a.loss, b.loss) && SameBits(a.accuracy, b.accuracy) &&
        a.samples == b.samples) {
      continue;
    }
    const bool own =
        std::ranges::equal(ranks, SharesOf(want, ranks.size()), ReportsShare);
    return Wrong(
        "RanksAgree",
        absl::StrCat(
            "rank ", rank, " reports loss ", Digits(b.loss), ", accuracy ",
            Digits(b.accuracy), " of ", b.samples, " samples, rank 0 ",
            Digits(a.loss), ", ", Digits(a.accuracy), " of ", a.samples,
            own ? ": each of its own samples, not reduced over the ranks?"
                : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckSampleCount(const OneRankEvaluation& want, int64_t got,
                              int64_t ranks) {
  const int64_t size = want.whole.samples;
  if (got == size) return absl::OkStatus();
  const bool padded =
      got > size && got - size == (ranks - size % ranks) % ranks;
  const bool partial = size - got == want.batches.back().samples &&
                       size - got < want.batches.front().samples;
  return Wrong("Samples",
               absl::StrCat(got, " samples were counted of a data set of ",
                            size, ": ", std::abs(got - size),
                            got > size ? " count twice" : " are left out",
                            padded    ? ", those of a padded sampler?"
                            : partial ? ", those of the partial batch?"
                                      : ""));
}

// Returns why the mean `field` is not one rank's; "" if unknown.
std::string CauseOfMean(const OneRankEvaluation& want, double got,
                        double Evaluation::*field, size_t ranks) {
  const std::vector<Evaluation> shares = SharesOf(want, ranks);
  const bool idle = std::ranges::any_of(shares, HasNoSamples);
  if (std::isnan(got)) {
    return idle ? ": the mean of a rank without samples?" : "";
  }
  const int64_t samples = want.whole.samples;
  if (AreNear(got, want.whole.*field, samples)) {
    return ": within rounding, so float64 sums of parts that depend on the "
           "world size?";
  }
  double sum = 0;
  for (const Evaluation& share : shares) sum += share.*field;
  if (idle || !AreNear(got, sum / static_cast<double>(ranks), samples)) {
    return "";
  }
  return ": it is the mean of the ranks' means, not weighted by their samples";
}

absl::Status CheckMean(const OneRankEvaluation& want,
                       std::span<const Evaluation> ranks,
                       double Evaluation::*field, CheckName check,
                       absl::string_view name) {
  const double due = want.whole.*field, got = ranks[0].*field;
  if (SameBits(due, got)) return absl::OkStatus();
  return Wrong(
      check,
      absl::StrCat(name, " is ", Digits(got), ", one rank has ", Digits(due),
                   CauseOfMean(want, got, field, ranks.size())));
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

void SetParameters(Model& lenet, uint32_t draw) {
  const std::vector<float> values = HeLeNet(draw);
  std::copy(values.begin(), values.end(), lenet.parameters().values().begin());
}

Evaluation Mean(double loss_sum, int64_t correct, int64_t samples) {
  const double n = static_cast<double>(samples);
  return {loss_sum / n, static_cast<double>(correct) / n, samples};
}

// Returns BlobDataset, which is made once for each size.
const MemoryDataset& EvaluationData(int64_t size) {
  static auto& cache = *new std::map<int64_t, MemoryDataset>;
  if (!cache.contains(size)) cache.emplace(size, BlobDataset(size));
  return cache.at(size);
}

Evaluation MeanOf(const Metrics& metrics) {
  return Mean(metrics.loss_sum, metrics.correct, metrics.samples);
}

// Evaluates the model on each batch of the samples, in order.
absl::StatusOr<std::vector<Metrics>> EvaluateBatches(
    Model& model, const MemoryDataset& data, std::span<const int64_t> samples) {
  std::vector<Metrics> parts;
  while (!samples.empty()) {
    const std::span<const int64_t> batch = samples.first(
        std::min<size_t>(samples.size(), Trainer::kEvaluationBatch));
    samples = samples.subspan(batch.size());
    const Samples gathered = GatherSamples(data, batch);
    LOCKSTEP_ASSIGN_OR_RETURN(
        parts.emplace_back(),
        model.Evaluate({gathered.images, gathered.labels}));
  }
  return parts;
}

}  // namespace

absl::Status CheckEvaluation(const OneRankEvaluation& want,
                             std::span<const Evaluation> ranks) {
  if (ranks.empty()) {
    return Wrong("RanksAgree", "no rank reports anything");
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRanksReportTheSame(want, ranks));
  LOCKSTEP_RETURN_IF_ERROR(CheckSampleCount(
      want, ranks[0].samples, static_cast<int64_t>(ranks.size())));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckMean(want, ranks, &Evaluation::loss, "Loss", "loss"));
  return CheckMean(want, ranks, &Evaluation::accuracy, "Accuracy", "accuracy");
}

absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(int64_t size,
                                                    uint32_t draw) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
  SetParameters(*model, draw);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(*model, EvaluationData(size), Range(0, size)));
  OneRankEvaluation result;
  __int128 loss = 0;
  Metrics sum;
  for (const Metrics& part : parts) {
    const double units = std::ldexp(part.loss_sum, 100);
    if (!(part.loss_sum < 0x1p20 && units == std::floor(units))) {
      return absl::InternalError("a loss cannot be added exactly");
    }
    loss += static_cast<__int128>(units);
    sum += part;
    result.batches.push_back(MeanOf(part));
  }
  result.whole = Mean(std::ldexp(static_cast<double>(loss), -100), sum.correct,
                      sum.samples);
  return result;
}

absl::StatusOr<Evaluation> EvaluateByTrainer(Communicator& group, Model& model,
                                             const MemoryDataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, model, data, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, trainer->Evaluate(data));
  return MeanOf(metrics);
}

absl::StatusOr<std::vector<Evaluation>> RunEvaluation(Backend backend,
                                                      int world_size,
                                                      int64_t size,
                                                      Evaluator& evaluate,
                                                      uint32_t draw) {
  const MemoryDataset& data = EvaluationData(size);
  const auto results = RunRanksCollect(
      backend, world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        SetComputeThreads(1);
        const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
        if (group.rank() == 0) SetParameters(*model, draw);
        LOCKSTEP_RETURN_IF_ERROR(
            BroadcastParameters(group, model->parameters()));
        LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation evaluation,
                                  evaluate(group, *model, data));
        return std::string(reinterpret_cast<const char*>(&evaluation),
                           sizeof(evaluation));
      });
  std::vector<Evaluation> ranks;
  for (const absl::StatusOr<std::string>& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(result.status());
    std::memcpy(&ranks.emplace_back(), result->data(), sizeof(Evaluation));
  }
  return ranks;
}

namespace {

// The mutants.

constexpr int64_t kBatch = Trainer::kEvaluationBatch;

Metrics SumOf(const std::vector<Metrics>& parts) {
  Metrics sum;
  for (const Metrics& part : parts) sum += part;
  return sum;
}

// Evaluates the rank's share of the first `size` samples, in whole batches.
absl::StatusOr<Metrics> EvaluateShare(const Communicator& group, Model& model,
                                      const MemoryDataset& data, int64_t size) {
  const int64_t batches = (size + kBatch - 1) / kBatch;
  const Shard shard = ExactShard(batches, group.world_size(), group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(model, data,
                      Range(std::min(size, shard.begin * kBatch),
                            std::min(size, shard.end * kBatch))));
  return SumOf(parts);
}

absl::StatusOr<Evaluation> ReduceShares(Communicator& group, Model& model,
                                        const MemoryDataset& data,
                                        int64_t size) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, size));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum, AllReduceMetrics(group, share));
  return MeanOf(sum);
}

// An evaluator, and a case in which it must be rejected.
struct Planting {
  Evaluator* evaluate;
  int64_t size = kEvaluationSamples;
  int world_size = 2;
  // The mutant shows only in the last bits, in cases that depend on the
  // machine. Several world sizes and draws are tried until it shows.
  bool by_chance = false;
};

absl::Status CheckPlanted(const Planting& planting) {
  const std::vector<int> world_sizes =
      planting.by_chance ? std::vector<int>{1, 2, 3, 4, 8}
                         : std::vector<int>{planting.world_size};
  const uint32_t draws = planting.by_chance ? 12 : 1;
  for (uint32_t draw = kEvaluationDraw; draw < kEvaluationDraw + draws;
       ++draw) {
    LOCKSTEP_ASSIGN_OR_RETURN(const OneRankEvaluation want,
                              EvaluateOnOneRank(planting.size, draw));
    for (const int world_size : world_sizes) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<Evaluation> ranks,
          RunEvaluation(Backend::kThreads, world_size, planting.size,
                        *planting.evaluate, draw));
      const absl::Status rejected = CheckEvaluation(want, ranks);
      if (rejected.ok()) continue;
      if (!planting.by_chance) return rejected;
      // In the same case the trainer is right, so the rejection is no accident.
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<Evaluation> exact,
          RunEvaluation(Backend::kThreads, world_size, planting.size,
                        EvaluateByTrainer, draw));
      const absl::Status right = CheckEvaluation(want, exact);
      return right.ok() ? rejected : absl::InternalError(right.message());
    }
  }
  return absl::OkStatus();
}

Mutant Planted(Mutant mutant, const Planting& planting) {
  mutant.plant = [planting] { return CaughtBy(CheckPlanted(planting)); };
  return mutant;
}

}  // namespace

absl::StatusOr<Evaluation> ReportOwnShare(Communicator& group, Model& model,
                                          const MemoryDataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size()));
  return MeanOf(share);
}

absl::StatusOr<Evaluation> PadSampler(Communicator& group, Model& model,
                                      const MemoryDataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create({.dataset_size = data.size(),
                                  .world_size = group.world_size(),
                                  .rank = group.rank(),
                                  .shuffle = false}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> samples,
                            sampler.Indices());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Metrics> parts,
                            EvaluateBatches(model, data, samples));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum,
                            AllReduceMetrics(group, SumOf(parts)));
  return MeanOf(sum);
}

absl::StatusOr<Evaluation> DropPartialBatch(Communicator& group, Model& model,
                                            const MemoryDataset& data) {
  return ReduceShares(group, model, data, data.size() / kBatch * kBatch);
}

absl::StatusOr<Evaluation> AverageRanksMeans(Communicator& group, Model& model,
                                             const MemoryDataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size()));
  double means[] = {MeanOf(share).loss, MeanOf(share).accuracy};
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(means));
  return Evaluation{means[0] / group.world_size(),
                    means[1] / group.world_size(), data.size()};
}

absl::StatusOr<Evaluation> AverageRanksAccuracies(Communicator& group,
                                                  Model& model,
                                                  const MemoryDataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(Evaluation right,
                            EvaluateByTrainer(group, model, data));
  LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation wrong,
                            AverageRanksMeans(group, model, data));
  right.accuracy = wrong.accuracy;
  return right;
}

absl::StatusOr<Evaluation> SumPlainly(Communicator& group, Model& model,
                                      const MemoryDataset& data) {
  return ReduceShares(group, model, data, data.size());
}

MutantSuite EvaluationMutants() {
  std::vector<Mutant> mutants = {
      Planted({"OwnShare", "every rank reports the metrics of its own share",
               "RanksAgree",
               "each of its own samples, not reduced over the ranks?"},
              {.evaluate = ReportOwnShare}),
      Planted({"Padded", "the sampler repeats samples so that ranks are even",
               "Samples", "1 count twice, those of a padded sampler?"},
              {.evaluate = PadSampler}),
      Planted({"PartialBatchDropped",
               "the last batch is left out as it is not whole", "Samples",
               "are left out, those of the partial batch?"},
              {.evaluate = DropPartialBatch}),
      Planted({"MeanOfMeans", "the ranks' means are averaged without weights",
               "Loss", "it is the mean of the ranks' means"},
              {.evaluate = AverageRanksMeans}),
      Planted({"MeanWithoutSamples", "the same where a rank has no sample",
               "Loss", "the mean of a rank without samples?"},
              {.evaluate = AverageRanksMeans, .size = 1}),
      Planted({"MeanOfAccuracies",
               "the ranks' accuracies are averaged without weights", "Accuracy",
               "it is the mean of the ranks' means"},
              {.evaluate = AverageRanksAccuracies}),
      Planted({"PlainSum",
               "losses are added rank by rank, so rounded by the ranks' number",
               "Loss", "within rounding, so float64 sums of parts"},
              {.evaluate = SumPlainly, .by_chance = true}),
  };
  return MakeSuite("evaluation", kEvaluationChecks, std::move(mutants));
}

}  // namespace lockstep::conformance
