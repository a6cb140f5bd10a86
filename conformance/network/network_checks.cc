// Compares the ranks with each other and with the reference.
#include "conformance/network/network_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/mutant.h"
#include "conformance/network/network_causes.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/checks.h"
#include "conformance/training/trace.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

// Records the first failure of a check.
void Fail(NetworkVerdicts& verdicts, NameIn<kNetworkChecks> check, int step,
          const std::string& what) {
  absl::Status& status = verdicts.checks.at(check.name());
  if (!status.ok()) return;
  status = absl::DataLossError(
      step < 0 ? what : absl::StrCat("step ", step, ": ", what));
}

void CheckRanks(const TestedNetwork& tested, const NetworkTrace& trace,
                BatchStatistics statistics, NetworkVerdicts& verdicts) {
  const std::vector<RankMoment>& zero = trace.ranks[0];
  for (size_t rank = 1; rank < trace.ranks.size(); ++rank) {
    for (size_t moment = 0; moment < zero.size(); ++moment) {
      RankMoment own = trace.ranks[rank][moment];
      // There are no gradients before the first step.
      if (moment == 0) own.gradients = zero[0].gradients;
      if (moment > 0 && statistics == BatchStatistics::kLocal) {
        own.running = zero[moment].running;
        own.batches = zero[moment].batches;
      }
      const std::string difference =
          DifferenceOfRanks(tested, zero[moment], own);
      if (difference.empty()) continue;
      const std::string what =
          absl::StrCat("ranks 0 and ", rank, " disagree on the ", difference);
      if (moment == 0) {
        Fail(verdicts, "SameStart", -1, what + ", not broadcast from rank 0?");
      } else {
        Fail(verdicts, "RanksAgree", static_cast<int>(moment) - 1,
             what + CauseOfDifference(tested, trace, rank, moment));
      }
    }
  }
}

void CheckStart(const TestedNetwork& tested, const NetworkTrace& trace,
                NetworkVerdicts& verdicts) {
  if (trace.first.parameters[0] != tested.start()) {
    Fail(verdicts, "SameStart", -1, "rank 0 starts with other parameters");
  }
  if (trace.ranks[0][0].running != tested.Running(1)) {
    Fail(verdicts, "SameStart", -1,
         "rank 0 starts with other running statistics");
  }
}

// Whether the rank normalises an empty share.
bool IsIdle(const NetworkRun& run, BatchStatistics statistics, size_t rank) {
  return statistics == BatchStatistics::kLocal && run.deal[rank] == 0;
}

void CheckCounts(const NetworkRun& run, const NetworkTrace& trace,
                 BatchStatistics statistics, NetworkVerdicts& verdicts) {
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const int64_t due = IsIdle(run, statistics, rank) ? 0 : 1;
    const std::vector<RankMoment>& moments = trace.ranks[rank];
    for (size_t moment = 1; moment < moments.size(); ++moment) {
      for (size_t i = 0; i < moments[0].batches.size(); ++i) {
        const int64_t grown =
            moments[moment].batches[i] - moments[moment - 1].batches[i];
        if (grown == due) continue;
        Fail(verdicts, "Counts", static_cast<int>(moment) - 1,
             absl::StrCat("num_batches_tracked of batch norm ", i, " on rank ",
                          rank, " goes up by ", grown));
      }
    }
  }
}

// Checks one step of a run, with the reference at the run's own parameters.
class StepChecker {
 public:
  StepChecker(const NetworkRun& run, const NetworkTrace& trace, int step,
              BatchStatistics statistics, NetworkVerdicts& verdicts)
      : run_(run),
        trace_(trace),
        step_(step),
        statistics_(statistics),
        verdicts_(verdicts),
        reference_(ReferenceOf(InputOf(run, trace, step, statistics))),
        causes_(run, trace, step, want_, statistics) {}

  void Check() {
    CheckLoss();
    CheckGradients();
    for (int rank = 0; rank < run_.world_size(); ++rank) CheckBuffers(rank);
  }

 private:
  // False for NaN.
  bool IsNear(double distance, double rounding) {
    verdicts_.furthest =
        std::max(verdicts_.furthest, ErrorOverAllowed(distance, rounding));
    return distance <= spread_ * rounding;
  }

  const char* Wanted() const {
    return statistics_ == BatchStatistics::kLocal ? "local batch norm's"
                                                  : "one rank's";
  }

  void CheckLoss() {
    double loss = 0;
    for (const auto& moments : trace_.ranks)
      loss += moments[step_ + 1].loss_sum;
    const double tolerance = spread_ * rounding_.loss_sum;
    if (IsNear(std::abs(loss - want_.loss_sum), rounding_.loss_sum)) return;
    Fail(verdicts_, "Loss", step_,
         absl::StrFormat("the losses add up to %.9g, must be %.9g +- %.2g",
                         loss, want_.loss_sum, tolerance));
  }

