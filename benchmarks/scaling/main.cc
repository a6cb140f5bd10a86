// The command `scaling`: how training throughput scales with ranks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/scaling/document.h"
#include "benchmarks/scaling/results.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/teams.h"
#include "benchmarks/scaling/turn.h"
#include "models/data/load_dataset.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"
#include "models/train/device.h"
#include "models/train/trainer.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, world_sizes, "",
          "numbers of ranks; default: the number of cores, of GPUs with "
          "--device=cuda, or of a launcher's ranks, and all powers of two "
          "below it; with --device=cuda, -1: the number of GPUs");
ABSL_FLAG(std::string, device, "cpu",
          "cpu; cuda: each rank computes on a GPU in float32, the ranks of a "
          "host take its GPUs in turn, NCCL sums the gradients, and times are "
          "those of events on the GPU; or auto: cuda if there is a GPU");
ABSL_FLAG(std::string, mode, "strong,weak",
          "strong  a step has --batch_size images in all\n"
          "weak    a step has --batch_size images on each rank");
ABSL_FLAG(std::string, backend, "processes",
          "what ranks are: processes, threads, mpi (by mpirun), or apart: "
          "processes that exchange nothing, which shows what the machine "
          "allows. Several, such as processes,threads, take turns");
ABSL_FLAG(std::string, peers, "",
          "torch: also measure PyTorch's DistributedDataParallel over Gloo, in "
          "the same rounds");
ABSL_FLAG(std::string, python, "",
          "the Python that has PyTorch; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(std::string, model, "lenet",
          "the network, perhaps with options (vit:patch=4,depth=6); the "
          "networks are listed below");
ABSL_FLAG(std::string, type, "float32",
          "type of activations: float32, bfloat16, or both in turn");
ABSL_FLAG(double, lr, 0.01,
          "learning rate of a step of --batch_size images; in weak scaling it "
          "grows with the number of images in a step. No time depends on it, "
          "but the loss must stay finite");
ABSL_FLAG(
    int64_t, batch_size, 0,
    "number of images in a step (see --mode); 0: 256 for lenet and mlp, 32 for "
    "other networks for small images, 16 for all others");
ABSL_FLAG(int32_t, rounds, 5,
          "number of rounds, in each of which every configuration runs once; "
          "with --steps=0 fewer if --seconds is too short");
ABSL_FLAG(int32_t, steps, 0,
          "timed steps in a run; 0: as many as fit into "
          "--seconds");
ABSL_FLAG(int32_t, warmup_steps, 5, "untimed steps before the timed ones");
ABSL_FLAG(double, seconds, 40,
          "time for the whole command, if --steps=0; at least 10 steps are "
          "timed in a run, however long they take");
ABSL_FLAG(std::string, worker, "",
          "internal: run as a rank for the driver that listens here");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "scaling";
constexpr char kFolder[] = "lockstep-scaling";

constexpr uint64_t kSeed = 0;  // The seed of the synthetic data set.

Usage ScalingUsage() {
  return {.command = kName,
          .introduction = R"(scaling [FLAGS]

Trains a network with 1, 2, 4, ... ranks, of one thread or one GPU each, and
reports images/s, speed-up, efficiency, step times and where a step goes. Prints
a table and writes a report.
)",
          .sections =
              {{"",
                "world_sizes=1,2,4 device mode batch_size backend peers= "
                "python=FILE model type lr rounds steps warmup_steps seconds"},
               {"Data:", kDataFlags},
               {"Images:", kImageFlags},
               {"", kOutputFlags}},
          .ending = absl::StrCat("Networks:\n", NetworksHelp(), R"(
The chapter of d2l trains resnet18_d2l with 256 images at 0.1 on one device and
with 512 at 0.2 on two:

  bazel run //benchmarks:scaling -- --model=resnet18_d2l --mode=weak \
      --batch_size=256 --lr=0.1 --world_sizes=1,2 --steps=2 --warmup_steps=1

Under torchrun, mpirun, srun or //collectives:launch, on one host or several,
the ranks are the launcher's, and only rank 0 prints and writes.

Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else.
)"),
          .words = OutputWords(kName, kFolder),
          .aliases = {{"nproc", "world_sizes"},
                      {"world_size", "world_sizes"},
                      {"dtype", "type"},
                      kDataAlias}};
}

bool Has(const ScalingSettings& settings, RankKind backend) {
  return std::ranges::count(settings.backends, backend) > 0;
}

