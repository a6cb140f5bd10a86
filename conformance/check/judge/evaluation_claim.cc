// Judges the set of evaluated test samples and the metrics.
#include "conformance/check/judge/evaluation_claim.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/rank_output.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

using Indices = std::vector<int64_t>;

// The loss and accuracy of some samples.
struct Scores {
  double count = 0;
  double loss = 0;
  double accuracy = 0;
};

Scores ScoresOf(const EvaluationOutput& output) {
  return {.count = static_cast<double>(output.count),
          .loss = output.loss,
          .accuracy = output.accuracy};
}

constexpr double kAccuracyError = 1e-5;

// Returns whether a and b differ by at most `limits`, in loss and in accuracy.
bool Near(const Scores& a, const Scores& b, const Scores& limits) {
  return std::fabs(a.loss - b.loss) <= limits.loss &&
         std::fabs(a.accuracy - b.accuracy) <= limits.accuracy;
}

// Evaluates the parameters of the last written step on part of the test set, in
// one batch.
absl::StatusOr<Scores> ScoresOn(const Evidence& evidence,
                                const Indices& indices) {
  const CheckCase& check = evidence.check;
  if (indices.empty() || check.all_ranks.c.write_state.empty()) {
    return absl::FailedPreconditionError("nothing to evaluate");
  }
  ExtraStart start{.plan = {.c = check.one_rank.c},
                   .files = WithSamples(check.files, "test", indices)};
  Case& c = start.plan.c;
  c.name = absl::StrCat(check.name, "_evaluation");
  c.epochs = 0;
  c.shuffle = false;
  c.batch_sizes = {static_cast<int64_t>(indices.size())};
  c.write_gradients.clear();
  c.write_state.clear();
  const int64_t last = check.all_ranks.c.write_state.back();
  for (auto& [name, tensor] : start.files.weights.tensors) {
    for (const char* kind : {"parameter.", "buffer."}) {
      const auto found =
          evidence.rank(0).tensors.find(absl::StrCat(kind, last, "/", name));
      if (found != evidence.rank(0).tensors.end()) tensor = found->second;
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const TrainerRun run, evidence.run_extra(start));
  if (run.ranks.size() != 1 || !run.ranks[0].status.ok() ||
      !run.ranks[0].output.evaluation.has_value()) {
    return absl::FailedPreconditionError("the run gave no evaluation");
  }
  return ScoresOf(*run.ranks[0].output.evaluation);
}

// Returns the mean of `parts`, weighted by their counts if `weighted`.
Scores Mean(const std::vector<Scores>& parts, bool weighted) {
  Scores mean;
  double total = 0;
  for (const Scores& part : parts) {
    const double weight = weighted ? part.count : 1;
    mean.loss += weight * part.loss;
    mean.accuracy += weight * part.accuracy;
    mean.count += part.count;
    total += weight;
  }
  mean.loss /= total;
  mean.accuracy /= total;
  return mean;
}

// A rank's share of the test set, as a whole and in batches.
struct Share {
  Scores whole;
  std::vector<Scores> batches;
};

// Evaluates a share. The full batches are not evaluated separately: each gets
// the mean of all full batches.
absl::StatusOr<Share> EvaluateShare(const Evidence& evidence,
                                    const Indices& indices, int64_t batch) {
  Share share;
  LOCKSTEP_ASSIGN_OR_RETURN(share.whole, ScoresOn(evidence, indices));
  share.whole.count = static_cast<double>(indices.size());
  const auto full = static_cast<size_t>(batch);
  const size_t batches = indices.size() / full, rest = indices.size() % full;
  if (batches == 0 || rest == 0) {
    share.batches = {share.whole};
    return share;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      Scores tail,
      ScoresOn(evidence,
               Indices(indices.end() - static_cast<std::ptrdiff_t>(rest),
                       indices.end())));
  tail.count = static_cast<double>(rest);
  const double inside = share.whole.count - tail.count;
  const auto of_full = [&](double Scores::*field) {
    return (share.whole.count * (share.whole.*field) -
            tail.count * (tail.*field)) /
           inside;
  };
  const Scores one{.count = static_cast<double>(batch),
                   .loss = of_full(&Scores::loss),
                   .accuracy = of_full(&Scores::accuracy)};
  share.batches.assign(batches, one);
  share.batches.push_back(tail);
  return share;
}

// Returns the wrong scores that a trainer may report if its ranks have these
// shares: means of batches, of ranks, or of both.
std::vector<Scores> UnweightedMeans(const std::vector<Share>& shares) {
  std::vector<Scores> wholes, by_rank, all;
  for (const Share& share : shares) {
    wholes.push_back(share.whole);
    by_rank.push_back(Mean(share.batches, false));
    all.insert(all.end(), share.batches.begin(), share.batches.end());
  }
  return {Mean(wholes, false), Mean(by_rank, false), Mean(by_rank, true),
          Mean(all, false)};
}

absl::StatusOr<std::vector<Share>> EvaluateShares(
    const Evidence& evidence, const std::vector<Indices>& parts,
    const std::vector<int64_t>& batches) {
  std::vector<Share> shares;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(Share share,
                              EvaluateShare(evidence, parts[i], batches[i]));
    shares.push_back(std::move(share));
  }
  return shares;
}

