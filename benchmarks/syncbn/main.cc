// The command `syncbn`: what synchronising batch norm costs.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/document.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/rank.h"
#include "benchmarks/syncbn/results.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/groups/rank_environment.h"
#include "report/document.h"
#include "report/write.h"

#ifdef LOCKSTEP_SYNCBN_GPU
#include <cstring>

#include "base/cuda_status.h"
#include "base/files.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/syncbn/cuda_rank.h"
#include "collectives/communicator.h"
#include "models/networks/network.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_batch_norm.h"
#endif

ABSL_FLAG(std::string, shapes, "resnet18_d2l,resnet50,mobilenet,detection",
          "measure the layers of these networks; may be empty");
ABSL_FLAG(std::string, network, "resnet18_d2l",
          "the network to train, which must have batch norm, perhaps with "
          "options, as in resnet50:width=32; or none");
ABSL_FLAG(std::string, image_size, "",
          "size of the network's images: 224, or 192x256, height first; empty "
          "or 0: 28 for lenet_bn and resnet18_d2l, 112 for all others");
ABSL_FLAG(int64_t, in_channels, 0,
          "channels of the network's images; 0: 1 for lenet_bn and "
          "resnet18_d2l, 3 for all others");
ABSL_FLAG(int64_t, num_classes, 0, "number of the network's classes; 0: 10");
ABSL_FLAG(int32_t, world_size, 2, "number of ranks, one thread each");
ABSL_FLAG(std::string, backend, "processes",
          "what ranks are: processes, threads, or nccl: processes, each on a "
          "GPU. On GPUs local BN is cuDNN's, calls are timed by events of the "
          "GPU, PyTorch's SyncBatchNorm is timed too, and only the network's "
          "batch norms are timed");
ABSL_FLAG(int64_t, per_rank_batch, 0,
          "number of images on each rank; 0: 32, for detection 2, for the "
          "training step 16");
ABSL_FLAG(std::string, layout, "nhwc",
          "layout of the layers: nhwc, nchw, or on the CPU nchw16c; on the CPU "
          "the network has a layout of its own");
ABSL_FLAG(std::string, dtype, "float32",
          "type of the layers: float32, bfloat16, float16; on the CPU the "
          "network has float32");
ABSL_FLAG(std::string, peers, "torch",
          "torch, which is left out if no Python has it; or empty");
