// Runs the trainer of //models:train as //conformance:check starts it: one
// rank, on the case that PROTOCOL.md describes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/host/host_group.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/shard.h"

namespace lockstep::conformance {
namespace {

std::string KeyOf(std::span<const float> image, int32_t label) {
  const auto bytes = std::as_bytes(image);
  std::string key(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  key.append(reinterpret_cast<const char*>(&label), sizeof(label));
  return key;
}

// Finds a sample's position by its pixels and label. If a data set has equal
// samples, the first one is found.
class SampleFinder {
 public:
  explicit SampleFinder(const MemoryDataset& data)
      : image_size_(data.image_size()) {
    std::vector<float> image(data.image_size());
    for (int64_t i = 0; i < data.size(); ++i) {
      data.GatherImages(std::span(&i, 1), image);
      positions_.emplace(KeyOf(image, data.label(i)), i);
    }
  }

  // Returns the positions of a batch's samples. Errors: kInternal if a sample
  // is not in the data set.
  absl::StatusOr<std::vector<int64_t>> Find(const Batch& batch) const {
    std::vector<int64_t> positions;
    for (size_t i = 0; i < batch.labels.size(); ++i) {
      const auto found = positions_.find(KeyOf(
          batch.images.subspan(i * image_size_, image_size_), batch.labels[i]));
      if (found == positions_.end()) {
        return absl::InternalError("a sample is none of the data set's");
      }
      positions.push_back(found->second);
    }
    return positions;
  }

 private:
  const int64_t image_size_;
  // Maps the bits of the pixels and the label to the position.
  std::map<std::string, int64_t> positions_;
};

// Forwards every call to `model`, which it owns. Records the samples that each
// call of ForwardBackward and Evaluate computes with. The report therefore
// shows the samples that the trainer used, not those that it meant to use.
// Errors: the model's; SampleFinder's.
class ObservedModel : public Model {
 public:
  ObservedModel(std::unique_ptr<Model> model, const MemoryDataset& train,
                const MemoryDataset& test)
      : model_(std::move(model)), train_(train), test_(test) {}

  Parameters& parameters() override { return model_->parameters(); }
  Buffers& buffers() override { return model_->buffers(); }
  const Shape& input_shape() const override { return model_->input_shape(); }
  int64_t classes() const override { return model_->classes(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return model_->ConvertSyncBatchNorm(group);
  }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    LOCKSTEP_ASSIGN_OR_RETURN(trained, train_.Find(batch));
    return model_->ForwardBackward(batch, gradient_scale, ready);
  }
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> positions,
                              test_.Find(batch));
    evaluated.insert(evaluated.end(), positions.begin(), positions.end());
    return model_->Evaluate(batch);
  }

  // The samples of the last ForwardBackward, and of all calls of Evaluate.
  std::vector<int64_t> trained, evaluated;

 private:
  const std::unique_ptr<Model> model_;
  const SampleFinder train_, test_;
};

// Returns why the trainer cannot run the case; "" if it can.
std::string WhyUnsupported(const Case& c) {
  if (c.momentum != 0) return "the trainer's SGD has no momentum";
  if (c.weight_decay != 0) return "the trainer's SGD has no weight decay";
  if (c.accumulate != 1) return "the trainer does not accumulate gradients";
  if (c.resume || c.stop_after != 0) {
    return "the trainer's checkpoints are those of whole epochs";
  }
  if (!c.unused.empty() || !c.frozen.empty()) {
    return "the trainer's models use and train all their parameters";
  }
  if (c.dtype != "float32") return "the trainer computes in float32";
  const int64_t batch = c.global_batch();
  for (int rank = 0; rank < c.world_size(); ++rank) {
    if (SplitBatch(batch, c.world_size(), rank).size() != c.batch_sizes[rank]) {
      return "the trainer deals batches in equal shares, the last ones smaller";
    }
  }
  return "";
}

// Reads a part of the data. The float32 images become bytes (times 255), from
// which Dataset computes the same floats.
absl::StatusOr<MemoryDataset> ReadDataset(const Safetensors& data,
                                          const std::string& part) {
  const auto images = data.tensors.find(part + ".images");
  const auto labels = data.tensors.find(part + ".labels");
  if (images == data.tensors.end() || labels == data.tensors.end() ||
      images->second.type != DataType::kFloat32 ||
      images->second.shape.size() != 4 ||
      labels->second.type != DataType::kInt64 ||
      labels->second.shape.size() != 1 ||
      labels->second.shape[0] != images->second.shape[0]) {
    return absl::DataLossError(absl::StrCat(
        "data.safetensors: ", part, ".images must be float32 [n, c, h, w] and ",
        part, ".labels int64 [n]"));
  }
  const std::vector<int64_t>& shape = images->second.shape;
  if (shape[1] != 1) {
    return absl::DataLossError(absl::StrCat("data.safetensors: ", part,
                                            ".images has ", shape[1],
                                            " channels, not one"));
  }
  constexpr int kClasses = 10;
  std::vector<uint8_t> bytes, classes;
  for (const float value : images->second.Values<float>()) {
    const float byte = std::round(value * 255);
    if (!(byte >= 0 && byte <= 255) || byte / 255.0f != value) {
      return absl::DataLossError(
          absl::StrCat("data.safetensors: ", part, ".images has ", value,
                       ", which is not k / 255 for a byte k"));
    }
    bytes.push_back(static_cast<uint8_t>(byte));
  }
  for (const int64_t label : labels->second.Values<int64_t>()) {
    if (label < 0 || label >= kClasses) {
      return absl::DataLossError(
          absl::StrCat("data.safetensors: ", part, ".labels has ", label));
    }
    classes.push_back(static_cast<uint8_t>(label));
  }
  return MemoryDataset({shape[2], shape[3], 1}, kClasses, std::move(bytes),
                       std::move(classes));
}

void Append(const std::string& prefix, NamedTensors tensors,
            NamedTensors& out) {
  for (auto& [name, tensor] : tensors) {
    out.emplace(prefix + name, std::move(tensor));
  }
}

// Records the results of a step that the case asks for. step: from 1.
void Record(const Case& c, ObservedModel& model, int64_t step,
            const StepReport& report, RankOutput& output) {
  StepOutput& recorded = output.steps.emplace_back();
  recorded.epoch = report.epoch;
  recorded.indices = model.trained;
  const Metrics& metrics = report.shard_metrics;
  if (metrics.samples > 0) {
    recorded.loss = metrics.loss_sum / static_cast<double>(metrics.samples);
  }
  if (std::ranges::count(c.write_gradients, step) > 0) {
    Append(absl::StrCat("gradient.", step, "/"),
           GradientTensors(model.parameters()), output.tensors);
  }
  if (std::ranges::count(c.write_state, step) > 0) {
    Append(absl::StrCat("parameter.", step, "/"),
           ValueTensors(model.parameters()), output.tensors);
    Append(absl::StrCat("buffer.", step, "/"), BufferTensors(model.buffers()),
           output.tensors);
  }
}

absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
    Communicator& group, ObservedModel& model, const Case& c,
    const MemoryDataset& train) {
  TrainerOptions options;
  options.batch_size = c.global_batch();
  options.learning_rate = static_cast<float>(c.learning_rate);
  options.seed = static_cast<uint64_t>(c.seed);
  options.sharding = Sharding::kContiguous;
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler order,
      DistributedSampler::Create({.dataset_size = train.size(),
                                  .shuffle = c.shuffle,
                                  .seed = c.seed}));
  return Trainer::Create(
      group, model, train, options,
      std::make_unique<DistributedSampler>(std::move(order)));
}

