#include "benchmarks/step/our_step.h"

#include <malloc.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/turn.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/cuda/precision.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "models/train/device.h"
#include "models/train/rank_steps.h"

namespace lockstep::benchmarks {
namespace {

constexpr float kLearningRate = 1e-4f;  // As in torch_peer.py.

// Returns a value of this process's memory from /proc/self/status, in bytes.
// Error: kUnavailable if the kernel does not report it.
absl::StatusOr<int64_t> ReadStatusBytes(const std::string& key) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string status,
                            ReadFile("/proc/self/status"));
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() == 3 && words[0] == key &&
        absl::SimpleAtoi(words[1], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return absl::UnavailableError(absl::StrCat("/proc/self/status has no ", key));
}

// The files of a case (WriteStepFiles).
struct LoadedCase {
  std::string folder = {};
  Network network;
  NamedTensors weights = {};  // And buffers.
  std::vector<float> images = {};
  std::vector<int32_t> labels = {};

  std::string path() const { return folder + kCaseFile; }
  Batch batch() const { return {.images = images, .labels = labels}; }
  int64_t samples() const { return static_cast<int64_t>(labels.size()); }
};

NamedTensor TakeTensor(Safetensors& file, const std::string& name) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end()) return {};
  NamedTensor tensor = std::move(found->second);
  file.tensors.erase(found);
  return tensor;
}

absl::StatusOr<LoadedCase> LoadCase(const std::string& folder) {
  const std::string path = folder + kCaseFile;
  LOCKSTEP_ASSIGN_OR_RETURN(Safetensors file, ReadSafetensors(path));
  const NamedTensor images = TakeTensor(file, "input.images");
  const NamedTensor labels = TakeTensor(file, "input.labels");
  NetworkInput input;
  if (images.shape.size() != 4 || labels.shape.empty() ||
      labels.shape[0] == 0 ||
      !absl::SimpleAtoi(file.metadata["classes"], &input.classes)) {
    return absl::DataLossError(absl::StrCat(path, ": no batch"));
  }
  input.height = images.shape[1];
  input.width = images.shape[2];
  input.channels = images.shape[3];
  LOCKSTEP_ASSIGN_OR_RETURN(Network network,
                            CreateNetwork(file.metadata["spec"], input));
  return LoadedCase{.folder = folder,
                    .network = std::move(network),
                    .weights = std::move(file.tensors),
                    .images = images.Values<float>(),
                    .labels = labels.Values<int32_t>()};
}

absl::Status WriteGradients(const std::string& folder,
                            const Parameters& parameters) {
  return WriteSafetensors(
      folder + kGradientsFile,
      {.metadata = {}, .tensors = GradientTensors(parameters)});
}

std::string LossText(double loss) {
  return absl::StrFormat("loss %.17g", loss);
}

class CpuStep : public OurStep {
 public:
  static absl::StatusOr<std::unique_ptr<OurStep>> Create(
      const std::string& folder, DataType type,
      ConvolutionAlgorithm convolution) {
    std::unique_ptr<CpuStep> step(new CpuStep);
    LOCKSTEP_ASSIGN_OR_RETURN(step->before_, ReadStatusBytes("RssAnon"));
    LOCKSTEP_ASSIGN_OR_RETURN(LoadedCase loaded, LoadCase(folder));
    LOCKSTEP_ASSIGN_OR_RETURN(
        step->model_,
        CreateCpuReplica(std::move(loaded.network),
                         {.type = type, .convolution = convolution}));
    LOCKSTEP_RETURN_IF_ERROR(LoadTensors(loaded.weights, loaded.path(),
                                         step->model_->parameters(),
                                         step->model_->buffers()));
    step->folder_ = folder;
    step->images_ = std::move(loaded.images);
    step->labels_ = std::move(loaded.labels);
    return step;
  }

  absl::StatusOr<std::string> First() override {
    LOCKSTEP_ASSIGN_OR_RETURN(const double loss, ForwardBackward());
    LOCKSTEP_RETURN_IF_ERROR(WriteGradients(folder_, model_->parameters()));
    Update();
    return LossText(loss);
  }

