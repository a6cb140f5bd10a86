// One run of one configuration: the request to the ranks, the work and the
// measurements of one rank, and the combination of all ranks.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_TURN_H_
#define LOCKSTEP_BENCHMARKS_SCALING_TURN_H_

#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/scaling/settings.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/train/data_flags.h"

namespace lockstep::benchmarks {

// One run of one configuration, as the driver sends it to every rank.
struct RunSpec {
  Configuration configuration = {};
  std::string model = "lenet";
  double learning_rate = 0.01;  // For this global batch.
  int steps = 0;
  int warmup_steps = 0;

  static auto Members(auto& self) {
    return std::tie(self.configuration, self.model, self.learning_rate,
                    self.steps, self.warmup_steps);
  }
  friend bool operator==(const RunSpec&, const RunSpec&) = default;
};

// The parts of a step's time, in seconds (or as shares of a step).
struct StepParts {
  double compute = 0;                // Forward, backward, update.
  double exposed_communication = 0;  // Waiting for sums after backward.
  double data_wait = 0;              // Gathering the batch.
  double rest = 0;                   // Not explained by the others.

  double Sum() const {
    return compute + exposed_communication + data_wait + rest;
  }
  friend bool operator==(const StepParts&, const StepParts&) = default;
};

inline constexpr double StepParts::*kStepParts[] = {
    &StepParts::compute, &StepParts::exposed_communication,
    &StepParts::data_wait, &StepParts::rest};

// One timed step on one rank.
struct RankStep {
  double seconds = 0;
  StepParts parts = {};    // `rest` is 0.
  double cpu_seconds = 0;  // The time of the rank's thread on a core.

  friend bool operator==(const RankStep&, const RankStep&) = default;
};

// The outcome of a run on one rank, which the rank returns to the driver.
struct RankResult {
  int rank = 0;
  int world_size = 0;                // The ranks that it received from.
  bool same_parameters = false;      // Equal to rank 0's bits at the end.
  double loss = 0;                   // Mean over the last global batch.
  std::string convolution = {};      // As in RoundSample.
  std::vector<RankStep> steps = {};  // In order.

  static auto Members(auto& self) {
    return std::tie(self.rank, self.world_size, self.same_parameters, self.loss,
                    self.convolution, self.steps);
  }
  friend bool operator==(const RankResult&, const RankResult&) = default;
};

// One run, all ranks together.
struct RoundSample {
  double images_per_second = 0;  // steps * global_batch / slowest rank's time.
  StepParts parts = {};  // A step's, mean over steps and ranks; they add up to
                         // global_batch / images_per_second.
  // The mean over steps of: the slowest rank's compute / the ranks' mean - 1.
  double imbalance = 0;
  // The mean over ranks of a share of time. The whole is the time in which a
  // rank had work to do: a step without its exposed communication. The share is
  // the part that the rank's computing thread did not spend on a core. The
  // rank's communication thread, other ranks or other programs used the core
  // instead.
  double kept_waiting = 0;
  std::vector<double> step_seconds = {};  // Each step's, on its slowest rank.
  double loss = 0;
  // "winograd" if a rank computes a convolution by Winograd, else "direct".
  // Empty if the algorithm is not known.
  std::string convolution = {};
};

// Combines the results of all ranks, in any order, into one round. Returns
// kDataLoss for a run that differs from `spec` in its world size or number of
// steps, or that lacks a rank or has it twice. Returns kDataLoss too if the
// parameters differ between ranks, or if the loss is not finite.
absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results);

// Trains for the warm-up and the timed steps on one compute thread, then checks
// the outcome with the other ranks. A step's time runs from the end of one step
// to the end of the next, so it includes everything that the trainer does in
// between. The smaller batch at the end of an epoch is trained on, but it is
// neither timed nor counted. Ranks of kApart begin together and train on the
// same images, each in a group of one rank. Their outcomes are checked as for
// other backends. data: how the images are transformed and loaded. Errors:
// kInvalidArgument if the data set has less than one global batch; the
// network's; the trainer's; the communicator's.
absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_TURN_H_
