// Runs the product's trainer on N ranks and returns what each rank did; with
// hooks through which a mutant is planted around it, never inside it.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

// What a mutant may know about the rank that it runs on.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  const TrainerOptions* trainer = nullptr;
  int64_t dataset_size = 0;
  // The model's. The trainer may yet give its gradients another place.
  const Parameters* parameters = nullptr;
};

// One step, as the trainer asks it of a model.
struct StepCall {
  const RankContext& on;
  Model& model;
  Communicator* norm_group;  // Null in a model that was not converted.
  const Batch& batch;
  float scale;
  Model::GradientReady ready;

  absl::StatusOr<Metrics> Make() const {
    return model.ForwardBackward(batch, scale, ready);
  }
  // But that no gradient is ready; then says so of all, the last first.
  absl::StatusOr<Metrics> MakeUnready() const {
    return model.ForwardBackward(batch, scale, [](int) {});
  }
  void ReadyAll() const {
    for (int i = model.parameters().count() - 1; i >= 0; --i) ready(i);
  }
};

// Trains `inner`, which it borrows, by `step`, and keeps the group that the
// model was converted with. All else is passed on.
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
// gradients are read when the next step begins, or at Finish: by then they are
// what the update used. It asks nothing of the trainer but that it trains
// through the Model interface.
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

  // The trace of the steps so far. Call once, after the last step.
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
// shards at every world size above one, and a last batch of three samples, so
// that some of more than three ranks have none.
struct RunOptions {
  Backend backend = Backend::kThreads;
  RankRunner run = nullptr;  // Runs the ranks in place of the backend.
  int world_size = 2;
  std::vector<int64_t> epochs = {0, 1};
  int64_t dataset_size = 14;  // Of BlobDataset.
  // 64 KiB buckets: b4..W4, b3 and W3, W2..W1 travel apart.
  TrainerOptions trainer = {.batch_size = 11,
                            .learning_rate = 0.02f,
                            .seed = 3,
                            .bucket_bytes = 64 << 10};
};

// Decorators; those that are empty change nothing.
struct Mutation {
  std::function<std::unique_ptr<Communicator>(Communicator&,
                                              const RankContext&)>
      communicator = nullptr;
  std::function<std::unique_ptr<Model>(Model&, const RankContext&)> model =
      nullptr;
  std::function<std::unique_ptr<Sampler>(std::unique_ptr<Sampler>,
                                         const RankContext&)>
      sampler = nullptr;
  // Changes the settings of the run, not what is expected of it.
  std::function<void(TrainerOptions&, int world_size)> trainer = nullptr;
};

// A mutation whose group makes its calls by `run`, of which every rank has a
// copy; and one that sums float32 data in place, that is gradients, by `sum`:
// metrics, which are float64 and int64, pass.
Mutation Calling(GroupMutant::RunWrong run);
GroupMutant::RunWrong SumBy(
    std::function<absl::Status(Communicator&, std::span<float>)> sum);
// A mutation whose step is `step`, of which every rank has a copy.
Mutation Stepping(SteppedModel::Step step);

struct TrainingMutant {
  Mutant mutant;  // Not yet of a suite.
  Mutation mutation;
};

// Mutants of LeNet's data-parallel training: how gradients and parameters
// travel; what a step computes, and with which settings; which samples a rank
// draws.
std::vector<TrainingMutant> AllTrainingMutants();

// All of them, of the checks in AllChecks(); each is planted in a run of three
// ranks, of threads or of those of `run`. Its `says` is of the first check that
// rejects it.
MutantSuite TrainingMutants(const RankRunner& run = nullptr);

// The samples of these numbers, in this order.
Samples GatherSamples(const MemoryDataset& data,
                      std::span<const int64_t> indices);

// Names, shapes and places of LeNet's parameters.
std::vector<ParameterSpec> LeNetSpecs();

// The parameters that a rank starts with before any communication: another
// draw of WellConditionedLeNet for each rank.
std::vector<float> StartOfRank(int rank);

// What one rank alone does with these options, written out without the code
// under test but for the order of samples (DistributedSampler, which has golden
// tests against PyTorch).
Expectation OneRank(const RunOptions& options);

// Called after each step; returning false ends the epoch.
using OnStep = std::function<bool(const StepReport&)>;

// Calls `train` on each of so many ranks, with a LeNet of that rank's start,
// and returns what each recorded. Errors: the first rank's, with its number.
absl::StatusOr<std::vector<RankTrace>> RecordRanks(
    const RankRunner& run, int world_size,
    const std::function<absl::Status(Communicator&, RecordingModel&)>& train);

// Ranks that have two minutes.
RankRunner RanksOf(Backend backend);

// One rank: trains `model` with the product's trainer for the given epochs,
// with the mutant planted around it. Errors: the trainer's.
absl::Status Train(Communicator& group, Model& model, const MemoryDataset& data,
                   const TrainerOptions& options, const Mutation& mutation,
                   std::span<const int64_t> epochs, const OnStep& on_step);

// Trains, and returns a trace for each rank. Errors: the first rank's, with the
// rank's number.
absl::StatusOr<std::vector<RankTrace>> RunTraining(const RunOptions& options,
                                                   const Mutation& mutation);

// Reference runs: a network with the same sums in another order, which shows
// what rounding alone can change.

// Place i holds what was in place [i].
using IndexOrder = std::vector<int64_t>;

IndexOrder IdentityOf(int64_t size);

// Draws the permutations of a network's channels, pixels and samples. Seed 0
// leaves all as it is.
class Reordering {
 public:
  explicit Reordering(uint32_t seed) : seed_(seed), random_(seed) {}

  // Another one in each call.
  IndexOrder Shuffled(int64_t size);
  // A square of `side` times `side`, transposed.
  IndexOrder Square(int64_t side) const;
  // The samples shuffled, their square images transposed.
  Samples Batch(const Samples& samples);

 private:
  const uint32_t seed_;
  std::mt19937 random_;
};

// Adds the places of a tensor behind the last one, of as many axes as there are
// permutations: place i of an axis holds what was in place axes[..][i].
void AppendTensor(const std::vector<IndexOrder>& axes, IndexOrder& places);

// to[i] = from[places[i]], and back.
void Take(const IndexOrder& places, std::span<const float> from,
          std::span<float> to);
std::vector<float> PutBack(const IndexOrder& places,
                           std::span<const float> from);

// LeNet with its channels and hidden units in an order of its own, its images
// and kernels transposed, and the samples of each batch in another order each
// time. Mathematically the same function of the same parameters; in float32
// every sum of the forward and of the backward pass adds its terms in another
// order. Not thread safe.
class ReorderedLeNet {
 public:
  // Another seed, another order. seed: not 0.
  explicit ReorderedLeNet(uint32_t seed);

  // The gradient of the mean loss of `samples` (at least one) at `parameters`,
  // both in the order of LeNet itself. Errors: the model's.
  absl::StatusOr<std::vector<float>> Gradient(std::span<const float> parameters,
                                              const Samples& samples);

 private:
  Reordering reordering_;
  std::unique_ptr<Model> model_;
  IndexOrder places_;  // Of this one's parameters in LeNet's.
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