// Reads --device. If another program computes on GPUs, this program ends and
// that one starts, so no rank may have joined a group.
// note: as of ChooseDevice.
absl::StatusOr<ComputeDevice> ReadDevice(char* const* argv, std::string& note) {
  absl::string_view why_not;
  const std::string backends =
      absl::StrCat(absl::GetFlag(FLAGS_backend), absl::GetFlag(FLAGS_peers));
  if (absl::GetFlag(FLAGS_type) != Name(DataType::kFloat32)) {
    why_not = "computes float32";
  } else if (absl::StrContains(backends, Name(RankKind::kMpi))) {
    why_not = "has ranks that are processes or threads, not mpi";
  } else if (!absl::GetFlag(FLAGS_peers).empty() ||
             absl::StrContains(backends, Name(RankKind::kDdp))) {
    why_not = "has no peer: --peers=torch computes on the CPU";
  }
  return ChooseDevice(absl::GetFlag(FLAGS_device), why_not, argv, note);
}

// devices: the number of cores or GPUs for ranks.
absl::StatusOr<ScalingSettings> SettingsFromFlags(ComputeDevice device,
                                                  int devices) {
  ScalingSettings settings = {.world_sizes = DefaultWorldSizes(devices),
                              .device = device};
  if (!absl::GetFlag(FLAGS_world_sizes).empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        settings.world_sizes,
        ParseWorldSizes(absl::GetFlag(FLAGS_world_sizes),
                        device == ComputeDevice::kCuda ? devices : 0));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(settings.modes,
                            ParseModes(absl::GetFlag(FLAGS_mode)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.backends,
                            ParseBackends(absl::GetFlag(FLAGS_backend)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankKind> peers,
                            ParsePeers(absl::GetFlag(FLAGS_peers)));
  for (const RankKind peer : peers) {
    if (!Has(settings, peer)) settings.backends.push_back(peer);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(settings.types,
                            ParseTypes(absl::GetFlag(FLAGS_type)));
  settings.model = absl::GetFlag(FLAGS_model);
  settings.learning_rate = absl::GetFlag(FLAGS_lr);
  const absl::StatusOr<NetworkEntry> entry = FindNetworkEntry(settings.model);
  if (!entry.ok()) {
    return FlagError("model", settings.model, entry.status().message());
  }
  settings.batch_size = absl::GetFlag(FLAGS_batch_size);
  if (settings.batch_size == 0) settings.batch_size = entry->benchmark_batch;
  settings.rounds = absl::GetFlag(FLAGS_rounds);
  settings.steps = absl::GetFlag(FLAGS_steps);
  settings.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  settings.seconds = absl::GetFlag(FLAGS_seconds);
  LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
  return settings;
}

// Checks the data, the network and the batch sizes now, because errors would
// otherwise appear in every rank or at the end. Also completes the settings.
// Returns the network.
absl::StatusOr<Network> CheckData(const DataFlags& data,
                                  ScalingSettings& settings) {
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts,
                            LoadDataset(data.dataset, data.dir, data.options));
  settings.dataset = data.dataset;
  settings.train_samples = parts.train->size();
  settings.skipped = SkippedText(parts.skipped);
  LOCKSTEP_ASSIGN_OR_RETURN(settings.input,
                            InputOf(*parts.train, data.transform));
  absl::StatusOr<Network> network =
      CreateNetwork(settings.model, settings.input);
  if (!network.ok()) {
    return FlagError("model", settings.model, network.status().message());
  }
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    LOCKSTEP_RETURN_IF_ERROR(ProgramOf(configuration.ranks).status());
    if (configuration.global_batch <= settings.train_samples) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size: a step of ", configuration.global_batch, " images, at ",
        report::Counted(configuration.world_size, "rank"),
        ", is more than the ", settings.train_samples, " images of ",
        settings.dataset));
  }
  return network;
}

// device: "core" or "GPU".
void WarnOfOversubscription(const ScalingSettings& settings, int devices,
                            const char* device) {
  for (const int world_size : settings.world_sizes) {
    if (world_size <= devices) continue;
    std::fprintf(stderr,
                 "scaling: warning: %d ranks on %s take turns; their "
                 "numbers say little\n",
                 world_size, report::Counted(devices, device).c_str());
  }
}

