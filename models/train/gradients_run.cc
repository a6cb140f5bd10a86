// One step's gradients, from tensors to tensors.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/runs.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

constexpr char kImages[] = "images";
constexpr char kLabels[] = "labels";
constexpr char kLoss[] = "loss";

// The batch of all ranks.
struct GlobalBatch {
  std::vector<int64_t> shape;  // [n, c, h, w].
  std::vector<float> images;   // [n, h, w, c].
  std::vector<int32_t> labels;
  std::vector<int64_t> numbers;  // Of the samples: their places.

  int64_t size() const { return static_cast<int64_t>(labels.size()); }

  Batch Block(const Shard& shard) const {
    const int64_t image_size = static_cast<int64_t>(images.size()) / size();
    return {.images = std::span(images).subspan(shard.begin * image_size,
                                                shard.size() * image_size),
            .labels = std::span(labels).subspan(shard.begin, shard.size()),
            .samples = std::span(numbers).subspan(shard.begin, shard.size())};
  }
};

absl::Status Unfit(const std::string& file, absl::string_view tensor,
                   absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor '", tensor, "' ", what));
}

// The values of a tensor of the type; the caller looks at its shape.
template <typename T>
absl::StatusOr<std::vector<T>> ReadValues(const SafetensorsFile& file,
                                          const char* name) {
  const auto found = file.content.tensors.find(name);
  if (found == file.content.tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name, ": has no tensor '", name, "'"));
  }
  const NamedTensor& tensor = found->second;
  if (tensor.type != kDataTypeOf<T>) {
    return Unfit(
        file.name, name,
        absl::StrCat("is ", Name(tensor.type), ", not ", Name(kDataTypeOf<T>)));
  }
  return tensor.Values<T>();
}

absl::Status CheckShapes(const SafetensorsFile& file) {
  const std::vector<int64_t>& images = file.content.tensors.at(kImages).shape;
  const std::vector<int64_t>& labels = file.content.tensors.at(kLabels).shape;
  if (images.size() != 4) {
    return Unfit(file.name, kImages,
                 absl::StrCat("has the shape [", absl::StrJoin(images, ", "),
                              "], not [n, c, h, w]"));
  }
  if (labels != std::vector<int64_t>{images[0]}) {
    return Unfit(file.name, kLabels,
                 absl::StrCat("has the shape [", absl::StrJoin(labels, ", "),
                              "], not [", images[0], "] as the images"));
  }
  if (images[0] < 1) return Unfit(file.name, kImages, "holds no image");
  return absl::OkStatus();
}

// From [n, c, h, w] to [n, h, w, c].
std::vector<float> ToChannelsLast(const std::vector<float>& images,
                                  const std::vector<int64_t>& shape) {
  const int64_t c = shape[1];
  const int64_t pixels = shape[2] * shape[3];
  std::vector<float> out(images.size());
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t k = 0; k < c; ++k) {
      for (int64_t i = 0; i < pixels; ++i) {
        out[(n * pixels + i) * c + k] = images[(n * c + k) * pixels + i];
      }
    }
  }
  return out;
}

// The network for such images, with as many classes as the weights have in its
// last layer.
absl::StatusOr<Network> NetworkFor(const std::string& model,
                                   const SafetensorsFile& weights,
                                   const std::vector<int64_t>& images) {
  NetworkInput input = {
      .channels = images[1], .height = images[2], .width = images[3]};
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, CreateNetwork(model, input));
  const auto head =
      weights.content.tensors.find(network.parameters().back().name);
  if (head == weights.content.tensors.end() || head->second.shape.size() != 1 ||
      head->second.shape[0] < 1) {
    return network;  // LoadTensors says what is wrong.
  }
  input.classes = head->second.shape[0];
  return CreateNetwork(model, input);
}

// All but the labels, whose range is that of the network's classes.
absl::StatusOr<GlobalBatch> ReadImages(const SafetensorsFile& file) {
  GlobalBatch batch;
  LOCKSTEP_ASSIGN_OR_RETURN(batch.images, ReadValues<float>(file, kImages));
  LOCKSTEP_RETURN_IF_ERROR(ReadValues<int64_t>(file, kLabels).status());
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(file));
  batch.shape = file.content.tensors.at(kImages).shape;
  batch.images = ToChannelsLast(batch.images, batch.shape);
  batch.numbers.resize(batch.shape[0]);
  std::iota(batch.numbers.begin(), batch.numbers.end(), 0);
  return batch;
}

absl::Status ReadLabels(const SafetensorsFile& file, int64_t classes,
                        GlobalBatch& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> labels,
                            ReadValues<int64_t>(file, kLabels));
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= classes) {
      return Unfit(file.name, kLabels,
                   absl::StrCat("has ", labels[i], " at ", i,
                                ", which is not in [0, ", classes, ")"));
    }
    batch.labels.push_back(static_cast<int32_t>(labels[i]));
  }
  return absl::OkStatus();
}

// One rank's part; on rank 0 the result, elsewhere nothing.
absl::StatusOr<Safetensors> Step(Communicator& communicator,
                                 const GradientsOptions& options,
                                 const SafetensorsFile& weights,
                                 const Network& network,
                                 const GlobalBatch& batch) {
  SetComputeThreads(options.threads_per_rank);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                            CreateCpuReplica(network));
  LOCKSTEP_RETURN_IF_ERROR(LoadTensors(weights.content.tensors, weights.name,
                                       model->parameters(), model->buffers()));
  GradientReducer reducer(communicator, model->parameters());
  std::unique_ptr<Communicator> group;
  if (options.sync_bn) {
    LOCKSTEP_ASSIGN_OR_RETURN(group,
                              SynchroniseBatchNorm(communicator, *model));
  }
  const Shard shard =
      SplitBatch(batch.size(), communicator.world_size(), communicator.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(
      Metrics metrics,
      model->ForwardBackward(batch.Block(shard),
                             1.0f / static_cast<float>(batch.size()),
                             [&](int index) { reducer.MarkReady(index); }));
  LOCKSTEP_RETURN_IF_ERROR(reducer.Finish());
  LOCKSTEP_ASSIGN_OR_RETURN(metrics, AllReduceMetrics(communicator, metrics));
  Safetensors result;
  if (communicator.rank() != 0) return result;
  result.tensors = GradientTensors(model->parameters());
  result.tensors.merge(BufferTensors(model->buffers()));
  const auto loss = static_cast<float>(metrics.mean_loss());
  result.tensors[kLoss] = NamedTensor::Of({1}, std::span(&loss, 1));
  return result;
}

}  // namespace

absl::StatusOr<Safetensors> ComputeGradients(const GradientsOptions& options,
                                             const SafetensorsFile& weights,
                                             const SafetensorsFile& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(GlobalBatch global, ReadImages(batch));
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            NetworkFor(options.model, weights, global.shape));
  LOCKSTEP_RETURN_IF_ERROR(ReadLabels(batch, network.classes(), global));
  Safetensors result;
  LOCKSTEP_RETURN_IF_ERROR(RunOnThreads(
      options.world_size, options.group,
      [&](Communicator& communicator) -> absl::Status {
        // On a rank's thread, which no exception may leave.
        LOCKSTEP_ASSIGN_OR_RETURN(Safetensors mine, CatchBadAlloc([&] {
                                    return Step(communicator, options, weights,
                                                network, global);
                                  }));
        if (communicator.rank() == 0) result = std::move(mine);
        return absl::OkStatus();
      }));
  return result;
}

}  // namespace lockstep