ABSL_FLAG(std::string, python, "",
          "the Python that has PyTorch; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(uint64_t, seed, 0, "seed of inputs and initial weights");
ABSL_FLAG(double, seconds, 60,
          "time for all turns; each shape, and the network, has at least 3 "
          "rounds, and each subject has a turn in each round");
ABSL_FLAG(int32_t, rounds, 0,
          "rounds of each shape and of the network; 0: as many as fit into "
          "--seconds, at most 200");
ABSL_FLAG(
    double, timeout, 120,
    "seconds that ranks wait for one another, and that they have to start "
    "and (with 10 more) to answer; PyTorch has half of them to start and "
    "half for a turn, and is left out if that is not enough");
ABSL_FLAG(std::string, worker, "",
          "internal: run as a rank for the driver that listens here");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "syncbn";
constexpr char kFolder[] = "lockstep-syncbn";

Usage SyncBnUsage() {
  return {
      .command = kName,
      .introduction = absl::StrCat(R"(syncbn [FLAGS]

Times batch norm over the batch of all ranks (SyncBN) and over each rank's own
batch (local BN: oneDNN's, on GPUs cuDNN's, and SyncBN's own kernels), per layer
shape, next to PyTorch's. Also times a training step of a network, on GPUs only
its batch norms, with SyncBN and with local BN of the same kernels. Shows where
SyncBN's time goes, and checks the result of the last call of every turn. Prints
a table and writes a report.

Networks with batch norm, for --network:
)",
                                   "  ", BatchNormNetworkNames(), "\n"),
      .sections = {{"what is measured",
                    "shapes network image_size=SIZE in_channels num_classes "
                    "world_size backend per_rank_batch layout dtype peers "
                    "python= seed"},
                   {"how long", "seconds rounds timeout"},
                   {"output", kOutputFlags}},
      .ending =
          absl::StrCat("the table\n", report::TermsText(SyncBnTerms()), R"(
Exit status: 0 if all went well and every checked result is right, 2 for a wrong
flag, 1 for anything else, and with --require_bars for a bar that is not met.
)"),
      .words = OutputWords(kName, kFolder),
      .aliases = {{"nproc", "world_size"}}};
}

absl::StatusOr<SyncBnSettings> SettingsFromFlags() {
  SyncBnSettings settings;
  LOCKSTEP_ASSIGN_OR_RETURN(settings.sets,
                            ParseShapeSets(absl::GetFlag(FLAGS_shapes)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      settings.network,
      ParseTrainedNetwork({.network = absl::GetFlag(FLAGS_network),
                           .image_size = absl::GetFlag(FLAGS_image_size),
                           .in_channels = absl::GetFlag(FLAGS_in_channels),
                           .num_classes = absl::GetFlag(FLAGS_num_classes)}));
  settings.world_size = absl::GetFlag(FLAGS_world_size);
  LOCKSTEP_RETURN_IF_ERROR(
      ParseSyncBnBackend(absl::GetFlag(FLAGS_backend), settings));
  settings.per_rank_batch = absl::GetFlag(FLAGS_per_rank_batch);
  LOCKSTEP_ASSIGN_OR_RETURN(settings.layout,
                            ParseLayout(absl::GetFlag(FLAGS_layout)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.type,
                            ParseActivationType(absl::GetFlag(FLAGS_dtype)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.torch,
                            ParseSyncBnPeers(absl::GetFlag(FLAGS_peers)));
  settings.rounds = absl::GetFlag(FLAGS_rounds);
  settings.seconds = absl::GetFlag(FLAGS_seconds);
  settings.seed = absl::GetFlag(FLAGS_seed);
  LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckSeconds("--timeout", absl::GetFlag(FLAGS_timeout)));
  return settings;
}

SyncBnRankOptions RankOptions(const SyncBnSettings& settings) {
  return {.pythons = PythonsToTry(absl::GetFlag(FLAGS_python)),
          .timeout = absl::Seconds(absl::GetFlag(FLAGS_timeout)),
          .network = settings.network};
}

// Returns the command of the ranks, which run this program too.
TeamCommand CommandOf(const SyncBnSettings& settings, int cores,
                      const std::string& listener) {
  const bool processes = settings.ranks == RankKind::kProcesses;
  std::vector<std::string> argv = {
      OwnProgramPath(),
      absl::StrCat("--worker=", listener),
      absl::StrCat("--world_size=", settings.world_size),
      absl::StrCat("--backend=", BackendName(settings)),
      absl::StrCat("--timeout=", absl::GetFlag(FLAGS_timeout)),
      absl::StrCat("--python=", absl::GetFlag(FLAGS_python))};
  for (std::string& argument : ArgumentsOf(settings.network)) {
    argv.push_back(std::move(argument));
  }
  return {
      .argv = std::move(argv),
      .nproc = processes ? settings.world_size : 1,
      // NCCL has its own threads, which would share the rank's core.
      .bind_cores = processes && !settings.gpu && settings.world_size <= cores,
      .environment = {{"OMP_NUM_THREADS", "1"}},
      .world_size = settings.world_size};
}

absl::StatusOr<TeamTurn> TakeTurn(RankTeam& team,
                                  const SyncBnRequest& request) {
  // The driver waits longer than the ranks, whose own message says more.
  const double timeout = absl::GetFlag(FLAGS_timeout);
  const absl::StatusOr<std::vector<RankTurn>> turns =
      team.Ask<RankTurn>(request, absl::Seconds(timeout + 10));
  if (absl::IsDeadlineExceeded(turns.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat(turns.status().message(), " (--timeout=", timeout, ")"));
  }
  LOCKSTEP_RETURN_IF_ERROR(turns.status());
  return CombineTurns(*turns);
}

absl::Status MeasureLayers(const TakeSyncBnTurn& take_turn,
                           SyncBnReport& report, report::GrowingReport& shown) {
  const std::vector<LayerShape> shapes = ShapesOf(report.settings);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LayerShape& shape = shapes[i];
    ShowProgress(absl::StrCat("measuring ", Name(shape.set), " ", Name(shape),
                              ", shape ", i + 1, " of ", shapes.size()));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const MeasuredTurns measured,
        MeasureLayer(report.settings, shape, take_turn, SteadySeconds));
    report.layers.push_back(DeriveLayer(report.settings, shape, measured));
    AddNotes(measured, report);
    ShowProgress("");
    shown.Show(SyncBnDocument(report, /*finished=*/false));
  }
  return absl::OkStatus();
}

absl::Status MeasureAll(RankTeam& team, SyncBnReport& report,
                        report::GrowingReport& shown) {
  const TakeSyncBnTurn take_turn = [&team](const SyncBnRequest& request) {
    return TakeTurn(team, request);
  };
  LOCKSTEP_RETURN_IF_ERROR(MeasureLayers(take_turn, report, shown));
  const TrainedNetwork& network = report.settings.network;
  if (network.empty()) return absl::OkStatus();
  ShowProgress(absl::StrCat("training ", network.spec));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const MeasuredTurns measured,
      MeasureNetwork(report.settings, take_turn, SteadySeconds));
  report.network = DeriveNetwork(report.settings, measured);
  ShowProgress("");
  return absl::OkStatus();
}

