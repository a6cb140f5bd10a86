#include "benchmarks/step/worker.h"

#include <malloc.h>

#include <cmath>
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
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/turn.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"

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

// Creates the model of a case, which computes in `type`.
absl::StatusOr<std::unique_ptr<CpuReplica>> CreateStepModel(
    const std::string& spec, const NetworkInput& input, const std::string& type,
    ConvolutionAlgorithm convolution) {
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, CreateNetwork(spec, input));
  return CreateCpuReplica(
      std::move(network),
      {.type = type == Name(DataType::kBFloat16) ? DataType::kBFloat16
                                                 : DataType::kFloat32,
       .convolution = convolution});
}

class StepWorker {
 public:
  explicit StepWorker(ConvolutionAlgorithm convolution)
      : convolution_(convolution) {}

  absl::StatusOr<std::string> Answer(absl::string_view line) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (words[0] == "load" && words.size() == 6) {
      LOCKSTEP_RETURN_IF_ERROR(Load(words[1], words[2], words[5]));
      return "loaded";
    }
    if (words[0] == "first") return First();
    if (words[0] == "memory") return Memory();
    if (words[0] == "time" && words.size() == 2) return Time(words[1]);
    if (words[0] == "layers") return Layers();
    if (words[0] == "chosen") return Chosen();
    return absl::InvalidArgumentError(absl::StrCat("no such line: ", line));
  }

 private:
  absl::Status Load(const std::string& threads, const std::string& type,
                    const std::string& folder) {
    int count = 0;
    if (!absl::SimpleAtoi(threads, &count) || count < 1) {
      return absl::InvalidArgumentError(absl::StrCat(threads, " threads"));
    }
    SetComputeThreads(count);
    LOCKSTEP_ASSIGN_OR_RETURN(before_, ReadStatusBytes("RssAnon"));
    folder_ = folder;
    const std::string path = folder + kCaseFile;
    LOCKSTEP_ASSIGN_OR_RETURN(Safetensors file, ReadSafetensors(path));
    const NamedTensor images = TakeTensor(file, "input.images");
    const NamedTensor labels = TakeTensor(file, "input.labels");
    images_ = images.Values<float>();
    labels_ = labels.Values<int32_t>();
    NetworkInput input;
    if (images.shape.size() != 4 || labels_.empty() ||
        !absl::SimpleAtoi(file.metadata["classes"], &input.classes)) {
      return absl::DataLossError(absl::StrCat(path, ": no batch"));
    }
    input.height = images.shape[1];
    input.width = images.shape[2];
    input.channels = images.shape[3];
    LOCKSTEP_ASSIGN_OR_RETURN(
        model_,
        CreateStepModel(file.metadata["spec"], input, type, convolution_));
    return LoadTensors(file.tensors, path, model_->parameters(),
                       model_->buffers());
  }

  static NamedTensor TakeTensor(Safetensors& file, const std::string& name) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) return {};
    NamedTensor tensor = std::move(found->second);
    file.tensors.erase(found);
    return tensor;
  }

  Batch batch() const { return {.images = images_, .labels = labels_}; }

  absl::StatusOr<double> ForwardBackward() {
    if (model_ == nullptr) {
      return absl::FailedPreconditionError("nothing was loaded");
    }
    const auto samples = static_cast<float>(labels_.size());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics metrics,
        model_->ForwardBackward(batch(), 1 / samples, [](int) {}));
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

  absl::StatusOr<std::string> First() {
    LOCKSTEP_ASSIGN_OR_RETURN(const double loss, ForwardBackward());
    LOCKSTEP_RETURN_IF_ERROR(WriteSafetensors(
        folder_ + kGradientsFile,
        {.metadata = {}, .tensors = GradientTensors(model_->parameters())}));
    Update();
    return absl::StrFormat("loss %.17g", loss);
  }

  // Returns the peak of resident memory that belongs to no file, without the
  // memory from before the load and without the weights. torch_peer.py measures
  // the same.
  absl::StatusOr<std::string> Memory() {
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

  absl::StatusOr<std::string> Time(const std::string& text) {
    double seconds = 0;
    if (!absl::SimpleAtod(text, &seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("seconds: ", text));
    }
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
  absl::StatusOr<std::string> Layers() {
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

  absl::StatusOr<std::string> Chosen() {
    if (model_ == nullptr) {
      return absl::FailedPreconditionError("nothing was loaded");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::vector<std::string> operations,
        model_->Algorithms(static_cast<int64_t>(labels_.size())));
    return ChosenText({.layout = Name(model_->layout()),
                       .operations = std::move(operations)});
  }

  const ConvolutionAlgorithm convolution_;
  int64_t before_ = 0;
  std::string folder_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  std::unique_ptr<CpuReplica> model_;
};

}  // namespace

void ServeOurSteps(ConvolutionAlgorithm convolution) {
  StepWorker worker(convolution);
  ServeStepLines("ours",
                 [&](absl::string_view line) { return worker.Answer(line); });
}

}  // namespace lockstep::benchmarks
