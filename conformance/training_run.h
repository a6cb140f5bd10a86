// Runs the product's trainer on N ranks and returns what each rank did; with
// hooks through which a mutant is planted around it, never inside it.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/mutant.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"
#include "sampler/sampler.h"

namespace lockstep {

// Passes everything on to `model`, which it borrows, and records each training
// step as the model sees it. A step's gradients are read when the next step
// begins, or at Finish: by then they are what the update used. It asks nothing
// of the trainer but that it trains through the Model interface.
class RecordingModel : public Model {
 public:
  explicit RecordingModel(Model& model) : model_(model) {}

  Parameters& parameters() override { return model_.parameters(); }
  Buffers& buffers() override { return model_.buffers(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return model_.ConvertSyncBatchNorm(group);
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    RecordState();
    trace_.samples.push_back({{batch.images.begin(), batch.images.end()},
                              {batch.labels.begin(), batch.labels.end()}});
    return model_.ForwardBackward(batch, gradient_scale, ready);
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return model_.Evaluate(batch);
  }

  // The trace of the steps so far. Call once, after the last step.
  RankTrace Finish() {
    RecordState();
    return std::move(trace_);
  }

 private:
  void RecordState() {
    const Parameters& p = model_.parameters();
    trace_.parameters.emplace_back(p.values().begin(), p.values().end());
    if (trace_.samples.empty()) return;
    trace_.gradients.emplace_back(p.gradients().begin(), p.gradients().end());
  }

  Model& model_;
  RankTrace trace_;
};

// Bytes that ParseTrace turns back into the same trace, bit for bit, in a
// process of the same machine.
std::string SerializeTrace(const RankTrace& trace);

// Errors: kDataLoss if the bytes end too early or go on too long.
absl::StatusOr<RankTrace> ParseTrace(absl::string_view bytes);

// What each rank handed back. Errors: the first rank's, with its number.
absl::StatusOr<std::vector<RankTrace>> ParseTraces(
    std::span<const absl::StatusOr<std::string>> ranks);

// A run of LeNet. The defaults make four steps in two epochs, with uneven
// shards at every world size above one, and a last batch of three samples, so
// that some of more than three ranks have none.
struct RunOptions {
  Backend backend = Backend::kThreads;
  int world_size = 2;
  std::vector<int64_t> epochs = {0, 1};
  int64_t dataset_size = 14;  // Of BlobDataset.
  // 64 KiB buckets: b4..W4, b3 and W3, W2..W1 travel apart.
  TrainerOptions trainer = {.batch_size = 11,
                            .learning_rate = 0.02f,
                            .seed = 3,
                            .bucket_bytes = 64 << 10};
};

// What a mutant may know about the rank that it runs on.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  const TrainerOptions* trainer = nullptr;
  int64_t dataset_size = 0;
  std::span<const float> gradients;  // The model's, all parameters.
};

// Decorators; those that are empty change nothing.
struct Mutation {
  std::function<std::unique_ptr<Communicator>(Communicator&,
                                              const RankContext&)>
      communicator;
  std::function<std::unique_ptr<Model>(Model&, const RankContext&)> model;
  std::function<std::unique_ptr<Sampler>(std::unique_ptr<Sampler>,
                                         const RankContext&)>
      sampler;
  // Changes the settings of the run, not what is expected of it.
  std::function<void(TrainerOptions&, int world_size)> trainer;
};

struct TrainingMutant {
  Mutant mutant;  // Not yet of a suite.
  Mutation mutation;
};

// Mutants of LeNet's data-parallel training: how gradients and parameters
// travel; what a step computes, and with which settings; which samples a rank
// draws.
std::vector<TrainingMutant> AllTrainingMutants();

// All of them, of the checks in AllChecks(); each is planted in a run of three
// ranks. Its `says` is of the first check that rejects it.
MutantSuite TrainingMutants();

// The samples of these numbers, in this order.
Samples GatherSamples(const Dataset& data, std::span<const int64_t> indices);

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

// One rank: trains `model` with the product's trainer for the given epochs,
// with the mutant planted around it. Errors: the trainer's.
absl::Status Train(Communicator& group, Model& model, const Dataset& data,
                   const TrainerOptions& options, const Mutation& mutation,
                   std::span<const int64_t> epochs, const OnStep& on_step);

// Trains, and returns a trace for each rank. Errors: the first rank's, with the
// rank's number.
absl::StatusOr<std::vector<RankTrace>> RunTraining(const RunOptions& options,
                                                   const Mutation& mutation);

// A run whose end is compared to the bit: on BlobDataset, with SyncBatchNorm
// where the model has batch norm. Images are dealt unevenly: 2, 2, 1, 1 a step
// to 4 ranks.
struct BitsRun {
  std::string model = "lenet";  // Or "resnet18", ...
  int64_t width = 64;           // ... whose first stage has these channels.
  int64_t bucket_bytes = 64 << 10;
  int64_t steps = 20;
  int64_t batch_size = 6;  // Global.
  float learning_rate = 0.02f;
};

// Trains on this rank of `group` with the product's trainer and returns a line
// for each step, with the bits of this rank's loss, and one for each parameter
// and buffer at the end, with a 64-bit digest of its bits (FNV-1a; two that
// differ have the same one with a chance of 2^-64). Errors: the trainer's.
absl::StatusOr<std::string> TrainedBits(Communicator& group,
                                        const BitsRun& run);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_RUN_H_
