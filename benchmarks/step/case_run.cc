#include "benchmarks/step/case_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/torch_peer_py.h"
#include "benchmarks/step/turn.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/device.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kSystemPython[] = "/usr/bin/python3";
constexpr double kTurnSeconds = 0.25;
constexpr double kPeakSeconds = 0.05;

// A program whose step is measured, and its options.
struct Subject {
  std::string name;  // Replaced by PyTorch's version, if it is one.
  bool newest = false;
  std::vector<std::string> pythons = {};  // Empty: this program.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;  // Ours.
  std::string mode = "eager", layout = "nhwc";
};

std::vector<Subject> SubjectsOf(const StepSettings& settings) {
  std::vector<Subject> subjects;
  const bool on_gpu = settings.device == ComputeDevice::kCuda;
  for (const ConvolutionAlgorithm convolution : settings.convolutions) {
    subjects.push_back({.name = OursName(convolution),
                        .convolution = convolution,
                        .mode = on_gpu ? "graph" : "eager"});
  }
  if (on_gpu) subjects.push_back({.name = "ours, eager"});
  const auto add = [&](const char* peer, bool wanted, bool newest,
                       const std::vector<std::string>& where,
                       const char* mode) {
    for (const char* const layout : {"nchw", "nhwc"}) {
      if (!wanted) continue;
      if (on_gpu && absl::string_view(layout) == "nchw") continue;
      subjects.push_back({.name = absl::StrCat(peer, " ", layout),
                          .newest = newest,
                          .pythons = where,
                          .mode = mode,
                          .layout = layout});
    }
  };
  add("eager", settings.eager, true, settings.pythons, "eager");
  add("compile", settings.compile, true, settings.pythons, "compile");
  add("graph", settings.graph, true, settings.pythons, "graph");
  add("system", settings.system, false, {kSystemPython}, "eager");
  return subjects;
}

// The measurement of one network's step with all subjects.
class CaseRun {
 public:
  CaseRun(StepReport& report, Network network, const StepCase& one,
          TemporaryFolder folder)
      : report_(report),
        network_(std::move(network)),
        folder_(std::move(folder)),
        result_{.one = one,
                .flops = StepFlops(network_, one.batch),
                .tolerance = ToleranceOf(network_, one)} {}

