// The command `step`: the speed of a training step, next to PyTorch's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/step/document.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/torch_peer_py.h"
#include "benchmarks/step/turn.h"
#include "benchmarks/step/worker.h"
#include "models/cpu/algorithm.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, models,
          "lenet,resnet18_d2l,resnet34,vit_tiny_patch16_224",
          "networks, perhaps with options, as in vit:patch=4,depth=6,lenet");
ABSL_FLAG(
    int64_t, batch, 0,
    "number of images in a step; 0: 256 for lenet, lenet_bn and mlp, both "
    "32 and 16 for resnet18_d2l, 32 for vit, 16 for all others");
ABSL_FLAG(int64_t, image_size, 0,
          "height and width of images; 0: 28 for the networks that --batch "
          "names, 112 for all others");
ABSL_FLAG(int64_t, in_channels, 0,
          "channels of images; 0: 1 for the networks that --batch names, 3 for "
          "all others");
ABSL_FLAG(int64_t, num_classes, 10, "number of classes");
ABSL_FLAG(std::string, threads, "1,2", "numbers of threads of a step");
ABSL_FLAG(std::string, types, "float32,bfloat16",
          "types of activations; PyTorch's bfloat16 is autocast");
ABSL_FLAG(
    std::string, convolution, "auto",
    "our algorithm of convolutions; each algorithm of a list is measured, "
    "and the bars and --layers are of the first\n"
    "auto      Winograd where it is faster, otherwise direct\n"
    "direct    never Winograd\n"
    "winograd  Winograd wherever it is possible (see train --help)");
ABSL_FLAG(
    std::string, peers, "eager,compile,system",
    "eager: PyTorch of --python as it is; compile: by torch.compile; each "
    "with channels first (nchw) and last (nhwc). system: PyTorch of "
    "/usr/bin/python3 as it is. May be empty");
ABSL_FLAG(std::string, python, "",
          "the Python that has PyTorch; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(bool, layers, false,
          "also show the time of each of our layers, and what bounds it; the "
          "bars of batch norm need this");
ABSL_FLAG(uint64_t, seed, 0, "seed of the first weights and the images");
ABSL_FLAG(
    int32_t, rounds, 0,
    "rounds of each step; 0: from 5 to 25, as many as fit into --seconds");
ABSL_FLAG(double, seconds, 20, "time for the rounds of each step");
ABSL_FLAG(double, timeout, 900,
          "seconds that a process has to answer; torch.compile takes minutes");
ABSL_FLAG(bool, worker, false, "internal: train as a process of the driver");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "step";
constexpr char kSystemPython[] = "/usr/bin/python3";
constexpr double kTurnSeconds = 0.25;
constexpr double kPeakSeconds = 0.05;

Usage StepUsage() {
  return {
      .command = kName,
      .introduction = absl::StrCat(R"(step [FLAGS]

Times one training step (forward, backward, SGD update) of networks on the CPU,
in turns with PyTorch, from the same weights on the same batch, each in a process
of its own. Losses and gradients of the first step are compared before anything
is timed. Networks:

)",
                                   NetworksHelp()),
      .sections =
          {{"what is measured",
            "models batch image_size in_channels num_classes threads types "
            "convolution peers python= layers seed"},
           {"how long", "rounds seconds timeout"},
           {"output", kOutputFlags}},
      .ending = absl::StrCat("the table\n", report::TermsText(StepTerms()), R"(
Exit status: 0 if all went well and every peer computed the same, 2 for a wrong
flag, 1 for anything else.
)"),
      .words = OutputWords(kName, /*folder=*/""),
      .aliases = {{"channels", "in_channels"}, {"classes", "num_classes"}}};
}