  // Returns the peak of resident memory that belongs to no file, without the
  // memory from before the load and without the weights. torch_peer.py measures
  // the same.
  absl::StatusOr<std::string> Memory() override {
    LOCKSTEP_RETURN_IF_ERROR(Step().status());
    malloc_trim(0);
    // Writing 5 resets the kernel's record of the peak.
    if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) {
      return absl::UnavailableError("/proc/self/clear_refs: cannot write");
    }
    for (int i = 0; i < 3; ++i) LOCKSTEP_RETURN_IF_ERROR(Step().status());
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t peak, ReadStatusBytes("VmHWM"));
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t of_files,
                              ReadStatusBytes("RssFile"));
    const auto weights =
        static_cast<int64_t>(model_->parameters().values().size_bytes() +
                             model_->buffers().floats().size_bytes() +
                             model_->buffers().counters().size_bytes());
    return absl::StrCat("memory ", peak - of_files - before_ - weights);
  }

  absl::StatusOr<std::string> Time(double seconds) override {
    std::string answer = "timed";
    const double start = SteadySeconds();
    for (double begin = start; begin - start < seconds || begin == start;) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double loss, Step());
      if (!std::isfinite(loss)) {
        return absl::DataLossError("the loss is not a number");
      }
      const double end = SteadySeconds();
      absl::StrAppendFormat(&answer, " %.9g", end - begin);
      begin = end;
    }
    return answer;
  }

  // Returns the seconds of each operation in one step: its forward, then its
  // backward.
  absl::StatusOr<std::string> Layers() override {
    OperationTimes times;
    model_->CollectTimes(&times);
    const absl::Status status = Step().status();
    model_->CollectTimes(nullptr);
    LOCKSTEP_RETURN_IF_ERROR(status);
    std::string answer = "layers";
    for (size_t i = 0; i < times.forward_seconds.size(); ++i) {
      absl::StrAppendFormat(&answer, " %.9g %.9g", times.forward_seconds[i],
                            times.backward_seconds[i]);
    }
    return answer;
  }

  absl::StatusOr<std::string> Chosen() override {
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::vector<std::string> operations,
        model_->Algorithms(static_cast<int64_t>(labels_.size())));
    return ChosenText({.layout = Name(model_->layout()),
                       .operations = std::move(operations)});
  }

 private:
  CpuStep() = default;

  absl::StatusOr<double> ForwardBackward() {
    const auto samples = static_cast<float>(labels_.size());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics metrics,
        model_->ForwardBackward({.images = images_, .labels = labels_},
                                1 / samples, [](int) {}));
    return metrics.mean_loss();
  }

  void Update() {
    SgdUpdate(model_->parameters().values(), model_->parameters().gradients(),
              kLearningRate);
  }

  absl::StatusOr<double> Step() {
    LOCKSTEP_ASSIGN_OR_RETURN(const double loss, ForwardBackward());
    Update();
    return loss;
  }

  std::string folder_;
  int64_t before_ = 0;  // The memory from before the load.
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  std::unique_ptr<CpuReplica> model_;
};

// Trains on the first GPU, with the steps of the trainer. A batch is copied to
// the GPU for every step, while the GPU computes the step before.
class GpuStep : public OurStep {
 public:
  static absl::StatusOr<std::unique_ptr<OurStep>> Create(
      const std::string& folder, ConvolutionPrecision precision,
      bool with_graphs) {
    LOCKSTEP_ASSIGN_OR_RETURN(LoadedCase loaded, LoadCase(folder));
    std::unique_ptr<GpuStep> step(
        new GpuStep(std::move(loaded), precision, with_graphs));
    LOCKSTEP_ASSIGN_OR_RETURN(step->group_, CreateThreadGroup(1));
    return step;
  }