  // Starts all subjects, compares their first steps, and measures. If a peer
  // fails, report.missing gets the reason. Errors: kDataLoss if a subject's
  // results differ from those of the first of ours on a CPU; any error of ours.
  absl::Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(WriteStepFiles(
        network_, result_.one, report_.settings.seed, folder_.path()));
    if (on_gpu()) LOCKSTEP_RETURN_IF_ERROR(TakeCpusFirstStep());
    for (const Subject& subject : SubjectsOf(report_.settings)) {
      ShowProgress(
          absl::StrCat(Name(result_.one), ": starting ", subject.name));
      const absl::Status status = Start(subject);
      if (status.ok()) continue;
      if (absl::IsDataLoss(status) || subject.pythons.empty()) return status;
      AddMissing(subject.name, status);
    }
    LOCKSTEP_RETURN_IF_ERROR(Measure());
    DeriveStep(result_);
    if (report_.settings.layers) LOCKSTEP_RETURN_IF_ERROR(MeasureLayers());
    report_.results.push_back(std::move(result_));
    return absl::OkStatus();
  }

 private:
  // Adds a reason to report.missing, unless it is already there. A reason of
  // kAlreadyExists does not name the case, so it appears once for all cases.
  void AddMissing(const std::string& name, const absl::Status& why) {
    const std::string text =
        absl::IsAlreadyExists(why)
            ? std::string(why.message())
            : absl::StrCat(Name(result_.one), ": ", name, ": ", why.message());
    if (std::ranges::count(report_.missing, text) == 0) {
      report_.missing.push_back(text);
    }
  }

  bool on_gpu() const { return result_.one.device == ComputeDevice::kCuda; }

  absl::Time Deadline() const {
    return absl::Now() + absl::Seconds(report_.settings.timeout);
  }

  absl::StatusOr<std::vector<double>> Ask(TorchProcess& process,
                                          const std::string& line,
                                          const char* word, size_t fewest) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                              process.Ask(line, Deadline()));
    return ParseNumbers(answer, word, fewest);
  }

  absl::StatusOr<TorchProcess> StartProcess(const Subject& subject) {
    return subject.pythons.empty()
               ? TorchProcess::StartProgram(
                     {OwnProgramPath(), "--worker",
                      absl::StrCat("--convolution=",
                                   Name(subject.convolution))},
                     subject.name, Deadline())
               : TorchProcess::Start(subject.pythons, StepPeerTorch(),
                                     Deadline());
  }

  // Has the process load the case, and returns its first step.
  absl::StatusOr<FirstStep> LoadAndTakeFirstStep(TorchProcess& process,
                                                 const Subject& subject,
                                                 const StepCase& one) {
    LOCKSTEP_RETURN_IF_ERROR(
        Ask(process,
            absl::StrCat("load ", one.threads, " ", Name(one.precision), " ",
                         subject.mode, " ", subject.layout, " ",
                         Name(one.device), " ", folder_.path()),
            "loaded", 0)
            .status());
    LOCKSTEP_RETURN_IF_ERROR(ClearGradients(network_, folder_.path()));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<double> loss,
                              Ask(process, "first", "loss", 1));
    return ReadFirstStep(network_, loss[0], folder_.path());
  }

  // Takes the first step on the CPU in float32. Those on the GPU are compared
  // with it.
  absl::Status TakeCpusFirstStep() {
    const Subject cpu = {.name = "ours on the CPU"};
    ShowProgress(absl::StrCat(Name(result_.one), ": the CPU's first step"));
    LOCKSTEP_ASSIGN_OR_RETURN(TorchProcess process, StartProcess(cpu));
    StepCase on_cpu = result_.one;
    on_cpu.device = ComputeDevice::kCpu;
    on_cpu.precision = ConvolutionPrecision::kFloat32;
    LOCKSTEP_ASSIGN_OR_RETURN(our_first_step_,
                              LoadAndTakeFirstStep(process, cpu, on_cpu));
    return absl::OkStatus();
  }

  // Compares the first step of the subject of `row` with ours on the CPU.
  absl::Status CompareFirstStep(const FirstStep& first, StepRow& row) const {
    const absl::StatusOr<double> error =
        CompareFirstSteps(network_, our_first_step_, first, result_.tolerance);
    if (!error.ok()) {
      return Named(absl::StrCat(Name(result_.one), ": ", row.subject),
                   error.status());
    }
    row.gradient_error = *error;
    return absl::OkStatus();
  }

  // Asks our first process how it computes.
  absl::Status AskChosen(TorchProcess& process) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                              process.Ask("chosen", Deadline()));
    LOCKSTEP_ASSIGN_OR_RETURN(
        chosen_, ParseChosen(answer, network_.operations().size()));
    result_.layout = chosen_.layout;
    return absl::OkStatus();
  }

  // Asks the process for its memory, which is not known on a GPU.
  void AskMemory(TorchProcess& process, StepRow& row) {
    if (on_gpu()) return;
    const absl::StatusOr<std::vector<double>> memory =
        Ask(process, "memory", "memory", 1);
    if (memory.ok()) {
      row.memory_bytes = static_cast<int64_t>((*memory)[0]);
    } else {
      AddMissing(absl::StrCat("memory of ", row.subject), memory.status());
    }
  }

  // Starts the subject, runs and compares its first step, and adds the process
  // to those that are measured. Errors: kDataLoss as for Run; others if the
  // subject cannot run the step.
  absl::Status Start(const Subject& subject) {
    LOCKSTEP_ASSIGN_OR_RETURN(TorchProcess process, StartProcess(subject));
    StepRow row = {.subject = subject.name, .newest = subject.newest};
    if (!subject.pythons.empty()) {
      const std::string version =
          process.version().substr(0, process.version().find('+'));
      if (subject.newest) report_.newest = process.name();
      if (!subject.newest && process.version() == newest_version_) {
        return absl::AlreadyExistsError(
            absl::StrCat("system: ", kSystemPython, " has --python's PyTorch"));
      }
      if (subject.newest) newest_version_ = process.version();
      row.subject = absl::StrCat("PyTorch ", version, " ", subject.mode, " ",
                                 subject.layout);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(
        FirstStep first, LoadAndTakeFirstStep(process, subject, result_.one));
    const bool is_first = processes_.empty();
    if (is_first) LOCKSTEP_RETURN_IF_ERROR(AskChosen(process));
    if (is_first && !on_gpu()) {
      our_first_step_ = std::move(first);
    } else {
      LOCKSTEP_RETURN_IF_ERROR(CompareFirstStep(first, row));
    }
    AskMemory(process, row);
    if (subject.pythons.empty()) ++our_processes_;
    result_.rows.push_back(std::move(row));
    processes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  // Runs rounds. In each round the machine's peak, ours and each peer have one
  // turn.
  absl::Status Measure() {
    std::vector<bool> gone(processes_.size());
    ShowProgress(absl::StrCat("measuring ", Name(result_.one)));
    const auto take_turn = [&](int, size_t next) -> absl::Status {
      if (next == 0) {
        if (on_gpu()) return absl::OkStatus();  // The CPU's peak says nothing.
        const absl::StatusOr<double> peak =
            MeasurePeak(result_.one.type(), result_.one.threads, kPeakSeconds);
        if (peak.ok()) result_.peaks.push_back(*peak);
        return absl::OkStatus();
      }
      const size_t i = next - 1;
      if (gone[i]) return absl::OkStatus();
      const absl::StatusOr<std::vector<double>> seconds =
          Ask(processes_[i], absl::StrCat("time ", kTurnSeconds), "timed", 1);
      if (seconds.ok()) {
        result_.rows[i].seconds.push_back(Median(*seconds));
        return absl::OkStatus();
      }
      if (i < our_processes_) return seconds.status();
      AddMissing(result_.rows[i].subject, seconds.status());
      gone[i] = true;
      return absl::OkStatus();
    };
    const RoundLimits limits = {.rounds = report_.settings.rounds,
                                .fewest = 5,
                                .most = 25,
                                .seconds = report_.settings.seconds};
    LOCKSTEP_RETURN_IF_ERROR(
        MeasureRounds(limits, processes_.size() + 1, SteadySeconds, take_turn)
            .status());
    for (size_t i = gone.size(); i-- > 0;) {
      if (!gone[i]) continue;
      result_.rows.erase(result_.rows.begin() + static_cast<ptrdiff_t>(i));
    }
    return absl::OkStatus();
  }

  // Measures the layers of ours: the medians over rounds, while the peers
  // sleep.
  absl::Status MeasureLayers() {
    constexpr int kRounds = 5;
    const size_t count = network_.operations().size();
    const StepCase& one = result_.one;
    std::vector<std::vector<double>> samples(2 * count);
    // The largest values count, because other programs can only lower them.
    std::vector<double> peaks = result_.peaks, copies, far_copies;
    const int64_t near_bytes = kNearCopyBytes * one.threads;
    const int64_t far_bytes =
        std::max(near_bytes, result_.rows[0].memory_bytes.value_or(0));
    for (int round = 0; round < kRounds; ++round) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<double> times,
          Ask(processes_[0], "layers", "layers", 2 * count));
      for (size_t i = 0; i < samples.size(); ++i) {
        samples[i].push_back(times[i]);
      }
      const absl::StatusOr<double> peak =
          MeasurePeak(one.type(), one.threads, kPeakSeconds);
      // Without a peak the layers have no bound.
      if (!peak.ok()) return absl::OkStatus();
      peaks.push_back(*peak);
      LOCKSTEP_ASSIGN_OR_RETURN(const double copy,
                                MeasureCopy(one.threads, near_bytes));
      copies.push_back(copy);
      LOCKSTEP_ASSIGN_OR_RETURN(const double far_copy,
                                MeasureCopy(one.threads, far_bytes));
      far_copies.push_back(far_copy);
    }
    std::vector<double> forward, backward;
    for (size_t i = 0; i < count; ++i) {
      forward.push_back(Median(samples[2 * i]));
      backward.push_back(Median(samples[2 * i + 1]));
    }
    result_.layer_peak = std::ranges::max(peaks);
    result_.copy = std::ranges::max(copies);
    result_.far_copy = std::ranges::max(far_copies);
    result_.layers = LayersOf(network_, one, chosen_.operations, forward,
                              backward, *result_.layer_peak, *result_.copy);
    return absl::OkStatus();
  }

  StepReport& report_;
  const Network network_;
  const TemporaryFolder folder_;
  StepResult result_;
  // The first step of the first of ours, or of ours on the CPU.
  FirstStep our_first_step_;
  ChosenAlgorithms chosen_;  // The algorithms of the first of ours.
  std::string newest_version_;
  std::vector<TorchProcess> processes_;  // One for each subject; ours first.
  size_t our_processes_ = 0;
};

}  // namespace

absl::Status RunCase(const StepCase& one, StepReport& report) {
  LOCKSTEP_ASSIGN_OR_RETURN(Network network,
                            CreateNetwork(one.spec, one.input));
  LOCKSTEP_ASSIGN_OR_RETURN(TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-step"));
  return CaseRun(report, std::move(network), one, std::move(folder)).Run();
}

}  // namespace lockstep::benchmarks