  void CheckGradients() {
    const auto& specs = run_.tested->specs();
    const std::vector<float>& got = trace_.first.gradients[step_];
    const auto distances = TensorDistances(specs, got, want_.gradient);
    const auto norms = TensorNorms(specs, want_.gradient);
    for (size_t i = 0; i < specs.size(); ++i) {
      const double tolerance = spread_ * rounding_.gradients[i];
      if (IsNear(distances[i], rounding_.gradients[i])) continue;
      Fail(verdicts_, "Gradients", step_,
           absl::StrFormat("the gradient of %s, of norm %.3g, is %.3g away "
                           "from %s, may be %.2g%s",
                           specs[i].name, norms[i], distances[i], Wanted(),
                           tolerance, causes_.OfGradient(specs[i], got)));
      return;
    }
  }

  void CheckBuffers(int rank) {
    const auto& specs = run_.tested->buffer_specs();
    const std::vector<float>& zero = trace_.ranks[0][step_].running;
    const std::vector<float>& before = trace_.ranks[rank][step_].running;
    const std::vector<float>& after = trace_.ranks[rank][step_ + 1].running;
    // The batch's part does not depend on the old value.
    const double kept =
        IsIdle(run_, statistics_, rank) ? 1 : 1 - kNetworkMomentum;
    std::vector<double> want = want_.RunningOn(rank);
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += kept * (static_cast<double>(before[i]) - zero[i]);
    }
    const std::vector<double>& rounding = rounding_.RunningOn(rank);
    const auto distances = TensorDistances(specs, after, want);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (IsNear(distances[i], rounding[i])) continue;
      Fail(verdicts_, "Buffers", step_,
           absl::StrFormat(
               "%s on rank %d is %.3g away from %s, may be %.2g%s",
               specs[i].name, rank, distances[i], Wanted(),
               spread_ * rounding[i],
               causes_.OfBuffer(specs[i], rank, before, after, want)));
      return;
    }
  }

  const NetworkRun& run_;
  const double spread_ = SpreadOf(run_.type);
  const NetworkTrace& trace_;
  const int step_;
  const BatchStatistics statistics_;
  NetworkVerdicts& verdicts_;
  const StepReference reference_;
  const NetworkStep& want_ = reference_.want;
  const Rounding& rounding_ = reference_.rounding;
  StepCauses causes_;
};

}  // namespace

absl::Status CheckNetworkUpdates(const TestedNetwork& tested,
                                 std::span<const RankTrace> ranks) {
  Expectation want{.specs = tested.specs(),
                   .start = tested.start(),
                   .learning_rate = kNetworkLearningRate,
                   .steps = {},
                   .reference = nullptr};
  for (size_t step = 0; step < ranks[0].samples.size(); ++step) {
    want.steps.push_back({0, static_cast<int64_t>(step), {}});
  }
  return CheckUpdates(want, ranks);
}

NetworkVerdicts CheckNetwork(const NetworkRun& run, const NetworkTrace& trace,
                             BatchStatistics statistics) {
  NetworkVerdicts verdicts;
  for (const char* check : kNetworkChecks) {
    verdicts.checks[check] = absl::OkStatus();
  }
  CheckStart(*run.tested, trace, verdicts);
  CheckRanks(*run.tested, trace, statistics, verdicts);
  CheckCounts(run, trace, statistics, verdicts);
  verdicts.checks["Updates"] =
      CheckNetworkUpdates(*run.tested, std::span(&trace.first, 1));
  for (int step = 0; step < run.steps; ++step) {
    StepChecker(run, trace, step, statistics, verdicts).Check();
  }
  return verdicts;
}

double WidestTolerance(const StepInput& in) {
  const auto& [want, rounding] = ReferenceOf(in);
  double widest = rounding.loss_sum / (kMostOfLoss * want.loss_sum);
  const auto& buffers = in.tested.buffer_specs();
  for (size_t rank = 0; rank < want.running.size(); ++rank) {
    // A rank with an empty share keeps its statistics exactly.
    if (!in.local_deal.empty() && in.local_deal[rank] == 0) continue;
    const auto moved = TensorDistances(buffers, in.running, want.running[rank]);
    for (size_t i = 0; i < buffers.size(); ++i) {
      widest = std::max(
          widest, rounding.running[rank][i] / (kMostOfRunning * moved[i]));
    }
  }
  const auto& specs = in.tested.specs();
  const auto norms = TensorNorms(specs, want.gradient);
  for (size_t i = 0; i < specs.size(); ++i) {
    // A bias without a gradient is compared with the norm of its convolution's
    // weights.
    const double norm = norms[in.tested.HasZeroGradient(specs[i]) ? i - 1 : i];
    widest = std::max(widest, rounding.gradients[i] / (kMostOfGradient * norm));
  }
  return SpreadOf(in.type) * widest;
}

}  // namespace lockstep::conformance