  // The gradients are those of a model that copies them to the host. The loss
  // is that of the steps that are timed.
  absl::StatusOr<std::string> First() override {
    Parameters parameters = CreateParameters(case_.network);
    Buffers buffers = CreateBuffers(case_.network);
    LOCKSTEP_RETURN_IF_ERROR(
        LoadTensors(case_.weights, case_.path(), parameters, buffers));
    LOCKSTEP_RETURN_IF_ERROR(ComputeGradients());
    std::string shared;
    LOCKSTEP_ASSIGN_OR_RETURN(
        steps_,
        CreateGpuSteps(
            *group_[0], /*local_rank=*/0, case_.network,
            {.precision = precision_,
             .largest_shard = case_.samples(),
             .graph_samples = with_graphs_ ? GraphSamples(case_.samples(),
                                                          /*world_size=*/1)
                                           : 0},
            shared));
    LOCKSTEP_RETURN_IF_ERROR(steps_->Write(parameters, buffers));
    LOCKSTEP_RETURN_IF_ERROR(steps_->Begin());
    LOCKSTEP_ASSIGN_OR_RETURN(const StepResult result, Step(/*is_last=*/true));
    return LossText(result.metrics.mean_loss());
  }

  absl::StatusOr<std::string> Memory() override {
    return absl::UnimplementedError("the memory of a GPU is not measured");
  }

  // The host is at most two steps ahead of the GPU, so it ends in time.
  absl::StatusOr<std::string> Time(double seconds) override {
    if (steps_ == nullptr) {
      return absl::FailedPreconditionError("no first step");
    }
    const double start = SteadySeconds();
    StepResult result;
    size_t taken = 0;
    for (bool is_last = false; !is_last; ++taken) {
      is_last = taken > 0 && SteadySeconds() - start >= seconds;
      LOCKSTEP_ASSIGN_OR_RETURN(result, Step(is_last));
    }
    if (!std::isfinite(result.metrics.loss_sum)) {
      return absl::DataLossError("the loss is not a number");
    }
    if (result.gpu_steps.size() != taken) {
      return absl::InternalError(absl::StrCat(
          "the GPU timed ", result.gpu_steps.size(), " of ", taken, " steps"));
    }
    std::string answer = "timed";
    for (size_t i = 1; i < taken; ++i) {
      const StepTimes& times = result.gpu_steps[i];
      absl::StrAppendFormat(
          &answer, " %.9g",
          absl::ToDoubleSeconds(times.compute + times.exposed_communication +
                                times.data_wait));
    }
    return answer;
  }

  absl::StatusOr<std::string> Layers() override {
    return absl::UnimplementedError("the layers of a GPU are not timed");
  }

  absl::StatusOr<std::string> Chosen() override {
    return ChosenText({.layout = Name(Layout::kNhwc),
                       .operations = std::vector<std::string>(
                           case_.network.operations().size())});
  }

 private:
  GpuStep(LoadedCase loaded, ConvolutionPrecision precision, bool with_graphs)
      : case_(std::move(loaded)),
        precision_(precision),
        with_graphs_(with_graphs) {}

  // Writes the gradients of the first step.
  absl::Status ComputeGradients() {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                              CreateGpuModel(case_.network, /*seed=*/0,
                                             /*local_rank=*/0, precision_));
    LOCKSTEP_RETURN_IF_ERROR(LoadTensors(
        case_.weights, case_.path(), model->parameters(), model->buffers()));
    LOCKSTEP_RETURN_IF_ERROR(
        model
            ->ForwardBackward(case_.batch(),
                              1 / static_cast<float>(case_.samples()),
                              [](int) {})
            .status());
    return WriteGradients(case_.folder, model->parameters());
  }

  absl::StatusOr<StepResult> Step(bool is_last) {
    return steps_->Step(case_.batch(), case_.samples(), kLearningRate,
                        /*with_metrics=*/is_last);
  }

  const LoadedCase case_;
  const ConvolutionPrecision precision_;
  const bool with_graphs_;
  std::vector<std::unique_ptr<Communicator>> group_;  // One rank.
  std::unique_ptr<RankSteps> steps_;                  // After First.
};

}  // namespace

absl::StatusOr<std::unique_ptr<OurStep>> CreateCpuStep(
    const std::string& folder, DataType type,
    ConvolutionAlgorithm convolution) {
  return CpuStep::Create(folder, type, convolution);
}

absl::StatusOr<std::unique_ptr<OurStep>> CreateGpuStep(
    const std::string& folder, ConvolutionPrecision precision,
    bool with_graphs) {
  return GpuStep::Create(folder, precision, with_graphs);
}

}  // namespace lockstep::benchmarks
