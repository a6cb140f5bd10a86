// One run of one configuration: the request to the ranks, the measurements of
// one rank, and the combination of all ranks.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_TURN_H_
#define LOCKSTEP_BENCHMARKS_SCALING_TURN_H_

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/scaling/settings.h"

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
  // Gathering the batch; on a GPU, the GPU's time until the step begins.
  double data_wait = 0;
  double rest = 0;  // Not explained by the others.

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
  StepParts parts = {};  // `rest` is 0.
  // The time of the rank's thread on a core. If a GPU or another program
  // computes, this time says nothing, and is `seconds`.
  double cpu_seconds = 0;

  friend bool operator==(const RankStep&, const RankStep&) = default;
};

// The outcome of a run on one rank, which the rank returns to the driver.
struct RankResult {
  int rank = 0;
  int world_size = 0;                // The ranks that it received from.
  bool same_parameters = false;      // Equal to rank 0's bits at the end.
  double loss = 0;                   // As in RoundSample.
  std::string convolution = {};      // As in RoundSample.
  std::vector<RankStep> steps = {};  // In order.
  std::string gpu = {};              // The name of its GPU; empty: the CPU.
  int32_t shares_gpu = 0;            // 1: another rank has the same GPU.
  std::string hosts_sum = {};        // As in RoundSample.
  // Readings of its GPU (GpuMeter); 0: not known.
  int64_t gpu_memory_bytes = 0;  // In use after the run, by all programs.
  double gpu_joules = 0;         // Used in the next number of seconds.
  double gpu_seconds = 0;

  static auto Members(auto& self) {
    return std::tie(self.rank, self.world_size, self.same_parameters, self.loss,
                    self.convolution, self.steps, self.gpu, self.shares_gpu,
                    self.hosts_sum, self.gpu_memory_bytes, self.gpu_joules,
                    self.gpu_seconds);
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
  // The mean over the last global batch, or over all steps of the run if the
  // steps did not wait for a GPU (GpuTimedSteps).
  double loss = 0;
  // "winograd" if a rank computes a convolution by Winograd, else "direct";
  // "cudnn" on GPUs. Empty if the algorithm is not known.
  std::string convolution = {};
  std::vector<std::string> gpus =
      {};                   // The names of the ranks' GPUs, each once.
  bool shared_gpu = false;  // Whether ranks share a GPU.
  // Why the hosts sum the gradients of GPUs; empty: NCCL sums them, or there
  // are no GPUs.
  std::string hosts_sum = {};
  int64_t gpu_memory_bytes = 0;  // The most on a rank's GPU; 0: not known.
  // The means over ranks; 0: not known of a rank.
  double gpu_joules = 0;
  double gpu_seconds = 0;
};

// Combines the results of all ranks, in any order, into one round. Returns
// kDataLoss for a run that differs from `spec` in its world size or number of
// steps, or that lacks a rank or has it twice. Returns kDataLoss too if the
// parameters differ between ranks, if the loss is not finite, or if a rank
// computed on another device.
absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_TURN_H_
