#include "benchmarks/step/worker.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "benchmarks/step/our_step.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/turn.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/cuda/precision.h"
#include "models/train/device.h"

namespace lockstep::benchmarks {
namespace {

class StepWorker {
 public:
  explicit StepWorker(ConvolutionAlgorithm convolution)
      : convolution_(convolution) {}

  absl::StatusOr<std::string> Answer(absl::string_view line) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 6));
    if (words[0] == "load" && words.size() == 7) {
      LOCKSTEP_RETURN_IF_ERROR(Load(words));
      return "loaded";
    }
    if (step_ == nullptr) {
      return absl::FailedPreconditionError("nothing was loaded");
    }
    if (words[0] == "first") return step_->First();
    if (words[0] == "memory") return step_->Memory();
    if (words[0] == "layers") return step_->Layers();
    if (words[0] == "chosen") return step_->Chosen();
    double seconds = 0;
    if (words[0] == "time" && words.size() == 2 &&
        absl::SimpleAtod(words[1], &seconds)) {
      return step_->Time(seconds);
    }
    return absl::InvalidArgumentError(absl::StrCat("no such line: ", line));
  }

 private:
  // words: "load", THREADS, TYPE, MODE, LAYOUT, DEVICE, FOLDER.
  absl::Status Load(const std::vector<std::string>& words) {
    int count = 0;
    if (!absl::SimpleAtoi(words[1], &count) || count < 1) {
      return absl::InvalidArgumentError(absl::StrCat(words[1], " threads"));
    }
    SetComputeThreads(count);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<ConvolutionPrecision> precisions,
        ParsePrecisions("load", words[2]));
    const std::string& folder = words[6];
    step_ = nullptr;  // The next step has the memory to itself.
    LOCKSTEP_ASSIGN_OR_RETURN(
        step_,
        words[5] == Name(ComputeDevice::kCuda)
            ? CreateGpuStep(folder, precisions[0], words[3] == "graph")
            : CreateCpuStep(folder, TypeOf(precisions[0]), convolution_));
    return absl::OkStatus();
  }

  const ConvolutionAlgorithm convolution_;
  std::unique_ptr<OurStep> step_;  // After "load".
};

}  // namespace

void ServeOurSteps(ConvolutionAlgorithm convolution) {
  StepWorker worker(convolution);
  ServeStepLines("ours",
                 [&](absl::string_view line) { return worker.Answer(line); });
}

}  // namespace lockstep::benchmarks
