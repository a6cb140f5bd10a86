// What the checks of a step are made of.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"

namespace lockstep {

std::string OnRank(int rank, const std::string& what) {
  return absl::StrCat("rank ", rank, ": ", what);
}

std::optional<size_t> Worst(const StepView& view, std::span<const double> got,
                            const Bounded& want) {
  std::optional<size_t> worst;
  double most = 1;
  BoundedError largest = *view.largest;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - want.value[i]);
    // Quotients compared without dividing.
    if (off * largest.bound > largest.error * want.bound[i]) {
      largest = {off, want.bound[i]};
    }
    if (off <= want.bound[i]) continue;
    const double times = ErrorOverAllowed(off, want.bound[i]);
    if (times < most) continue;
    worst = i;
    most = times;
  }
  *view.largest = largest;
  return worst;
}

std::string Describe(const std::string& where, double got, double want,
                     double bound) {
  return absl::StrCat(where, " is ", got, ", wanted ", want, ", off by ",
                      std::fabs(got - want), ", bound ", bound);
}

// Compares running statistics with the reference and with each other.
namespace {

// What the running statistics were before the step.
struct Before {
  std::vector<double> mean;
  std::vector<double> variance;
  int64_t batches = 0;
};

Before BeforeStep(const StepView& view, int rank) {
  const SolvedStep& step = view.solved_step();
  if (!step.training) return {step.running_mean, step.running_variance, 0};
  if (view.step == 0)
    return {view.solved.first_mean, view.solved.first_variance};
  const RankOutputs& last =
      view.ranks[static_cast<size_t>(rank)][static_cast<size_t>(view.step - 1)];
  return {view.Statistics(last.running_mean),
          view.Statistics(last.running_variance), last.batches};
}

bool Enters(const StepView& view) {
  const ReferenceStatistics& batch = view.solved_step().statistics;
  return view.solved_step().training && batch.count > 0 &&
         !(batch.count == 1 && view.variant.semantics.refuses_one_value);
}

// The definition, not options.h's function.
double BatchWeight(const StepView& view, int64_t batches_before) {
  switch (view.variant.tracking) {
    case Tracking::kCumulative:
      return 1 / static_cast<double>(batches_before + 1);
    case Tracking::kMomentum:
      return view.variant.semantics.name == "torch" ? 0.3 : 1 - 0.8;
    case Tracking::kNone:
      break;
  }
  return 0;
}

ReferenceRunning WantedRunning(const StepView& view, const Before& before) {
  return EnterRunning(
      before.mean, before.variance, BatchWeight(view, before.batches),
      view.variant.semantics.name == "torch",
      Enters(view) ? view.solved_step().statistics : ReferenceStatistics(),
      view.solved.precision);
}

}  // namespace

std::string CheckRunningMean(const StepView& view) {
  for (int rank = 0; view.tracked() && rank < view.world_size(); ++rank) {
    const Before before = BeforeStep(view, rank);
    const Bounded want = WantedRunning(view, before).mean;
    const auto got = view.Statistics(view.Of(rank).running_mean);
    if (const auto c = Worst(view, got, want)) {
      const std::string cause = CauseOfRunningMean(
          view, rank,
          {before.mean, before.variance, BatchWeight(view, before.batches)},
          want, got);
      return OnRank(rank, Describe(absl::StrCat("running mean[c=", *c, "]"),
                                   got[*c], want.value[*c], want.bound[*c]) +
                              cause);
    }
  }
  return "";
}

std::string CheckRunningVariance(const StepView& view) {
  for (int rank = 0; view.tracked() && rank < view.world_size(); ++rank) {
    const Before before = BeforeStep(view, rank);
    const Bounded want = WantedRunning(view, before).variance;
    const auto got = view.Statistics(view.Of(rank).running_variance);
    if (const auto c = Worst(view, got, want)) {
      const std::string cause = CauseOfRunningVariance(
          view, rank,
          {before.mean, before.variance, BatchWeight(view, before.batches)},
          want, got);
      return OnRank(rank, Describe(absl::StrCat("running variance[c=", *c, "]"),
                                   got[*c], want.value[*c], want.bound[*c]) +
                              cause);
    }
  }
  return "";
}

std::string CheckBatchCount(const StepView& view) {
  for (int rank = 0; view.tracked() && rank < view.world_size(); ++rank) {
    const int64_t want =
        BeforeStep(view, rank).batches + (Enters(view) ? 1 : 0);
    const int64_t got = view.Of(rank).batches;
    if (got != want) {
      return OnRank(rank,
                    absl::StrCat(got, " batches are counted, not ", want));
    }
  }
  return "";
}

std::string CheckRanksAgree(const StepView& view) {
  const RankOutputs& first = view.Of(0);
  for (int rank = 1; view.tracked() && rank < view.world_size(); ++rank) {
    const RankOutputs& step = view.Of(rank);
    const std::pair<const char*, bool> same[] = {
        {"running mean", step.running_mean == first.running_mean},
        {"running variance", step.running_variance == first.running_variance},
        {"count of batches", step.batches == first.batches}};
    for (const auto& [name, is_same] : same) {
      if (!is_same) {
        return OnRank(rank, absl::StrCat("the ", name, " has other bits than ",
                                         "on rank 0"));
      }
    }
  }
  return "";
}

}  // namespace lockstep