std::vector<Indices> PartsOf(const TrainerRun& run) {
  std::vector<Indices> parts;
  for (const TrainerRun::Rank& rank : run.ranks) {
    const auto& evaluation = rank.output.evaluation;
    parts.push_back(evaluation.has_value() ? evaluation->indices : Indices{});
  }
  return parts;
}

// Returns whether each of `got`'s two numbers is `candidate`'s or right, and at
// least one is wrong. A trainer may reduce its loss rightly and its accuracy
// wrongly.
bool IsPartly(const Scores& got, const Scores& candidate, const Scores& want,
              const Scores& limits) {
  if (Near(got, want, limits)) return false;
  const auto mixed = [&](double Scores::*field) {
    const auto near = [&](const Scores& other) {
      return std::fabs(got.*field - other.*field) <= limits.*field;
    };
    return near(want) || near(candidate);
  };
  return mixed(&Scores::loss) && mixed(&Scores::accuracy);
}

// Returns why `got`, the report of rank `rank` of `run`, is not `want`.
Diagnosis DiagnoseMetrics(const Evidence& evidence, const TrainerRun& run,
                          const Case& c, int rank, const Scores& got,
                          const Scores& want, const Scores& limits) {
  const auto shares = EvaluateShares(evidence, PartsOf(run), c.batch_sizes);
  const auto is = [rank](Cause cause) -> Diagnosis {
    return {.cause = cause, .facts = {.rank = rank}};
  };
  if (!shares.ok()) return is(Cause::kUnknown);
  for (const Share& share : *shares) {
    if (run.world_size > 1 && IsPartly(got, share.whole, want, limits)) {
      return is(Cause::kMetricsOfOneRank);
    }
  }
  for (const Scores& candidate : UnweightedMeans(*shares)) {
    if (IsPartly(got, candidate, want, limits)) {
      return is(Cause::kMetricsUnweighted);
    }
  }
  return is(Cause::kUnknown);
}

bool WholeSet(Indices indices, int64_t size) {
  std::ranges::sort(indices);
  return indices == Range(0, size);
}

// Returns why the ranks' parts do not cover the test set with each sample once.
// counts: the number of times that each sample is evaluated.
Diagnosis DiagnoseCoverage(const CheckCase& check,
                           const std::vector<Indices>& parts,
                           const std::vector<int64_t>& counts) {
  const int64_t batch = check.all_ranks.c.global_batch();
  const auto size = static_cast<int64_t>(counts.size());
  const auto missing = std::ranges::count(counts, 0);
  const int64_t extra =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) -
      (size - missing);
  const auto none = [](const Indices& part) { return part.empty(); };
  const auto idle = std::ranges::count_if(parts, none);
  const auto busy = std::ranges::find_if_not(parts, none);
  if (missing > 0 && parts.size() > 1 &&
      idle + 1 == static_cast<int64_t>(parts.size())) {
    return {.cause = Cause::kMetricsOfOneRank,
            .facts = {.rank = static_cast<int>(busy - parts.begin())}};
  }
  // Padding or dropping changes at most one global batch.
  if (missing == 0 && extra < batch) return {.cause = Cause::kEvaluationPadded};
  const bool drops = extra == 0 && missing < batch && idle == 0;
  return {.cause = drops ? Cause::kDropsLastBatch : Cause::kUnknown};
}

