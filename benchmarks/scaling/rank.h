// The work of one rank in a run: it trains, on a CPU or a GPU, and times its
// steps.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_RANK_H_
#define LOCKSTEP_BENCHMARKS_SCALING_RANK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/scaling/turn.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/data_flags.h"
#include "models/train/data_parallel.h"
#include "models/train/rank_steps.h"

namespace lockstep::benchmarks {

// Trains for the warm-up and the timed steps on one compute thread or one GPU,
// then checks the outcome with the other ranks. Ranks of kApart begin together
// and train on the same images, each in a group of one rank. Their outcomes are
// checked as for other backends.
//
// On a CPU a step's time runs from the end of one step to the end of the next,
// so it includes everything that the trainer does in between. The smaller batch
// at the end of an epoch is trained on, but it is neither timed nor counted. On
// a GPU the same holds by the GPU's clock (GpuTimedSteps). If NCCL does not
// support how ranks share a GPU, the hosts sum the gradients; each step then
// waits for the GPU, and the host's clock counts.
//
// local_rank: the rank's number among those of its host. data: how the images
// are transformed and loaded. Errors: kInvalidArgument if the data set has less
// than one global batch; the network's; the trainer's; the communicator's;
// those of DescribeGpu and CreateGpuSteps.
absl::StatusOr<RankResult> RunRank(Communicator& communicator, int local_rank,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec);

// The steps of a run on a GPU. The host asks for metrics only in the last timed
// step, so no step waits for the host to read a result. The times are those of
// the GPU's events (StepResult::gpu_steps).
class GpuTimedSteps : public RankSteps {
 public:
  // Borrows `steps`. spec: the number of steps and the size of a full batch.
  GpuTimedSteps(RankSteps& steps, const RunSpec& spec);

  // Returns whether the last timed step was taken.
  bool done() const;
  // Returns the timed steps, once `done`. Error: kInternal if there are no
  // times for each step.
  absl::StatusOr<std::vector<RankStep>> Timed() const;
  // Returns the metrics of this rank's shards in all steps, once `done`.
  const Metrics& metrics() const { return last_.metrics; }

  absl::Status Begin() override { return steps_.Begin(); }
  // Ignores `with_metrics`.
  absl::StatusOr<StepResult> Step(const Batch& shard, int64_t global_samples,
                                  float learning_rate,
                                  bool with_metrics) override;
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return steps_.Evaluate(batch);
  }
  absl::Status BroadcastBuffers() override { return steps_.BroadcastBuffers(); }
  absl::Status Read(Parameters& parameters, Buffers& buffers) override {
    return steps_.Read(parameters, buffers);
  }
  absl::Status Write(const Parameters& parameters,
                     const Buffers& buffers) override {
    return steps_.Write(parameters, buffers);
  }
  absl::StatusOr<OptimizerState> ReadOptimizer() override {
    return steps_.ReadOptimizer();
  }
  absl::Status WriteOptimizer(const OptimizerState& state) override {
    return steps_.WriteOptimizer(state);
  }
  const std::string& warning() const override { return steps_.warning(); }

 private:
  RankSteps& steps_;
  const int64_t global_batch_;
  const int warmup_steps_, all_steps_;  // Of full batches.
  int full_steps_ = 0;
  std::vector<bool> is_full_;  // By step: whether its batch is.
  StepResult last_;            // Of the last timed step.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_RANK_H_