// pytorch: the result of CheckPeer.
absl::Status Measure(const ScalingSettings& settings, RankLaunchSettings ranks,
                     const std::string& pytorch, const ReportOutput& output,
                     const report::Origin& origin) {
  if (settings.device == ComputeDevice::kCpu) {
    WarnOfOversubscription(settings, ranks.cores, "core");
  } else if (origin.hosts.empty()) {  // Other hosts' GPUs are not known.
    LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, GpuCount());
    WarnOfOversubscription(settings, gpus, "GPU");
  }
  std::optional<TemporaryFolder> mpi_folder;
  if (Has(settings, RankKind::kMpi)) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        mpi_folder,
        CreateMpiFolder(*std::ranges::max_element(settings.world_sizes)));
    ranks.mpi_folder = mpi_folder->path();
  }
  const ScalingProgress progress = [](absl::string_view text) {
    std::fprintf(stderr, "%s", std::string(text).c_str());
  };
  const auto run = [&](const RunSpec& spec) { return RunOnce(ranks, spec); };
  LOCKSTEP_ASSIGN_OR_RETURN(
      ScalingReport report,
      MeasureScaling(settings, ranks.cores, run, progress));
  report.origin = origin;
  report.pytorch = pytorch;
  report::Document document = ScalingDocument(report);
  AddLoad(output.load.OthersShare(), document);
  Print(report::TerminalText(document) + "\n");
  return output.Write(document);
}

// Returns the result of CheckDdp; empty without kDdp.
absl::StatusOr<std::string> CheckPeer(const ScalingSettings& settings,
                                      const RankLaunchSettings& ranks,
                                      const Network& network,
                                      bool is_launched) {
  if (!Has(settings, RankKind::kDdp)) return "";
  if (is_launched) {
    return FlagError("peers", "torch", "starts its ranks itself");
  }
  return CheckDdp(ranks, network);
}

// Returns the number of a launcher's ranks, or of the GPUs or cores.
absl::StatusOr<int> CountDevices(const LaunchedRun* launched,
                                 ComputeDevice device, int cores) {
  if (launched != nullptr) return launched->world_size();
  if (device == ComputeDevice::kCuda) return GpuCount();
  return cores;
}

absl::Status RunDriver(std::span<char* const> argv) {
  std::string note;
  LOCKSTEP_ASSIGN_OR_RETURN(const ComputeDevice device,
                            ReadDevice(argv.data(), note));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<LaunchedRun> launched,
                            LaunchedRun::Join());
  if (launched != nullptr && !launched->is_driver()) return launched->Serve();
  if (!note.empty()) std::fprintf(stderr, "scaling: %s\n", note.c_str());
  const InterruptGuard guard;
  report::Origin origin = report::OriginOf("//benchmarks:scaling", argv);
  DescribeHosts(launched.get(), origin);
  const int cores =
      launched == nullptr ? origin.machine.cores : launched->cores();
  LOCKSTEP_ASSIGN_OR_RETURN(const int devices,
                            CountDevices(launched.get(), device, cores));
  LOCKSTEP_ASSIGN_OR_RETURN(ScalingSettings settings,
                            SettingsFromFlags(device, devices));
  LOCKSTEP_RETURN_IF_ERROR(ResolveTcp(launched.get(), settings.backends));
  LOCKSTEP_ASSIGN_OR_RETURN(const DataFlags data, ReadDataFlags(kSeed));
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network, CheckData(data, settings));
  LOCKSTEP_ASSIGN_OR_RETURN(ReportOutput output,
                            ReportOutput::Create(kName, kFolder));
  if (launched != nullptr) output.load = LoadMeter(launched->processes());
  RankLaunchSettings ranks = {
      .flags = std::vector<std::string>(argv.begin() + 1, argv.end()),
      .cores = cores,
      .pythons = PythonsToTry(absl::GetFlag(FLAGS_python)),
      .input = settings.input};
  // Ranks on other hosts have another current folder, so the driver sends the
  // path.
  if (!data.dir.empty()) ranks.flags.push_back("--data_dir=" + data.dir);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string pytorch,
      CheckPeer(settings, ranks, network, launched != nullptr));
  return Measure(settings, std::move(ranks), pytorch, output, origin);
}

absl::Status RunWorker(const std::string& listener) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int> world_sizes,
                            ParseWorldSizes(absl::GetFlag(FLAGS_world_sizes)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankKind> ranks,
                            ParseBackends(absl::GetFlag(FLAGS_backend)));
  LOCKSTEP_ASSIGN_OR_RETURN(const DataFlags data, ReadDataFlags(kSeed));
  return ServeRun(listener, ranks[0], world_sizes[0], data);
}

absl::Status Run(std::span<char* const> argv) {
  const std::string worker = absl::GetFlag(FLAGS_worker);
  return worker.empty() ? RunDriver(argv) : RunWorker(worker);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::ScalingUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
