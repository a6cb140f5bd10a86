// Compares evaluations bit by bit, and guesses why they differ.
#include "conformance/evaluation_check.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// All digits that tell doubles apart.
std::string Digits(double value) { return absl::StrFormat("%.17g", value); }

absl::Status CheckRanksReportTheSame(std::span<const Evaluation> ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const Evaluation& a = ranks[0];
    const Evaluation& b = ranks[rank];
    if (SameBits(a.loss, b.loss) && SameBits(a.accuracy, b.accuracy) &&
        a.samples == b.samples) {
      continue;
    }
    return absl::DataLossError(absl::StrCat(
        "RanksAgree: rank ", rank, " reports loss ", Digits(b.loss),
        ", accuracy ", Digits(b.accuracy), " of ", b.samples,
        " samples, rank 0 ", Digits(a.loss), ", ", Digits(a.accuracy), " of ",
        a.samples, ": of its own samples, not reduced over the ranks?"));
  }
  return absl::OkStatus();
}

absl::Status CheckSampleCount(int64_t want, int64_t got) {
  if (got == want) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "Samples: ", got, " samples were counted of a data set of ", want, ": ",
      got > want
          ? absl::StrCat(got - want, " count twice, those of a padded sampler?")
          : absl::StrCat(want - got,
                         " are left out, those of a partial batch?")));
}

absl::Status CheckMean(absl::string_view check, absl::string_view name,
                       double want, double got, int64_t samples) {
  if (SameBits(want, got)) return absl::OkStatus();
  if (std::isnan(got)) {
    return absl::DataLossError(absl::StrCat(
        check, ": ", name, " is nan, the mean of a rank without samples?"));
  }
  const double bound = 2 * static_cast<double>(samples) * 0x1p-53 * want;
  const bool rounding = std::abs(got - want) <= bound;
  return absl::DataLossError(absl::StrCat(
      check, ": ", name, " is ", Digits(got), ", one rank has ", Digits(want),
      rounding ? ": within rounding, so float64 sums of parts that depend on "
                 "the world size?"
               : ": beyond the rounding of any sum, so a mean of the ranks' "
                 "means, not weighted by their samples?"));
}

}  // namespace

absl::Status CheckEvaluation(const Evaluation& want,
                             std::span<const Evaluation> ranks) {
  if (ranks.empty())
    return absl::DataLossError("RanksAgree: no rank reports anything");
  LOCKSTEP_RETURN_IF_ERROR(CheckRanksReportTheSame(ranks));
  LOCKSTEP_RETURN_IF_ERROR(CheckSampleCount(want.samples, ranks[0].samples));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckMean("Loss", "loss", want.loss, ranks[0].loss, want.samples));
  return CheckMean("Accuracy", "accuracy", want.accuracy, ranks[0].accuracy,
                   want.samples);
}

std::vector<std::string> EvaluationChecks() {
  return {"RanksAgree", "Samples", "Loss", "Accuracy"};
}

}  // namespace lockstep
