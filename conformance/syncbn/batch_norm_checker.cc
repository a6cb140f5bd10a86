// Compares each output of the ranks with the reference.
#include "conformance/syncbn/batch_norm_checker.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/causes.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/output_causes.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_view.h"
#include "models/reference/bounded.h"
#include "syncbn/testing/batch_norm_reference.h"

namespace lockstep::conformance {
namespace {

std::string OnRank(int rank, const std::string& what) {
  return absl::StrCat("rank ", rank, ": ", what);
}

// Returns the element that is furthest off, measured in bounds, if any element
// is off by more than its bound. NaN always is. Raises view.largest.
std::optional<size_t> Worst(const StepView& view, std::span<const double> got,
                            const Bounded& want) {
  std::optional<size_t> worst;
  double most = 1;
  BoundedError largest = *view.largest;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - want.value[i]);
    // Compares the quotients without dividing.
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

bool Enters(const StepView& view) {
  const ReferenceStatistics& batch = view.solved_step().statistics;
  return view.solved_step().training && batch.count > 0 &&
         !(batch.count == 1 && view.variant.semantics.refuses_one_value);
}

// Computed from the definition, not with the product's WeightOfBatch.
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

RunningBefore BeforeStep(const StepView& view, int rank) {
  const SolvedStep& step = view.solved_step();
  RunningBefore before = {view.solved.first_mean, view.solved.first_variance};
  if (!step.training) {
    before = {step.running_mean, step.running_variance};
  } else if (view.step > 0) {
    const RankOutputs& last = view.ranks[static_cast<size_t>(rank)]
                                        [static_cast<size_t>(view.step - 1)];
    before = {view.Statistics(last.running_mean),
              view.Statistics(last.running_variance), last.batches};
  }
  before.weight = BatchWeight(view, before.batches);
  return before;
}

ReferenceRunning WantedRunning(const StepView& view,
                               const RunningBefore& before) {
  return EnterRunning(
      before.mean, before.variance, before.weight,
      view.variant.semantics.name == "torch",
      Enters(view) ? view.solved_step().statistics : ReferenceStatistics(),
      view.solved.precision);
}

// Checks one running statistic, [c].
std::string CheckRunning(const StepView& view, const char* name,
                         std::string RankOutputs::*field,
                         Bounded ReferenceRunning::*reference,
                         decltype(CauseOfRunningMean)* cause_of) {
  for (int rank = 0; view.tracked() && rank < view.world_size(); ++rank) {
    const RunningBefore before = BeforeStep(view, rank);
    const Bounded want = WantedRunning(view, before).*reference;
    const auto got = view.Statistics(view.Of(rank).*field);
    if (const auto c = Worst(view, got, want)) {
      return OnRank(rank, Describe(absl::StrCat(name, "[c=", *c, "]"), got[*c],
                                   want.value[*c], want.bound[*c]) +
                              cause_of(view, rank, before, want, got));
    }
  }
  return "";
}

std::string CheckRunningMean(const StepView& view) {
  return CheckRunning(view, "running mean", &RankOutputs::running_mean,
                      &ReferenceRunning::mean, CauseOfRunningMean);
}
std::string CheckRunningVariance(const StepView& view) {
  return CheckRunning(view, "running variance", &RankOutputs::running_variance,
                      &ReferenceRunning::variance, CauseOfRunningVariance);
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

std::string Place(const SolvedProblem& solved, const char* name, size_t index) {
  const auto i = static_cast<int64_t>(index);
  const int64_t hw = solved.problem.hw;
  return absl::StrCat(name, "[n=", i / (solved.problem.channels * hw),
                      ", c=", i / hw % solved.problem.channels, ", i=", i % hw,
                      "]");
}

std::string CheckStatus(const StepView& view) {
  // The first message among ranks that normalise with the same statistics.
  std::string first;
  for (int rank = 0; rank < view.world_size(); ++rank) {
    const absl::Status& status = view.Of(rank).status;
    const std::string message(status.message());
    if (!view.MustRefuse(rank)) {
      if (status.ok()) continue;
      return OnRank(rank, absl::StrCat("failed: ", message));
    }
    if (status.ok()) return OnRank(rank, "one value per channel is accepted");
    if (status.code() != absl::StatusCode::kInvalidArgument ||
        !absl::StrContains(message, "one value per channel") ||
        absl::StrContains(message, "\n")) {
      return OnRank(
          rank, absl::StrCat("one value per channel is refused as: ", message));
    }
    if (rank == 0) first = message;
    if (!view.UsesOwn() && message != first) {
      return OnRank(rank, absl::StrCat("one value per channel is refused as: ",
                                       message, "; on rank 0 as: ", first));
    }
  }
  return "";
}

std::string CheckComplaint(const StepView& view, BatchNormCheck check) {
  const std::string prefix = absl::StrCat(check.name(), ": ");
  for (int rank = 0; rank < view.world_size(); ++rank) {
    const std::string& complaint = view.Of(rank).complaint;
    if (absl::StartsWith(complaint, prefix)) {
      return OnRank(rank, complaint.substr(prefix.size()));
    }
  }
  return "";
}

std::string CheckUntouched(const StepView& view) {
  return CheckComplaint(view, "Untouched");
}
std::string CheckReady(const StepView& view) {
  return CheckComplaint(view, "Ready");
}

// Checks y or dx, [n, c, hw].
std::string CheckActivations(const StepView& view, const char* name,
                             std::string RankOutputs::*field,
                             std::vector<Bounded> ReferenceResult::*reference,
                             decltype(CauseOfOutput)* cause_of) {
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) continue;
    const Bounded& want = (view.WantOn(rank).*reference)[view.IndexOf(rank)];
    const std::vector<double> got =
        view.Activations(rank, view.Of(rank).*field);
    if (const auto i = Worst(view, got, want)) {
      const int64_t c = static_cast<int64_t>(*i) / view.solved.problem.hw %
                        view.solved.problem.channels;
      return OnRank(rank, Describe(Place(view.solved, name, *i), got[*i],
                                   want.value[*i], want.bound[*i]) +
                              cause_of(view, rank, c, got));
    }
  }
  return "";
}

std::string CheckOutput(const StepView& view) {
  return CheckActivations(view, "y", &RankOutputs::y, &ReferenceResult::y,
                          CauseOfOutput);
}
std::string CheckInputGradient(const StepView& view) {
  return CheckActivations(view, "dx", &RankOutputs::dx, &ReferenceResult::dx,
                          CauseOfInputGradient);
}

bool AnyRefuses(const StepView& view) {
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) return true;
  }
  return false;
}