absl::Status Measure(const SyncBnSettings& settings,
                     std::span<char* const> argv) {
  const InterruptGuard guard;
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, kFolder));
  SyncBnReport report = {
      .settings = settings,
      .origin = report::OriginOf("//benchmarks:syncbn", argv),
      .missing = {}};
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<RankTeam> team,
      RankTeam::Start([&](const std::string& listener) {
        return CommandOf(settings, report.origin.machine.cores, listener);
      }));
  const absl::Duration timeout = absl::Seconds(absl::GetFlag(FLAGS_timeout));
  LOCKSTEP_RETURN_IF_ERROR(team->AwaitRanks(timeout));
  report::GrowingReport shown;
  shown.Show(SyncBnDocument(report, /*finished=*/false));
  // An error does not remove from the report what was measured before.
  absl::Status status = MeasureAll(*team, report, shown);
  if (!status.ok()) {
    ShowProgress("");
    report.missing.push_back(absl::StrCat("the rest: ", status.message()));
  }
  report::Document document = SyncBnDocument(report);
  AddLoad(output.load.OthersShare(), document);
  shown.Show(document);
  status.Update(team->Stop(timeout));
  Print("\n");
  status.Update(output.Write(document));
  if (const int64_t wrong = CountWrong(report); wrong > 0) {
    return absl::DataLossError(absl::StrCat(wrong, " elements are wrong"));
  }
  return status;
}

#ifdef LOCKSTEP_SYNCBN_GPU

// Returns kNotFound, in one line, without a GPU. Counting GPUs makes no context
// on a GPU, and starts no thread, which a later fork would have to consider.
absl::Status CheckGpu() { return DeviceOfRank(0).status(); }

absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCudnn(
    const BatchNormOptions& options, CudaBatchNormKernels& kernels) {
  return CudnnBatchNorm::Create(options, kernels);
}

// Returns the path of a file that does not exist yet, in rank 0's folder. All
// ranks return the same path.
absl::StatusOr<std::string> ShareFile(Communicator& group,
                                      const TemporaryFolder& folder) {
  std::vector<std::byte> bytes(4096);
  const std::string file = folder.path() + "/torch";
  if (file.size() >= bytes.size()) return absl::InternalError("a long TMPDIR");
  std::memcpy(bytes.data(), file.data(), file.size());
  LOCKSTEP_RETURN_IF_ERROR(group.Broadcast(Buffer(bytes), /*root=*/0));
  return std::string(reinterpret_cast<const char*>(bytes.data()));
}

// Returns the shapes of the network's batch norms; empty without a network.
absl::StatusOr<std::vector<ActivationShape>> NetworkShapes(
    const SyncBnSettings& settings) {
  if (settings.network.empty()) return std::vector<ActivationShape>();
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            DescribeTrained(settings.network));
  return BatchNormShapes(network, settings.layout);
}

// Runs the launcher's rank; its local batch norm is cuDNN's.
absl::Status RunGpuRank(const SyncBnSettings& settings,
                        const std::string& listener) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment place,
                            RequireRankEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-syncbn"));
  const SyncBnRankOptions rank = RankOptions(settings);
  SyncBnCudaRankOptions options = {.group = {.timeout = rank.timeout},
                                   .local_rank = place.local_rank,
                                   .create_local = CreateCudnn};
  LOCKSTEP_ASSIGN_OR_RETURN(options.network, NetworkShapes(settings));
  const auto serve = [&](Communicator& group) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string file, ShareFile(group, folder));
    SyncBnTorch torch(group, rank);
    options.take_peer = [&](const SyncBnRequest& request,
                            const std::string& where) {
      return torch.Take(request, absl::StrCat(where, " ", file));
    };
    LOCKSTEP_ASSIGN_OR_RETURN(const TakeCudaTurn take,
                              CreateSyncBnCudaRank(group, options));
    return ServeTurns<SyncBnRequest>(listener,
                                     {group.rank(), group.world_size()}, take);
  };
  return RunAsRanks(RankKind::kProcesses, /*world_size=*/0, options.group,
                    serve);
}

#else

absl::Status CheckGpu() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA, NCCL and cuDNN, which "
      "--backend=nccl needs");
}

absl::Status RunGpuRank(const SyncBnSettings& /*settings*/,
                        const std::string& /*listener*/) {
  return CheckGpu();
}

#endif

absl::Status RunWorker(const SyncBnSettings& settings,
                       const std::string& listener) {
  if (settings.gpu) return RunGpuRank(settings, listener);
  return RunSyncBnRank(listener, settings.ranks, settings.world_size,
                       RankOptions(settings));
}

absl::Status RunDriver(const SyncBnSettings& settings,
                       std::span<char* const> argv) {
  if (settings.gpu) LOCKSTEP_RETURN_IF_ERROR(CheckGpu());
  LOCKSTEP_RETURN_IF_ERROR(CheckMemory(settings, MemoryForRun()));
  LOCKSTEP_RETURN_IF_ERROR(CheckNotLaunched());
  return Measure(settings, argv);
}

absl::Status Run(std::span<char* const> argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SyncBnSettings settings, SettingsFromFlags());
  const std::string worker = absl::GetFlag(FLAGS_worker);
  return worker.empty() ? RunDriver(settings, argv)
                        : RunWorker(settings, worker);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::SyncBnUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
