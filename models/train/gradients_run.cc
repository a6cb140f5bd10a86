#include "models/train/gradients_run.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/catch_bad_alloc.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/network_reference.h"
#include "models/train/data_parallel.h"
#include "models/train/device.h"
#include "sampler/shard.h"
#include "syncbn/batch_norm_kernels.h"

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
  std::vector<int64_t> numbers;  // The samples' positions in the batch.

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

// Returns the values of a tensor of that type. The caller checks the shape.
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
  if (images[1] < 1 || images[2] < 1 || images[3] < 1) {
    return Unfit(file.name, kImages,
                 absl::StrCat("has the shape [", absl::StrJoin(images, ", "),
                              "]: images without values"));
  }
  return absl::OkStatus();
}

// Converts [n, c, h, w] to [n, h, w, c].
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

// Checks that a size given by a flag equals that of a file. 0: no flag.
absl::Status CheckSize(absl::string_view flag, int64_t expected, int64_t size,
                       const std::string& file, absl::string_view what) {
  if (expected == 0 || expected == size) return absl::OkStatus();
  return FlagError(flag, expected,
                   absl::StrCat(file, " has ", size, " ", what));
}

// Checks the height and width of images in the same way.
absl::Status CheckImageSize(const GradientsOptions& options,
                            const SafetensorsFile& batch,
                            const std::vector<int64_t>& images) {
  if (options.image_height == 0 ||
      (options.image_height == images[2] && options.image_width == images[3])) {
    return absl::OkStatus();
  }
  return FlagError(
      "image_size",
      absl::StrCat(options.image_height, "x", options.image_width),
      absl::StrCat(batch.name, " has images of ", images[2], "x", images[3]));
}

// Returns the network for the batch's images, with as many classes as the
// weights of its last layer have.
absl::StatusOr<Network> NetworkFor(const GradientsOptions& options,
                                   const SafetensorsFile& weights,
                                   const SafetensorsFile& batch) {
  const std::vector<int64_t>& images = batch.content.tensors.at(kImages).shape;
  NetworkInput input = {
      .channels = images[1], .height = images[2], .width = images[3]};
  LOCKSTEP_RETURN_IF_ERROR(CheckSize("in_channels", options.in_channels,
                                     images[1], batch.name, "channels"));
  LOCKSTEP_RETURN_IF_ERROR(CheckImageSize(options, batch, images));
  const auto create = [&]() -> absl::StatusOr<Network> {
    absl::StatusOr<Network> network = CreateNetwork(options.model, input);
    if (network.ok()) return network;
    return FlagError("model", options.model, network.status().message());
  };
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, create());
  const auto head =
      weights.content.tensors.find(network.parameters().back().name);
  if (head == weights.content.tensors.end() || head->second.shape.size() != 1 ||
      head->second.shape[0] < 1) {
    return network;  // LoadTensors reports the error.
  }
  input.classes = head->second.shape[0];
  LOCKSTEP_RETURN_IF_ERROR(CheckSize("num_classes", options.num_classes,
                                     input.classes, weights.name, "classes"));
  return create();
}

// Reads the whole batch except the labels, whose range depends on the network's
// classes.
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

absl::StatusOr<std::unique_ptr<Model>> CreateRanksModel(
    const GradientsOptions& options, const Network& network, int rank) {
  if (options.device == ComputeDevice::kCuda) {
    return CreateGpuModel(network, /*seed=*/0, /*local_rank=*/rank);
  }
  SetComputeThreads(options.threads_per_rank);
  return CreateCpuReplica(network, {.convolution = options.convolution});
}

// Computes one rank's part in float32. Returns the result on rank 0, nothing on
// other ranks.
absl::StatusOr<Safetensors> Float32Step(Communicator& communicator,
                                        const GradientsOptions& options,
                                        const SafetensorsFile& weights,
                                        const Network& network,
                                        const GlobalBatch& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      CreateRanksModel(options, network, communicator.rank()));
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

// Returns a tensor of floats as float64; any other tensor unchanged.
NamedTensor ToFloat64(const NamedTensor& tensor) {
  if (tensor.type != DataType::kFloat32) return tensor;
  const std::vector<float> values = tensor.Values<float>();
  const std::vector<double> wide(values.begin(), values.end());
  return NamedTensor::Of(tensor.shape, std::span(wide));
}

NamedTensor ToFloat32(const NamedTensor& tensor) {
  if (tensor.type != DataType::kFloat64) return tensor;
  const std::vector<double> values = tensor.Values<double>();
  const std::vector<float> narrow(values.begin(), values.end());
  return NamedTensor::Of(tensor.shape, std::span(narrow));
}

// Parameters, and the buffers after a step, in the reference's form: flat, in
// the order of the network.
struct Float64Tensors {
  std::vector<double> parameters;
  std::vector<double> running;
  std::vector<int64_t> counters;
};