// Checks a parameter's gradient, summed over the ranks.
std::string CheckParameterGradient(const StepView& view, const char* name,
                                   std::string RankOutputs::*field,
                                   Bounded ReferenceResult::*reference) {
  if (!view.solved.problem.affine || AnyRefuses(view)) return "";
  Bounded want(view.solved.problem.channels);
  std::vector<double> got(want.value.size());
  std::vector<double> own;
  for (int rank = 0; rank < view.world_size(); ++rank) {
    const std::vector<double> part = view.Statistics(view.Of(rank).*field);
    if (rank == 0) own = part;
    const bool adds = view.UsesOwn() || rank == 0;
    const Bounded& one = view.WantOn(rank).*reference;
    for (size_t c = 0; c < got.size(); ++c) {
      got[c] += part[c];
      if (!adds) continue;
      want.value[c] += one.value[c];
      want.bound[c] += one.bound[c];
    }
  }
  const auto c = Worst(view, got, want);
  if (!c) return "";
  return absl::StrCat(
      "all ranks: ",
      Describe(absl::StrCat("sum of ", name, "[c=", *c, "]"), got[*c],
               want.value[*c], want.bound[*c]),
      CauseOfParameterGradient(view, want, reference, own, got));
}

std::string CheckBiasGradient(const StepView& view) {
  return CheckParameterGradient(view, "dbias", &RankOutputs::dbias,
                                &ReferenceResult::dbias);
}
std::string CheckWeightGradient(const StepView& view) {
  return CheckParameterGradient(view, "dweight", &RankOutputs::dweight,
                                &ReferenceResult::dweight);
}

std::string CheckResidualGradient(const StepView& view) {
  if (!HasResidual(view.solved.problem.fused)) return "";
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) continue;
    const auto& want = view.WantOn(rank).dresidual[view.IndexOf(rank)];
    const auto got = view.Activations(rank, view.Of(rank).dresidual);
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] == want[i]) continue;
      const std::string place = Place(view.solved, "dresidual", i);
      return OnRank(rank, Describe(place, got[i], want[i], 0) +
                              CauseOfResidualGradient(view, rank, got));
    }
  }
  return "";
}

struct NamedCheck {
  BatchNormCheck name;
  std::string (*run)(const StepView&);
};
constexpr NamedCheck kChecks[] = {{"Status", CheckStatus},
                                  {"Untouched", CheckUntouched},
                                  {"Ready", CheckReady},
                                  {"Output", CheckOutput},
                                  {"RunningMean", CheckRunningMean},
                                  {"RunningVariance", CheckRunningVariance},
                                  {"BatchCount", CheckBatchCount},
                                  {"BiasGradient", CheckBiasGradient},
                                  {"WeightGradient", CheckWeightGradient},
                                  {"InputGradient", CheckInputGradient},
                                  {"ResidualGradient", CheckResidualGradient},
                                  {"RanksAgree", CheckRanksAgree}};

absl::Status Failure(BatchNormCheck check, const StepView& view,
                     const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(check.name(), ": ", ToString(view.solved.problem), ", ",
                   ToString(view.variant), ", ",
                   view.solved_step().training ? "training" : "evaluation",
                   " step ", view.step, ", ", what));
}

}  // namespace

absl::StatusOr<double> MeasureRun(const SolvedProblem& solved,
                                  const BatchNormVariant& variant,
                                  std::span<const RankRun> ranks) {
  BoundedError largest;
  for (const NamedCheck& check : kChecks) {
    for (int step = 0; step < kSteps; ++step) {
      const StepView view = {solved, variant, ranks, step, &largest};
      const std::string what = check.run(view);
      if (!what.empty()) return Failure(check.name, view, what);
    }
  }
  return largest.error / largest.bound;
}

absl::Status CheckSameBits(const SolvedProblem& solved,
                           const BatchNormVariant& variant,
                           std::span<const RankRun> runs,
                           std::span<const RankRun> others,
                           const std::string& between) {
  for (int step = 0; step < kSteps; ++step) {
    const StepView view = {solved, variant, runs, step};
    const StepView other = {solved, variant, others, step};
    for (int rank = 0; rank < view.world_size(); ++rank) {
      const RankOutputs& a = view.Of(rank);
      const RankOutputs& b = other.Of(rank);
      for (const auto& [name, field] : kOutputFields) {
        if (a.*field == b.*field) continue;
        return Failure(
            "SameBits", view,
            OnRank(rank, absl::StrCat(name, " has other bits ", between)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
