#include "conformance/cuda/gpu_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "conformance/cuda/gpu_causes.h"
#include "conformance/cuda/gpu_run.h"
#include "conformance/mutant.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "models/cuda/precision.h"

namespace lockstep::conformance {
namespace {

bool IsFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
}

// Returns whether the rank skips the step.
bool Skips(const GpuRankTrace& rank, size_t step) {
  return rank.scales[step + 1].skipped > rank.scales[step].skipped;
}

std::string Moment(size_t moment) {
  return moment == 0 ? "at the start" : absl::StrCat("after step ", moment - 1);
}

absl::Status CheckScales(const GpuTrace& trace, size_t moment) {
  for (size_t rank = 1; rank < trace.ranks.size(); ++rank) {
    const float zero = trace.ranks[0].scales[moment].scale;
    const float own = trace.ranks[rank].scales[moment].scale;
    if (zero == own) continue;
    return absl::DataLossError(absl::StrFormat(
        "%s ranks 0 and %d hold the loss scales %g and %g: chosen by each rank "
        "for itself?",
        Moment(moment), rank, zero, own));
  }
  return absl::OkStatus();
}

// Checks that a skipped step halves the scale, and that any other keeps it: the
// runs are too short for it to grow (LossScale).
absl::Status CheckRule(const GpuRankTrace& rank, size_t step) {
  const float before = rank.scales[step].scale;
  const float after = rank.scales[step + 1].scale;
  const float want = Skips(rank, step) ? before / 2 : before;
  if (after == want) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("step %d: the loss scale goes from %g to %g, must be %g",
                      step, before, after, want));
}

absl::Status CheckDecision(const GpuTrace& trace, size_t step) {
  const bool skips = Skips(trace.ranks[0], step);
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const GpuRankTrace& own = trace.ranks[rank];
    const bool is_finite = IsFinite(own.gradients[step]);
    if (Skips(own, step) != skips) {
      const size_t skipping = skips ? 0 : rank;
      return absl::DataLossError(absl::StrFormat(
          "step %d: rank %d skips the step and rank %d takes it%s", step,
          skipping, skips ? rank : 0,
          is_finite != IsFinite(trace.ranks[0].gradients[step])
              ? "; the gradients of one alone are not finite: does each rank "
                "look at its own in place of the sum?"
              : ""));
    }
    if (skips == is_finite) {
      return absl::DataLossError(absl::StrFormat(
          "step %d: rank %d %s a step whose summed gradients are%s finite",
          step, rank, skips ? "skips" : "takes", is_finite ? "" : " not"));
    }
    if (skips && own.parameters[step + 1] != own.parameters[step]) {
      return absl::DataLossError(absl::StrFormat(
          "step %d: rank %d skips the step, and its parameters change", step,
          rank));
    }
  }
  return absl::OkStatus();
}

// Returns the steps before the first that a rank skips.
int TakenSteps(const GpuRun& run, const GpuTrace& trace) {
  for (int step = 0; step < run.steps; ++step) {
    for (const GpuRankTrace& rank : trace.ranks) {
      if (Skips(rank, step)) return step;
    }
  }
  return run.steps;
}

NetworkTrace FirstSteps(NetworkTrace trace, int steps) {
  const auto size = static_cast<size_t>(steps);
  trace.first.parameters.resize(size + 1);
  trace.first.gradients.resize(size);
  trace.first.samples.resize(size);
  for (std::vector<RankMoment>& moments : trace.ranks) moments.resize(size + 1);
  return trace;
}

// Checks the first steps of every rank; CheckNetwork knows only rank 0's.
absl::Status CheckUpdatesOfRanks(const GpuRun& run, const GpuTrace& trace,
                                 int steps) {
  std::vector<RankTrace> ranks;
  for (const GpuRankTrace& rank : trace.ranks) {
    RankTrace& first = ranks.emplace_back();
    first.parameters.assign(rank.parameters.begin(),
                            rank.parameters.begin() + steps + 1);
    first.gradients.assign(rank.gradients.begin(),
                           rank.gradients.begin() + steps);
    first.samples.resize(steps);
  }
  return CheckNetworkUpdates(*run.tested, ranks);
}

}  // namespace

absl::Status CheckSkips(const GpuTrace& trace) {
  LOCKSTEP_RETURN_IF_ERROR(CheckScales(trace, 0));
  for (size_t step = 0; step < trace.ranks[0].gradients.size(); ++step) {
    LOCKSTEP_RETURN_IF_ERROR(CheckDecision(trace, step));
    LOCKSTEP_RETURN_IF_ERROR(CheckScales(trace, step + 1));
    LOCKSTEP_RETURN_IF_ERROR(CheckRule(trace.ranks[0], step));
  }
  return absl::OkStatus();
}

NetworkVerdicts CheckGpuRun(const GpuRun& run, const GpuTrace& trace) {
  NetworkRun taken = run.network();
  taken.steps = TakenSteps(run, trace);
  NetworkVerdicts verdicts =
      CheckNetwork(taken, FirstSteps(trace.network, taken.steps));
  verdicts.checks["Updates"] = CheckUpdatesOfRanks(run, trace, taken.steps);
  const auto add = [&](NameIn<kGpuChecks> check, const std::string& cause) {
    absl::Status& status = verdicts.checks.at(check.name());
    status = absl::Status(status.code(),
                          absl::StrCat(std::string(status.message()), cause));
  };
  if (!verdicts.checks.at("Updates").ok()) {
    add("Updates", CauseOfUpdates(run, trace, taken.steps));
  }
  if (!verdicts.checks.at("Gradients").ok()) {
    add("Gradients", CauseOfGradients(run, trace, taken.steps));
  }
  if (run.precision == ConvolutionPrecision::kFloat16) {
    verdicts.checks["Skips"] = CheckSkips(trace);
  } else {
    verdicts.checks["Skips"] = absl::OkStatus();
  }
  return verdicts;
}

}  // namespace lockstep::conformance
