// Runs the product's trainer on N ranks and records the steps of each rank.
// Hooks plant a mutant around the trainer, never inside it.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/trace.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

// The information that a mutant has about its rank.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  const TrainerOptions* trainer = nullptr;
  int64_t dataset_size = 0;
  // The model's parameters. The trainer may later move their gradients.
  const Parameters* parameters = nullptr;
};

// One step, as the trainer requests it from a model.
struct StepCall {
  const RankContext& on;
  Model& model;
  Communicator* norm_group;  // Null if the model was not converted.
  const Batch& batch;
  float scale;
  Model::GradientReady ready;

  absl::StatusOr<Metrics> Make() const {
    return model.ForwardBackward(batch, scale, ready);
  }
  // Makes the step without reporting a gradient as ready. The caller then calls
  // MarkAllReady, which reports all gradients, last first.
  absl::StatusOr<Metrics> RunWithoutReady() const {
    return model.ForwardBackward(batch, scale, [](int) {});
  }
  void MarkAllReady() const {
    for (int i = model.parameters().count() - 1; i >= 0; --i) ready(i);
  }
};

// A model that makes its training steps with `step` on `inner`, which it
// borrows. Keeps the group that the model was converted with. All other calls
// are forwarded.
class SteppedModel : public Model {
 public:
  using Step = std::function<absl::StatusOr<Metrics>(const StepCall&)>;

  SteppedModel(Model& inner, Step step, const RankContext& context = {})
      : inner_(inner), step_(std::move(step)), context_(context) {}

  Parameters& parameters() override { return inner_.parameters(); }
  Buffers& buffers() override { return inner_.buffers(); }
  const Shape& input_shape() const override { return inner_.input_shape(); }
  int64_t classes() const override { return inner_.classes(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    norm_group_ = &group;
    return inner_.ConvertSyncBatchNorm(group);
  }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    return step_({context_, inner_, norm_group_, batch, gradient_scale, ready});
  }
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return inner_.Evaluate(batch);
  }

 private:
  Model& inner_;
  const Step step_;
  const RankContext context_;
  Communicator* norm_group_ = nullptr;
};

// Records each training step of `model` as the model sees it. A step's
// gradients are read when the next step begins, or at Finish, since they are
// then those that the update used. The trainer must only train through the
// Model interface.
class RecordingModel : public SteppedModel {
 public:
  explicit RecordingModel(Model& model)
      : SteppedModel(model, [this](const StepCall& call) {
          RecordState();
          const Batch& batch = call.batch;
          trace_.samples.push_back(
              {{batch.images.begin(), batch.images.end()},
               {batch.labels.begin(), batch.labels.end()}});
          return call.Make();
        }) {}

  // Returns the trace of the steps so far. Call once, after the last step.
  RankTrace Finish() {
    RecordState();
    return std::move(trace_);
  }

 private:
  void RecordState() {
    const Parameters& p = parameters();
    trace_.parameters.emplace_back(p.values().begin(), p.values().end());
    if (trace_.samples.empty()) return;
    trace_.gradients.emplace_back(p.gradients().begin(), p.gradients().end());
  }

  RankTrace trace_;
};

// A run of LeNet. The defaults make four steps in two epochs, with uneven
// shards at every world size above one. The last batch has three samples, so
// with more than three ranks some ranks have none.
struct RunOptions {
  Backend backend = Backend::kThreads;
  RankRunner run = nullptr;  // Runs the ranks instead of the backend.
  int world_size = 2;
  std::vector<int64_t> epochs = {0, 1};
  int64_t dataset_size = 14;  // Of BlobDataset.
  // 64 KiB make three buckets: b4..W4, b3 and W3, W2..W1.
  TrainerOptions trainer = {.batch_size = 11,
                            .learning_rate = 0.02f,
                            .seed = 3,
                            .bucket_bytes = 64 << 10};
};

// Decorators of a run; an empty one changes nothing.
struct Mutation {
  std::function<std::unique_ptr<Communicator>(Communicator&,
                                              const RankContext&)>
      communicator = nullptr;
  std::function<std::unique_ptr<Model>(Model&, const RankContext&)> model =
      nullptr;
  std::function<std::unique_ptr<Sampler>(std::unique_ptr<Sampler>,
                                         const RankContext&)>
      sampler = nullptr;
  // Changes the settings of the run, but not the expected result.
  std::function<void(TrainerOptions&, int world_size)> trainer = nullptr;
};

// Returns the samples with these indices, in this order.
Samples GatherSamples(const MemoryDataset& data,
                      std::span<const int64_t> indices);

// Returns the names, shapes and offsets of LeNet's parameters.
std::vector<ParameterSpec> LeNetSpecs();

// Returns a rank's parameters before any communication: another draw of
// WellConditionedLeNet for each rank.
std::vector<float> StartOfRank(int rank);

// Returns the run of one rank alone with these options, computed without the
// code under test. The one exception is the order of samples, which comes from
// DistributedSampler; it has golden tests against PyTorch.
Expectation OneRank(const RunOptions& options);

// Called after each step; false ends the epoch.
using OnStep = std::function<bool(const StepReport&)>;

// Calls `train` on each of `world_size` ranks, with a LeNet of that rank's
// start, and returns each rank's trace. Errors: the first rank's, with its
// number.
absl::StatusOr<std::vector<RankTrace>> RecordRanks(
    const RankRunner& run, int world_size,
    const std::function<absl::Status(Communicator&, RecordingModel&)>& train);

// Returns a runner whose ranks have a deadline of two minutes.
RankRunner RanksOf(Backend backend);

// Trains `model` on one rank, with the product's trainer, for the given epochs
// and with the mutant planted around it. Errors: the trainer's.
absl::Status Train(Communicator& group, Model& model, const MemoryDataset& data,
                   const TrainerOptions& options, const Mutation& mutation,
                   std::span<const int64_t> epochs, const OnStep& on_step);

// Trains and returns a trace for each rank. Errors: the first rank's, with the
// rank's number.
absl::StatusOr<std::vector<RankTrace>> RecordTraining(const RunOptions& options,
                                                      const Mutation& mutation);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