absl::Status Evaluate(Trainer& trainer, const MemoryDataset& test,
                      const ObservedModel& model, RankOutput& output) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, trainer.Evaluate(test));
  const auto count = static_cast<double>(metrics.samples);
  output.evaluation = {.indices = model.evaluated,
                       .loss = metrics.loss_sum / count,
                       .accuracy = static_cast<double>(metrics.correct) / count,
                       .count = metrics.samples};
  return absl::OkStatus();
}

absl::Status TrainCase(Communicator& group, const CaseFolder& folder,
                       RankOutput& output) {
  SetComputeThreads(1);
  const Case& c = folder.c;
  LOCKSTEP_ASSIGN_OR_RETURN(const MemoryDataset train,
                            ReadDataset(folder.files.data, "train"));
  LOCKSTEP_ASSIGN_OR_RETURN(const MemoryDataset test,
                            ReadDataset(folder.files.data, "test"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Model> plain,
                            CreateModel(c.model, /*seed=*/0));
  ObservedModel model(std::move(plain), train, test);
  LOCKSTEP_RETURN_IF_ERROR(LoadTensors(folder.files.weights.tensors,
                                       "weights.safetensors",
                                       model.parameters(), model.buffers()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            CreateTrainer(group, model, c, train));
  std::unique_ptr<Communicator> batch_norm_group;  // Destroyed before the
                                                   // trainer.
  if (c.batch_norm == "sync") {
    LOCKSTEP_ASSIGN_OR_RETURN(batch_norm_group,
                              SynchroniseBatchNorm(group, model));
  }
  int64_t step = 0;
  for (int64_t epoch = 0; epoch < c.epochs; ++epoch) {
    LOCKSTEP_RETURN_IF_ERROR(trainer
                                 ->TrainEpoch(epoch,
                                              [&](const StepReport& report) {
                                                Record(c, model, ++step, report,
                                                       output);
                                                return true;
                                              })
                                 .status());
  }
  if (!c.evaluate) return absl::OkStatus();
  return Evaluate(*trainer, test, model, output);
}

absl::StatusOr<std::unique_ptr<Communicator>> Join() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (environment.has_value()) return JoinLaunchedGroup(*environment);
  LOCKSTEP_ASSIGN_OR_RETURN(auto alone, CreateThreadGroup(1));
  return std::move(alone[0]);
}

absl::Status Run() {
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseEnvironment environment,
                            ReadCaseEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseFolder folder,
                            ReadCaseFolder(environment.case_folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, Join());
  RankOutput output = {.rank = group->rank(),
                       .world_size = group->world_size(),
                       .software = "Lockstep"};
  const std::string why = WhyUnsupported(folder.c);
  if (!why.empty()) {
    output.unsupported = why;
  } else {
    LOCKSTEP_RETURN_IF_ERROR(TrainCase(*group, folder, output));
  }
  return WriteRankOutput(environment.output_folder, output);
}

}  // namespace
}  // namespace lockstep::conformance

int main() {
  const absl::Status status = lockstep::conformance::Run();
  if (status.ok()) return 0;
  const std::string line =
      absl::StrCat("lockstep_trainer: ", status.message(), "\n");
  std::fputs(line.c_str(), stderr);
  return 1;
}
