// The check compares bit by bit, and looks for why evaluations differ; the runs
// evaluate LeNet.
#include "conformance/evaluation.h"

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
#include "conformance/reference/lenet_fixtures.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

using CheckName = NameIn<kEvaluationChecks>;

// The only way to reject.
absl::Status Wrong(CheckName check, const std::string& what) {
  return absl::DataLossError(absl::StrCat(check.name(), ": ", what));
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// All digits that tell doubles apart.
std::string Digits(double value) { return absl::StrFormat("%.17g", value); }

// Whether they are one number but for the rounding of sums of n losses.
bool AreNear(double a, double b, int64_t n) {
  return std::abs(a - b) <= 2 * static_cast<double>(n) * 0x1p-53 * std::abs(b);
}

// What each rank's share comes to, dealt out as the trainer does: whole
// batches, in order. No samples where there are fewer batches than ranks.
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

// Why the mean `field` is not one rank's; "" if it cannot be told.
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

void SetParameters(Model& lenet, uint32_t draw) {
  const std::vector<float> values = HeLeNet(draw);
  std::copy(values.begin(), values.end(), lenet.parameters().values().begin());
}

Evaluation Mean(double loss_sum, int64_t correct, int64_t samples) {
  const double n = static_cast<double>(samples);
  return {loss_sum / n, static_cast<double>(correct) / n, samples};
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

const Dataset& EvaluationData(int64_t size) {
  static auto& cache = *new std::map<int64_t, Dataset>;
  if (!cache.contains(size)) cache.emplace(size, BlobDataset(size));
  return cache.at(size);
}

Evaluation MeanOf(const Metrics& metrics) {
  return Mean(metrics.loss_sum, metrics.correct, metrics.samples);
}

absl::StatusOr<std::vector<Metrics>> EvaluateBatches(
    Model& model, const Dataset& data, std::span<const int64_t> samples) {
  std::vector<Metrics> parts;
  while (!samples.empty()) {
    const std::span<const int64_t> batch = samples.first(
        std::min<size_t>(samples.size(), Trainer::kEvaluationBatch));
    samples = samples.subspan(batch.size());
    std::vector<float> images(batch.size() * data.image_size());
    std::vector<int32_t> labels(batch.size());
    data.GatherImages(batch, images);
    data.GatherLabels(batch, labels);
    LOCKSTEP_ASSIGN_OR_RETURN(parts.emplace_back(),
                              model.Evaluate({images, labels}));
  }
  return parts;
}

absl::StatusOr<OneRankEvaluation> EvaluateOnOneRank(int64_t size,
                                                    uint32_t draw) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  SetParameters(*model, draw);
  std::vector<int64_t> samples(size);
  std::iota(samples.begin(), samples.end(), 0);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(*model, EvaluationData(size), samples));
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
                                             const Dataset& data) {
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
  const Dataset& data = EvaluationData(size);
  const auto results = RunRanksCollect(
      backend, world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        SetComputeThreads(1);
        const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
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

}  // namespace lockstep