std::optional<Judgement> CoverageVerdict(const CheckCase& check,
                                         const TrainerRun& run) {
  const int64_t size = SampleCount(check.files, "test");
  Indices all;
  bool each = true;
  for (const Indices& part : PartsOf(run)) {
    all.insert(all.end(), part.begin(), part.end());
    each = each && WholeSet(part, size);
  }
  if (each || WholeSet(all, size)) return std::nullopt;
  std::vector<int64_t> counts(size);
  for (const int64_t index : all) ++counts[index];
  const int64_t missing = std::ranges::count(counts, 0);
  const int64_t repeated =
      std::ranges::count_if(counts, [](int64_t count) { return count > 1; });
  return Failed(
      absl::StrCat(WithRanks(run.world_size), ", of ", size, " test samples ",
                   repeated, " are evaluated more than once and ", missing,
                   " never"),
      DiagnoseCoverage(check, PartsOf(run), counts));
}

Scores LimitsOf(const Evidence& evidence, const Scores& want) {
  std::vector<double> reordered;
  for (const TrainerRun& run : evidence.runs.reordered) {
    reordered.push_back(run.ranks[0].output.evaluation->loss - want.loss);
  }
  // Accuracy is a quotient of two whole numbers, possibly rounded to float32.
  return {
      .loss = AllowedScalarError(evidence.check, want.loss, reordered).error,
      .accuracy = kAccuracyError};
}

std::string DescribeMetrics(const Scores& got, const Scores& want,
                            const Scores& limits) {
  const double off = std::fabs(got.loss - want.loss);
  return absl::StrFormat(
      "loss %.7g, accuracy %.6g, count %.0f, where loss %.7g, accuracy %.6g, "
      "count %.0f are right (loss is %.2g off, %.2g relative, %.3g units in "
      "the last place; %.2g is allowed, and %.2g of accuracy)",
      got.loss, got.accuracy, got.count, want.loss, want.accuracy, want.count,
      off, off / std::fabs(want.loss), off / UnitInLastPlace(want.loss, 24),
      limits.loss, limits.accuracy);
}

// Compares the reports of one run with the right metrics.
std::optional<Judgement> MetricsVerdict(const Evidence& evidence,
                                        const TrainerRun& run, const Case& c,
                                        const Scores& want, double& worst) {
  const Scores limits = LimitsOf(evidence, want);
  for (int r = 0; r < run.world_size; ++r) {
    const auto& reported = run.ranks[r].output.evaluation;
    if (!reported.has_value()) continue;  // The rank evaluates nothing.
    const Scores got = ScoresOf(*reported);
    const double error = std::fabs(got.loss - want.loss);
    const double ratio = ErrorOverAllowed(error, limits.loss);
    if (!(ratio <= worst)) worst = ratio;
    if (Near(got, want, limits) && got.count == want.count) continue;
    return Failed(absl::StrCat(WithRanks(run.world_size), ", rank ", r,
                               " reports ", DescribeMetrics(got, want, limits)),
                  DiagnoseMetrics(evidence, run, c, r, got, want, limits),
                  ratio);
  }
  return std::nullopt;
}

// Compares the reports of both runs with the right metrics.
Judgement BothVerdict(const Evidence& evidence, const Scores& want) {
  const auto& [check, runs, run_extra, c, shares] = evidence;
  double worst = 0;
  auto wrong =
      MetricsVerdict(evidence, runs.one_rank, check.one_rank.c, want, worst);
  if (!wrong) wrong = MetricsVerdict(evidence, runs.all_ranks, c, want, worst);
  return wrong ? *wrong : Passed(worst);
}

}  // namespace

Judgement JudgeEvaluation(Evidence& evidence) {
  const CheckCase& check = evidence.check;
  if (!check.all_ranks.c.evaluate) {
    return Skipped("The case evaluates nothing.");
  }
  for (const TrainerRun* run :
       {&evidence.runs.one_rank, &evidence.runs.all_ranks}) {
    if (const auto verdict = CoverageVerdict(check, *run)) return *verdict;
  }
  Scores want = ScoresOf(*evidence.one_rank().evaluation);
  want.count = static_cast<double>(SampleCount(check.files, "test"));
  const Judgement verdict = BothVerdict(evidence, want);
  const double right = want.accuracy * want.count;
  const bool is_whole = std::fabs(right - std::round(right)) <= 0.25 * 1e-2;
  if (verdict.outcome == Outcome::kPassed && is_whole) return verdict;
  // One rank alone may average its batches wrongly. The reference is then its
  // evaluation of all samples in one batch.
  const auto in_one_batch =
      ScoresOn(evidence, Range(0, static_cast<int64_t>(want.count)));
  return in_one_batch.ok() ? BothVerdict(evidence, *in_one_batch) : verdict;
}

}  // namespace lockstep::conformance
