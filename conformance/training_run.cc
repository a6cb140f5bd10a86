#include "conformance/training_run.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/reference/lenet_fixtures.h"
#include "conformance/reference/lenet_reference.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(120);

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

// The samples of an epoch of that order, cut into batches.
std::vector<Samples> BatchesOf(const Dataset& data,
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

// One rank's training; returns its serialised trace.
absl::StatusOr<std::string> TrainRank(Communicator& group,
                                      const RunOptions& options,
                                      const Mutation& mutation) {
  SetComputeThreads(1);
  const Dataset data = BlobDataset(options.dataset_size);
  const std::unique_ptr<Model> lenet = CreateLeNet(/*seed=*/0);
  const std::vector<float> start = StartOfRank(group.rank());
  std::copy(start.begin(), start.end(), lenet->parameters().values().begin());
  RecordingModel recorder(*lenet);
  LOCKSTEP_RETURN_IF_ERROR(Train(group, recorder, data, options.trainer,
                                 mutation, options.epochs, nullptr));
  return SerializeTrace(recorder.Finish());
}

// Traces as bytes: for each array its element count, then its elements.
void Append(int64_t value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void Append(const std::vector<T>& values, std::string& out) {
  Append(static_cast<int64_t>(values.size()), out);
  out.append(reinterpret_cast<const char*>(values.data()),
             values.size() * sizeof(T));
}

absl::Status TooShort() {
  return absl::DataLossError("a rank's trace ends too early");
}

absl::StatusOr<int64_t> TakeCount(absl::string_view& rest) {
  int64_t count = 0;
  if (rest.size() < sizeof(count)) return TooShort();
  std::memcpy(&count, rest.data(), sizeof(count));
  rest.remove_prefix(sizeof(count));
  if (count < 0 || static_cast<uint64_t>(count) > rest.size()) {
    return TooShort();
  }
  return count;
}

template <typename T>
absl::Status TakeArray(absl::string_view& rest, std::vector<T>& out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, TakeCount(rest));
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  if (rest.size() < bytes) return TooShort();
  out.resize(count);
  if (count > 0) std::memcpy(out.data(), rest.data(), bytes);
  rest.remove_prefix(bytes);
  return absl::OkStatus();
}

absl::Status TakeArrays(absl::string_view& rest,
                        std::vector<std::vector<float>>& out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, TakeCount(rest));
  out.resize(count);
  for (std::vector<float>& array : out) {
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(rest, array));
  }
  return absl::OkStatus();
}

uint64_t Digest(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

void AppendDigests(const NamedTensors& tensors, std::string& out) {
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&out, name, " ", absl::Hex(Digest(tensor.data)), "\n");
  }
}

}  // namespace

std::string SerializeTrace(const RankTrace& trace) {
  std::string out;
  Append(static_cast<int64_t>(trace.parameters.size()), out);
  for (const std::vector<float>& array : trace.parameters) Append(array, out);
  Append(static_cast<int64_t>(trace.gradients.size()), out);
  for (const std::vector<float>& array : trace.gradients) Append(array, out);
  Append(static_cast<int64_t>(trace.samples.size()), out);
  for (const Samples& samples : trace.samples) {
    Append(samples.images, out);
    Append(samples.labels, out);
  }
  return out;
}

absl::StatusOr<RankTrace> ParseTrace(absl::string_view bytes) {
  RankTrace trace;
  LOCKSTEP_RETURN_IF_ERROR(TakeArrays(bytes, trace.parameters));
  LOCKSTEP_RETURN_IF_ERROR(TakeArrays(bytes, trace.gradients));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t steps, TakeCount(bytes));
  trace.samples.resize(steps);
  for (Samples& samples : trace.samples) {
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(bytes, samples.images));
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(bytes, samples.labels));
  }
  if (!bytes.empty()) {
    return absl::DataLossError("a rank's trace goes on after its end");
  }
  return trace;
}

