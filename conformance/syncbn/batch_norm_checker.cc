// Compares what the ranks have with the reference, output by output.
#include "conformance/syncbn/batch_norm_checker.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_causes.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "conformance/syncbn/step_checks.h"

namespace lockstep {
namespace {

std::string Place(const SolvedProblem& solved, const char* name, size_t index) {
  const auto i = static_cast<int64_t>(index);
  const int64_t hw = solved.problem.hw;
  return absl::StrCat(name, "[n=", i / (solved.problem.channels * hw),
                      ", c=", i / hw % solved.problem.channels, ", i=", i % hw,
                      "]");
}

std::string CheckStatus(const StepView& view) {
  // Where the ranks normalise with the same statistics.
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

std::string CheckOutput(const StepView& view) {
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) continue;
    const Bounded& want = view.WantOn(rank).y[view.IndexOf(rank)];
    const std::vector<double> got = view.Activations(rank, view.Of(rank).y);
    if (const auto i = Worst(view, got, want)) {
      const int64_t c = static_cast<int64_t>(*i) / view.solved.problem.hw %
                        view.solved.problem.channels;
      return OnRank(rank, Describe(Place(view.solved, "y", *i), got[*i],
                                   want.value[*i], want.bound[*i]) +
                              CauseOfOutput(view, rank, c, got));
    }
  }
  return "";
}

bool AnyRefuses(const StepView& view) {
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) return true;
  }
  return false;
}

// A parameter's gradient as the ranks have it, added up.
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

std::string CheckInputGradient(const StepView& view) {
  for (int rank = 0; rank < view.world_size(); ++rank) {
    if (view.MustRefuse(rank)) continue;
    const Bounded& want = view.WantOn(rank).dx[view.IndexOf(rank)];
    const std::vector<double> got = view.Activations(rank, view.Of(rank).dx);
    if (const auto i = Worst(view, got, want)) {
      const int64_t c = static_cast<int64_t>(*i) / view.solved.problem.hw %
                        view.solved.problem.channels;
      return OnRank(rank, Describe(Place(view.solved, "dx", *i), got[*i],
                                   want.value[*i], want.bound[*i]) +
                              CauseOfInputGradient(view, rank, c, got));
    }
  }
  return "";
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

absl::Status CheckRun(const SolvedProblem& solved,
                      const BatchNormVariant& variant,
                      std::span<const RankRun> ranks) {
  return MeasureRun(solved, variant, ranks).status();
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
      const std::pair<const char*, bool> same[] = {
          {"y", a.y == b.y},
          {"dx", a.dx == b.dx},
          {"dresidual", a.dresidual == b.dresidual},
          {"dweight", a.dweight == b.dweight},
          {"dbias", a.dbias == b.dbias},
          {"running mean", a.running_mean == b.running_mean},
          {"running variance", a.running_variance == b.running_variance}};
      for (const auto& [name, is_same] : same) {
        if (is_same) continue;
        return Failure(
            "SameBits", view,
            OnRank(rank, absl::StrCat(name, " has other bits ", between)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
