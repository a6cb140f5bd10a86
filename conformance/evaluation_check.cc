// Compares evaluations bit by bit, and looks for why they differ.
#include "conformance/evaluation_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

// What is asked: the only way to reject.
enum class Question { kRanksAgree, kSamples, kLoss, kAccuracy, kCount };
constexpr const char* kCheckNames[] = {"RanksAgree", "Samples", "Loss",
                                       "Accuracy"};
static_assert(std::size(kCheckNames) == static_cast<size_t>(Question::kCount));

absl::Status Wrong(Question question, const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(kCheckNames[static_cast<size_t>(question)], ": ", what));
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
        Question::kRanksAgree,
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
  return Wrong(Question::kSamples,
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
                       double Evaluation::*field, Question question,
                       absl::string_view name) {
  const double due = want.whole.*field, got = ranks[0].*field;
  if (SameBits(due, got)) return absl::OkStatus();
  return Wrong(
      question,
      absl::StrCat(name, " is ", Digits(got), ", one rank has ", Digits(due),
                   CauseOfMean(want, got, field, ranks.size())));
}

}  // namespace

absl::Status CheckEvaluation(const OneRankEvaluation& want,
                             std::span<const Evaluation> ranks) {
  if (ranks.empty()) {
    return Wrong(Question::kRanksAgree, "no rank reports anything");
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckRanksReportTheSame(want, ranks));
  LOCKSTEP_RETURN_IF_ERROR(CheckSampleCount(
      want, ranks[0].samples, static_cast<int64_t>(ranks.size())));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckMean(want, ranks, &Evaluation::loss, Question::kLoss, "loss"));
  return CheckMean(want, ranks, &Evaluation::accuracy, Question::kAccuracy,
                   "accuracy");
}

std::vector<std::string> EvaluationChecks() {
  return {std::begin(kCheckNames), std::end(kCheckNames)};
}

}  // namespace lockstep