absl::StatusOr<std::vector<RankTrace>> ParseTraces(
    std::span<const absl::StatusOr<std::string>> ranks) {
  std::vector<RankTrace> traces;
  for (const absl::StatusOr<std::string>& rank : ranks) {
    if (!rank.ok()) {
      return absl::Status(rank.status().code(),
                          absl::StrCat("rank ", traces.size(), ": ",
                                       std::string(rank.status().message())));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(traces.emplace_back(), ParseTrace(*rank));
  }
  return traces;
}

Samples GatherSamples(const Dataset& data, std::span<const int64_t> indices) {
  Samples samples;
  samples.images.resize(indices.size() * data.image_size());
  samples.labels.resize(indices.size());
  data.GatherImages(indices, samples.images);
  data.GatherLabels(indices, samples.labels);
  return samples;
}

std::vector<ParameterSpec> LeNetSpecs() {
  return CreateLeNet(/*seed=*/0)->parameters().specs();
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
  const Dataset data = BlobDataset(options.dataset_size);
  // The options are in range: a sampler there is.
  const std::unique_ptr<Sampler> sampler =
      CreateSampler(options.trainer, data.size, 1, 0).value();
  for (const int64_t epoch : options.epochs) {
    sampler->SetEpoch(epoch);
    int64_t step = 0;
    for (Samples& batch : BatchesOf(data, sampler->Indices().value(),
                                    options.trainer.batch_size)) {
      want.steps.push_back({epoch, step++, std::move(batch)});
    }
  }
  std::vector<int64_t> in_order(data.size);
  std::iota(in_order.begin(), in_order.end(), 0);
  want.unshuffled = BatchesOf(data, in_order, options.trainer.batch_size);
  return want;
}

absl::Status Train(Communicator& group, Model& model, const Dataset& data,
                   const TrainerOptions& options, const Mutation& mutation,
                   std::span<const int64_t> epochs, const OnStep& on_step) {
  TrainerOptions changed = options;
  if (mutation.trainer) mutation.trainer(changed, group.world_size());
  const RankContext context = {group.rank(), group.world_size(), &changed,
                               data.size, model.parameters().gradients()};
  std::unique_ptr<Communicator> mutant_group;
  if (mutation.communicator) {
    mutant_group = mutation.communicator(group, context);
  }
  std::unique_ptr<Model> mutant_model;
  if (mutation.model) mutant_model = mutation.model(model, context);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Sampler> sampler,
      CreateSampler(changed, data.size, group.world_size(), group.rank()));
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

absl::StatusOr<std::vector<RankTrace>> RunTraining(const RunOptions& options,
                                                   const Mutation& mutation) {
  return ParseTraces(RunRanksCollect(
      options.backend, options.world_size,
      [&](Communicator& group) { return TrainRank(group, options, mutation); },
      {.group = {.timeout = kDeadline}, .deadline = kDeadline}));
}

absl::StatusOr<std::string> TrainedBits(Communicator& group,
                                        const BitsRun& run) {
  SetComputeThreads(1);
  const Dataset data = BlobDataset(run.steps * run.batch_size);
  // Another draw on each rank: the trainer gives all rank 0's.
  const uint64_t seed = 1 + static_cast<uint64_t>(group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                            CreateModel(run.model, seed));
  if (run.model == "resnet18") {
    model = CreateResNet18(seed, /*image_size=*/28, run.width);
  }
  TrainerOptions options;
  options.batch_size = run.batch_size;
  options.learning_rate = run.learning_rate;
  options.bucket_bytes = run.bucket_bytes;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, *model, data, options));
  std::unique_ptr<Communicator> batch_norm_group;
  if (model->buffers().count() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(batch_norm_group,
                              SynchroniseBatchNorm(group, *model));
  }
  std::string bits;
  const auto on_step = [&](const StepReport& report) {
    const auto loss = std::bit_cast<uint64_t>(report.shard_metrics.loss_sum);
    absl::StrAppend(&bits, "step ", report.step, " loss ", absl::Hex(loss),
                    "\n");
    return true;
  };
  LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, on_step).status());
  AppendDigests(ValueTensors(model->parameters()), bits);
  AppendDigests(BufferTensors(model->buffers()), bits);
  return bits;
}

}  // namespace lockstep
