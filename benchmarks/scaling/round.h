// What one run of one configuration measured.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_ROUND_H_
#define LOCKSTEP_BENCHMARKS_SCALING_ROUND_H_

#include <span>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/scaling/plan.h"

namespace lockstep::benchmarks {

// Where a step's time goes, in seconds (or any share of a step).
struct StepParts {
  double compute = 0;                // Forward, backward, update.
  double exposed_communication = 0;  // Waiting for sums after backward.
  double data_wait = 0;              // Gathering the batch.
  double rest = 0;                   // What none of those explains.

  double Sum() const {
    return compute + exposed_communication + data_wait + rest;
  }
};

// One timed step on one rank.
struct RankStep {
  double seconds = 0;
  StepParts parts = {};    // Without `rest`.
  double cpu_seconds = 0;  // That the rank's thread spent on a core.
};

// What one rank hands to whoever started it.
struct RankResult {
  int rank = 0;
  int world_size = 0;                // The ranks it heard from.
  bool same_parameters = false;      // As rank 0's, bit for bit, at the end.
  double loss = 0;                   // Mean over the last global batch.
  std::vector<RankStep> steps = {};  // In order.

  static auto Members(auto& self) {
    return std::tie(self.rank, self.world_size, self.same_parameters, self.loss,
                    self.steps);
  }
};

// One run, all ranks together.
struct RoundSample {
  double images_per_second = 0;  // steps * global_batch / slowest rank's time.
  StepParts parts;       // A step's, mean over steps and ranks; they add up to
                         // global_batch / images_per_second.
  double imbalance = 0;  // Mean over steps of the slowest rank's
                         // compute / the ranks' mean - 1.
  // Mean over ranks: the share of the time in which a rank had work to do (all
  // but exposed communication) that its computing thread did not spend on a
  // core, because its communication thread, other ranks or other programs did.
  double kept_waiting = 0;
  std::vector<double> step_seconds = {};  // Of each step, on its slowest rank.
  double loss = 0;
};

// Refuses, with kDataLoss, a run that did not do what was asked: another world
// size or number of steps, a rank missing or twice, parameters that differ
// between ranks, a loss that is not finite. `results` in any order.
absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_ROUND_H_
