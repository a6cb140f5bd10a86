// The command `step`: the speed of a training step, next to PyTorch's.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/step/case_run.h"
#include "benchmarks/step/document.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/worker.h"
#include "models/cpu/algorithm.h"
#include "models/networks/networks.h"
#include "models/train/device.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

// The defaults of flags that a GPU does not have.
constexpr char kDefaultThreads[] = "1,2";
constexpr char kDefaultTypes[] = "float32,bfloat16";
constexpr char kDefaultPeers[] = "eager,compile,system";

}  // namespace
}  // namespace lockstep::benchmarks

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
ABSL_FLAG(std::string, device, "cpu",
          "cpu; cuda: the step runs on the first GPU, once launched as a graph "
          "and once call by call, and times are those of events on the GPU; or "
          "auto: cuda if there is a GPU");
ABSL_FLAG(std::string, threads, lockstep::benchmarks::kDefaultThreads,
          "numbers of threads of a step on a CPU");
ABSL_FLAG(std::string, types, lockstep::benchmarks::kDefaultTypes,
          "types of activations: float32, bfloat16, and on a GPU also tf32 and "
          "float16; in 16 bits PyTorch uses autocast");
ABSL_FLAG(
    std::string, convolution, "auto",
    "our algorithm of convolutions; each algorithm of a list is measured, "
    "and the bars and --layers are of the first\n"
    "auto      Winograd where it is faster, otherwise direct\n"
    "direct    never Winograd\n"
    "winograd  Winograd wherever it is possible (see train --help)");
ABSL_FLAG(
    std::string, peers, lockstep::benchmarks::kDefaultPeers,
    "eager: PyTorch of --python as it is; compile: by torch.compile; each "
    "with channels first (nchw) and last (nhwc). system: PyTorch of "
    "/usr/bin/python3 as it is. On a GPU: eager, compile and graph (CUDA "
    "graphs), channels last, which is the default there. May be empty");
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

Usage StepUsage() {
  return {
      .command = kName,
      .introduction = absl::StrCat(R"(step [FLAGS]

Times one training step (forward, backward, SGD update) of networks on the CPU,
or with --device=cuda on a GPU, in turns with PyTorch, from the same weights on
the same batch, each in a process of its own. Losses and gradients of the first
step are compared before anything is timed, those of a GPU with the CPU's.
Networks:

)",
                                   NetworksHelp()),
      .sections =
          {{"what is measured",
            "models batch image_size in_channels num_classes device threads "
            "types convolution peers python= layers seed"},
           {"how long", "rounds seconds timeout"},
           {"output", kOutputFlags}},
      .ending = absl::StrCat("the table\n", report::TermsText(StepTerms()), R"(
Exit status: 0 if all went well and every peer computed the same, 2 for a wrong
flag, 1 for anything else.
)"),
      .words = OutputWords(kName, /*folder=*/""),
      .aliases = {{"channels", "in_channels"}, {"classes", "num_classes"}}};
}

// Returns the value of a flag whose default a GPU replaces by `on_gpu`.
std::string OnDevice(ComputeDevice device, const std::string& value,
                     absl::string_view usual, absl::string_view on_gpu) {
  return device == ComputeDevice::kCuda && value == usual ? std::string(on_gpu)
                                                          : value;
}

// Reads --device. If another program computes on GPUs, that one starts in place
// of this one. note: as of ChooseDevice.
absl::StatusOr<ComputeDevice> ReadDevice(char* const* argv, std::string& note) {
  const std::string peers = absl::GetFlag(FLAGS_peers);
  absl::string_view why_not;
  if (absl::GetFlag(FLAGS_threads) != kDefaultThreads) {
    why_not = "has no --threads";
  } else if (absl::GetFlag(FLAGS_convolution) != "auto") {
    why_not = "chooses its convolutions itself";
  } else if (absl::GetFlag(FLAGS_layers)) {
    why_not = "has no times of --layers";
  } else if (peers != kDefaultPeers && absl::StrContains(peers, "system")) {
    why_not = "has no peer system; it has eager, compile and graph";
  }
  return ChooseDevice(absl::GetFlag(FLAGS_device), why_not, argv, note);
}

absl::StatusOr<StepSettings> SettingsFromFlags(ComputeDevice device) {
  StepSettings settings = {.models = absl::GetFlag(FLAGS_models),
                           .batch = absl::GetFlag(FLAGS_batch),
                           .channels = absl::GetFlag(FLAGS_in_channels),
                           .image_size = absl::GetFlag(FLAGS_image_size),
                           .classes = absl::GetFlag(FLAGS_num_classes),
                           .device = device,
                           .layers = absl::GetFlag(FLAGS_layers),
                           .rounds = absl::GetFlag(FLAGS_rounds),
                           .seconds = absl::GetFlag(FLAGS_seconds),
                           .timeout = absl::GetFlag(FLAGS_timeout),
                           .pythons = PythonsToTry(absl::GetFlag(FLAGS_python)),
                           .seed = absl::GetFlag(FLAGS_seed)};
  LOCKSTEP_RETURN_IF_ERROR(ParseStepLists(
      OnDevice(device, absl::GetFlag(FLAGS_threads), kDefaultThreads, "1"),
      absl::GetFlag(FLAGS_types), absl::GetFlag(FLAGS_convolution),
      OnDevice(device, absl::GetFlag(FLAGS_peers), kDefaultPeers,
               "eager,compile,graph"),
      settings));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--rounds", settings.rounds, 0, 100000));
  LOCKSTEP_RETURN_IF_ERROR(CheckSeconds("--seconds", settings.seconds));
  LOCKSTEP_RETURN_IF_ERROR(CheckSeconds("--timeout", settings.timeout));
  return settings;
}

absl::Status RunDriver(std::span<char* const> argv) {
  std::string note;
  LOCKSTEP_ASSIGN_OR_RETURN(const ComputeDevice device,
                            ReadDevice(argv.data(), note));
  if (!note.empty()) std::fprintf(stderr, "step: %s\n", note.c_str());
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const StepSettings settings,
                            SettingsFromFlags(device));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<StepCase> cases,
                            CasesOf(settings));
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  StepReport report = {.settings = settings,
                       .origin = report::OriginOf("//benchmarks:step", argv),
                       .vector_unit = BestVectorUnit()};
  if (device == ComputeDevice::kCuda) {
    LOCKSTEP_ASSIGN_OR_RETURN(const GpuDescription gpu,
                              DescribeGpu(/*local_rank=*/0));
    report.gpu = gpu.name;
  }
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