absl::StatusOr<StepSettings> SettingsFromFlags() {
  StepSettings settings = {.models = absl::GetFlag(FLAGS_models),
                           .batch = absl::GetFlag(FLAGS_batch),
                           .channels = absl::GetFlag(FLAGS_in_channels),
                           .image_size = absl::GetFlag(FLAGS_image_size),
                           .classes = absl::GetFlag(FLAGS_num_classes),
                           .layers = absl::GetFlag(FLAGS_layers),
                           .rounds = absl::GetFlag(FLAGS_rounds),
                           .seconds = absl::GetFlag(FLAGS_seconds),
                           .timeout = absl::GetFlag(FLAGS_timeout),
                           .seed = absl::GetFlag(FLAGS_seed)};
  LOCKSTEP_RETURN_IF_ERROR(ParseStepLists(
      absl::GetFlag(FLAGS_threads), absl::GetFlag(FLAGS_types),
      absl::GetFlag(FLAGS_convolution), absl::GetFlag(FLAGS_peers), settings));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--rounds", settings.rounds, 0, 100000));
  LOCKSTEP_RETURN_IF_ERROR(CheckSeconds("--seconds", settings.seconds));
  LOCKSTEP_RETURN_IF_ERROR(CheckSeconds("--timeout", settings.timeout));
  return settings;
}

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
  for (const ConvolutionAlgorithm convolution : settings.convolutions) {
    subjects.push_back(
        {.name = OursName(convolution), .convolution = convolution});
  }
  const std::vector<std::string> pythons =
      PythonsToTry(absl::GetFlag(FLAGS_python));
  const auto add = [&](const char* peer, bool wanted, bool newest,
                       const std::vector<std::string>& where,
                       const char* mode) {
    for (const char* const layout : {"nchw", "nhwc"}) {
      if (!wanted) continue;
      subjects.push_back({.name = absl::StrCat(peer, " ", layout),
                          .newest = newest,
                          .pythons = where,
                          .mode = mode,
                          .layout = layout});
    }
  };
  add("eager", settings.eager, true, pythons, "eager");
  add("compile", settings.compile, true, pythons, "compile");
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
  // results differ from those of the first of ours; any error of ours.
  absl::Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(WriteStepFiles(
        network_, result_.one, report_.settings.seed, folder_.path()));
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
    const StepCase& one = result_.one;
    LOCKSTEP_RETURN_IF_ERROR(
        Ask(process,
            absl::StrCat("load ", one.threads, " ", Name(one.type), " ",
                         subject.mode, " ", subject.layout, " ",
                         folder_.path()),
            "loaded", 0)
            .status());
    LOCKSTEP_RETURN_IF_ERROR(ClearGradients(network_, folder_.path()));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<double> loss,
                              Ask(process, "first", "loss", 1));
    LOCKSTEP_ASSIGN_OR_RETURN(FirstStep first,
                              ReadFirstStep(network_, loss[0], folder_.path()));
    if (processes_.empty()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                                process.Ask("chosen", Deadline()));
      LOCKSTEP_ASSIGN_OR_RETURN(
          chosen_, ParseChosen(answer, network_.operations().size()));
      result_.layout = chosen_.layout;
      our_first_step_ = std::move(first);
    } else {
      const absl::StatusOr<double> error = CompareFirstSteps(
          network_, our_first_step_, first, result_.tolerance);
      if (!error.ok()) {
        return Named(absl::StrCat(Name(one), ": ", row.subject),
                     error.status());
      }
      row.gradient_error = *error;
    }
    const absl::StatusOr<std::vector<double>> memory =
        Ask(process, "memory", "memory", 1);
    if (memory.ok()) {
      row.memory_bytes = static_cast<int64_t>((*memory)[0]);
    } else {
      AddMissing(absl::StrCat("memory of ", row.subject), memory.status());
    }
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
        const absl::StatusOr<double> peak =
            MeasurePeak(result_.one.type, result_.one.threads, kPeakSeconds);
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
      if (i < result_.one.convolutions.size()) return seconds.status();
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
          MeasurePeak(one.type, one.threads, kPeakSeconds);
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
  FirstStep our_first_step_;  // The first step of the first of ours.
  ChosenAlgorithms chosen_;   // The algorithms of the first of ours.
  std::string newest_version_;
  std::vector<TorchProcess> processes_;  // One for each subject; ours first.
};

absl::Status RunCase(const StepCase& one, StepReport& report) {
  LOCKSTEP_ASSIGN_OR_RETURN(Network network,
                            CreateNetwork(one.spec, one.input));
  LOCKSTEP_ASSIGN_OR_RETURN(TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-step"));
  return CaseRun(report, std::move(network), one, std::move(folder)).Run();
}

absl::Status RunDriver(std::span<char* const> argv) {
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const StepSettings settings, SettingsFromFlags());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<StepCase> cases,
                            CasesOf(settings));
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  StepReport report = {.settings = settings,
                       .origin = report::OriginOf("//benchmarks:step", argv),
                       .vector_unit = BestVectorUnit()};
  report::GrowingReport shown;
  shown.Show(StepDocument(report, /*finished=*/false));
  // If a case fails, the results of the cases before it stay in the report.
  absl::Status status;
  for (const StepCase& one : cases) {
    status = RunCase(one, report);
    ShowProgress("");
    if (!status.ok()) {
      report.missing.push_back(absl::StrCat("the rest: ", status.message()));
      break;
    }
    shown.Show(StepDocument(report, /*finished=*/false));
  }
  report::Document document = StepDocument(report);
  AddLoad(output.load.OthersShare(), document);
  shown.Show(document);
  status.Update(output.Write(document));
  return status;
}

absl::Status Run(std::span<char* const> argv) {
  if (!absl::GetFlag(FLAGS_worker)) return RunDriver(argv);
  LOCKSTEP_ASSIGN_OR_RETURN(const ConvolutionAlgorithm convolution,
                            ParseConvolution(absl::GetFlag(FLAGS_convolution)));
  ServeOurSteps(convolution);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::StepUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
