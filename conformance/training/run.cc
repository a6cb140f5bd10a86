#include "conformance/training/run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/reordered.h"
#include "conformance/training/trace.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/reference/lenet_reference.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

constexpr absl::Duration kGroupTimeout = absl::Seconds(120);

absl::StatusOr<std::unique_ptr<Sampler>> CreateSampler(
    const TrainerOptions& trainer, int64_t dataset_size, int world_size,
    int rank) {
  const bool strided = trainer.sharding == Sharding::kStrided;
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create({.dataset_size = dataset_size,
                                  .world_size = strided ? world_size : 1,
                                  .rank = strided ? rank : 0,
                                  .seed = static_cast<int64_t>(trainer.seed)}));
  return std::make_unique<DistributedSampler>(std::move(sampler));
}

// Returns the samples of an epoch with that order, cut into batches.
std::vector<Samples> BatchesOf(const MemoryDataset& data,
                               std::span<const int64_t> order,
                               int64_t batch_size) {
  std::vector<Samples> batches;
  while (!order.empty()) {
    const std::span<const int64_t> batch =
        order.first(std::min<size_t>(order.size(), batch_size));
    order = order.subspan(batch.size());
    batches.push_back(GatherSamples(data, batch));
  }
  return batches;
}

// Passes the contents of a trace to a RankBytesWriter or RankBytesReader.
template <typename Bytes, typename Trace>
void PassTrace(Bytes& bytes, Trace& trace) {
  bytes(trace.parameters);
  bytes(trace.gradients);
  for (auto& samples : trace.samples) {
    bytes(samples.images);
    bytes(samples.labels);
  }
}

}  // namespace

Samples GatherSamples(const MemoryDataset& data,
                      std::span<const int64_t> indices) {
  Samples samples;
  samples.images.resize(indices.size() * data.image_size());
  samples.labels.resize(indices.size());
  data.GatherImages(indices, samples.images);
  data.GatherLabels(indices, samples.labels);
  return samples;
}

std::vector<ParameterSpec> LeNetSpecs() {
  return (*CreateModel("lenet", /*seed=*/0))->parameters().specs();
}

std::vector<float> StartOfRank(int rank) {
  return WellConditionedLeNet(static_cast<uint32_t>(100 + rank));
}

Expectation OneRank(const RunOptions& options) {
  const int world_size = options.world_size;
  Expectation want{.specs = LeNetSpecs(),
                   .start = StartOfRank(0),
                   .learning_rate = options.trainer.learning_rate,
                   .steps = {},
                   .reference = [world_size](std::span<const float> parameters,
                                             const Samples& samples) {
                     return LeNetReference(parameters, samples.images,
                                           samples.labels, world_size)
                         .gradient;
                   }};
  const MemoryDataset data = BlobDataset(options.dataset_size);
  // The options are in range, so the sampler exists.
  const std::unique_ptr<Sampler> sampler =
      CreateSampler(options.trainer, data.size(), 1, 0).value();
  for (const int64_t epoch : options.epochs) {
    sampler->SetEpoch(epoch);
    int64_t step = 0;
    for (Samples& batch : BatchesOf(data, sampler->Indices().value(),
                                    options.trainer.batch_size)) {
      want.steps.push_back({epoch, step++, std::move(batch)});
    }
  }
  want.unshuffled =
      BatchesOf(data, IdentityOf(data.size()), options.trainer.batch_size);
  return want;
}

absl::Status Train(Communicator& group, Model& model, const MemoryDataset& data,
                   const TrainerOptions& options, const Mutation& mutation,
                   std::span<const int64_t> epochs, const OnStep& on_step) {
  TrainerOptions changed = options;
  if (mutation.trainer) mutation.trainer(changed, group.world_size());
  const RankContext context = {group.rank(), group.world_size(), &changed,
                               data.size(), &model.parameters()};
  std::unique_ptr<Communicator> mutant_group;
  if (mutation.communicator) {
    mutant_group = mutation.communicator(group, context);
  }
  std::unique_ptr<Model> mutant_model;
  if (mutation.model) mutant_model = mutation.model(model, context);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Sampler> sampler,
      CreateSampler(changed, data.size(), group.world_size(), group.rank()));
  if (mutation.sampler) {
    sampler = mutation.sampler(std::move(sampler), context);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(mutant_group ? *mutant_group : group,
                      mutant_model ? *mutant_model : model, data, changed,
                      std::move(sampler)));
  for (const int64_t epoch : epochs) {
    LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(epoch, on_step).status());
  }
  return absl::OkStatus();
}

RankRunner RanksOf(Backend backend) {
  return [backend](int world_size, const RankFunction& fn) {
    return RunRanksCollect(backend, world_size, fn,
                           {.group = {.timeout = kGroupTimeout}});
  };
}

absl::StatusOr<std::vector<RankTrace>> RecordRanks(
    const RankRunner& run, int world_size,
    const std::function<absl::Status(Communicator&, RecordingModel&)>& train) {
  const auto ranks =
      run(world_size, [&](Communicator& group) -> absl::StatusOr<std::string> {
        SetComputeThreads(1);
        const std::unique_ptr<Model> lenet = *CreateModel("lenet", /*seed=*/0);
        std::ranges::copy(StartOfRank(group.rank()),
                          lenet->parameters().values().begin());
        RecordingModel recorder(*lenet);
        LOCKSTEP_RETURN_IF_ERROR(train(group, recorder));
        const RankTrace trace = recorder.Finish();
        RankBytesWriter writer;
        writer(trace.samples.size());
        PassTrace(writer, trace);
        return std::move(writer.bytes);
      });
  std::vector<RankTrace> traces;
  for (const absl::StatusOr<std::string>& rank : ranks) {
    if (!rank.ok()) {
      return absl::Status(rank.status().code(),
                          absl::StrCat("rank ", traces.size(), ": ",
                                       std::string(rank.status().message())));
    }
    RankBytesReader reader(*rank);
    RankTrace& trace = traces.emplace_back();
    size_t steps = 0;
    reader(steps);
    trace.samples.resize(std::min(steps, rank->size()));
    PassTrace(reader, trace);
    if (reader.too_short || !reader.rest.empty()) {
      return absl::DataLossError("a rank's trace has another length");
    }
  }
  return traces;
}

absl::StatusOr<std::vector<RankTrace>> RecordTraining(
    const RunOptions& options, const Mutation& mutation) {
  const MemoryDataset data = BlobDataset(options.dataset_size);
  return RecordRanks(options.run ? options.run : RanksOf(options.backend),
                     options.world_size,
                     [&](Communicator& group, RecordingModel& model) {
                       return Train(group, model, data, options.trainer,
                                    mutation, options.epochs, nullptr);
                     });
}

}  // namespace lockstep::conformance