absl::StatusOr<Float64Tensors> ReadFloat64(const SafetensorsFile& weights,
                                           const Network& network) {
  NamedTensors narrow;
  for (const auto& [name, tensor] : weights.content.tensors) {
    narrow[name] = ToFloat32(tensor);
  }
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  LOCKSTEP_RETURN_IF_ERROR(
      LoadTensors(narrow, weights.name, parameters, buffers));
  Float64Tensors read;
  const auto append = [&](const std::string& name, std::vector<double>& to) {
    const std::vector<double> values =
        ToFloat64(weights.content.tensors.at(name)).Values<double>();
    to.insert(to.end(), values.begin(), values.end());
  };
  for (const ParameterSpec& spec : parameters.specs()) {
    append(spec.name, read.parameters);
  }
  for (const BufferSpec& spec : buffers.specs()) {
    if (spec.type == DataType::kFloat32) append(spec.name, read.running);
  }
  read.counters.assign(buffers.counters().begin(), buffers.counters().end());
  return read;
}

// Returns an error for a batch norm of one value per channel, as the CPU's
// model does. images: the number of images over which batch norm takes its
// statistics.
absl::Status CheckBatchNormSizes(const Network& network, int64_t images) {
  for (const Network::Operation& operation : network.operations()) {
    if (!std::holds_alternative<BatchNormOp>(operation.kind)) continue;
    if (images * operation.output.h * operation.output.w == 1) {
      return OneValueError();
    }
  }
  return absl::OkStatus();
}

// Returns the result's tensors, under the names of the network.
NamedTensors Float64Result(const Network& network,
                           const std::vector<double>& gradient,
                           const std::vector<double>& running,
                           const std::vector<int64_t>& counters) {
  NamedTensors tensors;
  std::span<const double> rest(gradient);
  const auto take = [&](const TensorDescription& tensor) {
    tensors[tensor.name] =
        NamedTensor::Of(tensor.shape, rest.first(tensor.size()));
    rest = rest.subspan(tensor.size());
  };
  for (const TensorDescription& parameter : network.parameters()) {
    take(parameter);
  }
  rest = running;
  size_t counter = 0;
  for (const TensorDescription& buffer : network.buffers()) {
    if (buffer.counter) {
      const int64_t batches = counters[counter++] + 1;
      tensors[buffer.name] = NamedTensor::Of({}, std::span(&batches, 1));
    } else {
      take(buffer);
    }
  }
  return tensors;
}

// Computes one rank's part in float64, in the reference's plain loops. Returns
// the result on rank 0, nothing on other ranks. Masks are those of the float32
// step.
absl::StatusOr<Safetensors> Float64Step(Communicator& communicator,
                                        const GradientsOptions& options,
                                        const Float64Tensors& weights,
                                        const Network& network,
                                        const GlobalBatch& batch) {
  const Shard shard =
      SplitBatch(batch.size(), communicator.world_size(), communicator.rank());
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormSizes(
      network, options.sync_bn ? batch.size() : shard.size()));
  absl::Status status;
  const auto sum = [&](std::span<double> values) {
    if (status.ok()) status = communicator.AllReduce(values);
  };
  const Batch block = batch.Block(shard);
  const NetworkReference<double> pass(
      network, weights.parameters, weights.running, block, /*training=*/true,
      MasksOf(block.seed, block.step), /*world_size=*/1,
      options.sync_bn ? SumOverRanks<double>(sum) : nullptr);
  std::vector<double> gradient =
      pass.Gradient(1 / static_cast<double>(batch.size()));
  sum(gradient);
  double loss = pass.loss_sum;
  sum(std::span(&loss, 1));
  LOCKSTEP_RETURN_IF_ERROR(status);
  Safetensors result;
  if (communicator.rank() != 0) return result;
  result.tensors =
      Float64Result(network, gradient, pass.running, weights.counters);
  loss /= static_cast<double>(batch.size());
  result.tensors[kLoss] =
      NamedTensor::Of({1}, std::span<const double>(&loss, 1));
  return result;
}

}  // namespace

absl::StatusOr<Safetensors> ComputeGradients(const GradientsOptions& options,
                                             const SafetensorsFile& weights,
                                             const SafetensorsFile& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(GlobalBatch global, ReadImages(batch));
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            NetworkFor(options, weights, batch));
  LOCKSTEP_RETURN_IF_ERROR(ReadLabels(batch, network.classes(), global));
  const bool wide = options.dtype == DataType::kFloat64;
  Float64Tensors exact;
  if (wide) {
    LOCKSTEP_ASSIGN_OR_RETURN(exact, ReadFloat64(weights, network));
  }
  Safetensors result;
  LOCKSTEP_RETURN_IF_ERROR(
      RunOnThreads(options.world_size, options.group,
                   [&](Communicator& communicator) -> absl::Status {
                     // No exception may leave a rank's thread, which runs
                     // this code.
                     LOCKSTEP_ASSIGN_OR_RETURN(
                         Safetensors mine, CatchBadAlloc([&] {
                           return wide ? Float64Step(communicator, options,
                                                     exact, network, global)
                                       : Float32Step(communicator, options,
                                                     weights, network, global);
                         }));
                     if (communicator.rank() == 0) result = std::move(mine);
                     return absl::OkStatus();
                   }));
  return result;
}

}  // namespace lockstep
