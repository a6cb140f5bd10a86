// train: the reference trainer.
#include <cmath>
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/data/transform.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/train/common_flags.h"
#include "models/train/data_flags.h"
#include "models/train/device.h"
#include "models/train/train_run.h"
#include "models/train/trainer.h"

ABSL_FLAG(std::string, model, "lenet",
          "the network, perhaps with options (vit:patch=4,depth=6); the "
          "networks are listed below");
ABSL_FLAG(std::optional<int64_t>, test_samples, std::nullopt,
          "test with only N images (default: all)");
ABSL_FLAG(int64_t, epochs, 10, "number of passes over the training set");
ABSL_FLAG(int64_t, batch_size, 256,
          "number of images in a step, of all ranks together");
ABSL_FLAG(
    double, lr, 0.2,
    "learning rate. The d2l chapter trains lenet with batches of 256 "
    "at 0.2 on 1 or 2 GPUs, and resnet18_d2l with 256 at 0.1 on 1 GPU or 512 "
    "at 0.2 on 2");
ABSL_FLAG(std::string, optimizer, "sgd",
          "sgd    stochastic gradient descent, with --momentum if that is not "
          "0\n"
          "adamw  Adam with decoupled weight decay\n"
          "The formulas are PyTorch's. --resume wants the optimizer of the "
          "checkpoint's run");
ABSL_FLAG(double, momentum, 0, "of sgd; not negative");
ABSL_FLAG(double, weight_decay, 0,
          "decay of all parameters: sgd adds it to the gradients, adamw takes "
          "it from the parameters (PyTorch's AdamW has 0.01 by default)");
ABSL_FLAG(double, adam_beta1, 0.9, "decay of adamw's mean of gradients");
ABSL_FLAG(double, adam_beta2, 0.999,
          "decay of adamw's mean of squared gradients");
ABSL_FLAG(double, adam_epsilon, 1e-8,
          "added by adamw to the root of that mean");
ABSL_FLAG(uint64_t, seed, 0,
          "seed of the first weights, the order of the images, augmentation "
          "and dropout");
ABSL_FLAG(bool, sync_bn, false,
          "normalise with the statistics of the whole batch, over all ranks, "
          "instead of each rank's own part; for networks with batch norm "
          "(lenet has none)");
ABSL_FLAG(std::optional<int>, nproc, std::nullopt,
          "number of ranks; with --device=cuda, -1: one for each GPU of this "
          "host");
ABSL_FLAG(std::string, parallelism, "",
          "single  one rank (the default if nproc is 1)\n"
          "dp      ranks are threads; each takes a block of the batch, as "
          "d2l's split_batch cuts it\n"
          "ddp     ranks are processes; each takes every nproc-th image (the "
          "default for nproc > 1)");
ABSL_FLAG(std::string, device, "cpu",
          "cpu; cuda: each rank computes on a GPU, the ranks of a host take "
          "its GPUs in turn, and NCCL sums the gradients; or auto: cuda if "
          "there is a GPU");
ABSL_FLAG(bool, graphs, true,
          "with --device=cuda, launch each step on a whole batch as one CUDA "
          "graph, after two without, if the ranks' parts are of one size; the "
          "bits are the same");
ABSL_FLAG(std::string, precision, "float32",
          "on GPUs:\n"
          "float32   no rounding of factors\n"
          "tf32      products round their float32 factors to TF32\n"
          "bfloat16  activations and their gradients in bfloat16; parameters, "
          "their gradients and sums in float32\n"
          "float16   the same in float16, with a dynamic loss scale; a step "
          "whose gradients are not finite is skipped");
ABSL_FLAG(std::string, convolution, "auto",
          "auto      Winograd where it is faster, otherwise direct; with "
          "--resume, as in the checkpoint's run\n"
          "direct    never Winograd\n"
          "winograd  Winograd wherever it is possible: kernels of 3x3 at "
          "stride 1 in networks whose channels are multiples of 16; needs "
          "AVX-512 and oneDNN before 3.2");
ABSL_FLAG(bool, deterministic_across_machines, false,
          "use --convolution=direct, which every machine supports; bits still "
          "depend on the instruction set and on the number of threads");
ABSL_FLAG(bool, verbose, false, "also print how each layer is computed");
ABSL_FLAG(int, threads_per_rank, 1, "number of compute threads of each rank");
ABSL_FLAG(int64_t, bucket_kb, 0,
          "sum gradients over the ranks in buckets of about this many KiB, "
          "while backward still runs; 0: on CPUs a sixteenth of all gradients, "
          "but from 256 to 1024 KiB, and 25 MiB on GPUs");
ABSL_FLAG(double, timeout_s, 60,
          "seconds that a rank waits for another rank that is alive; a dead "
          "rank ends the run at once");
ABSL_FLAG(std::string, output_dir, "",
          "write weights.safetensors, which is also the checkpoint, and "
          "metrics.json to this folder after every epoch; an optimizer with "
          "state has a file optimizer.HASH.safetensors beside it");
ABSL_FLAG(std::string, weights, "",
          "read the first weights from this safetensors file, under the names "
          "of the network's source: torchvision's, timm's or d2l's state_dict");
ABSL_FLAG(std::string, resume, "",
          "continue after the epochs of this checkpoint, bit for bit as if the "
          "run had not stopped; --epochs counts those epochs too");

namespace lockstep {
namespace {

constexpr char kProgram[] = "train";

Usage TrainUsage() {
  const std::string what =
      absl::StrCat("model weights=FILE test_samples=N ", kDataFlags);
  return {.command = kProgram,
          .introduction = R"(train [FLAGS]

Trains a network on one or more ranks that share the work of every batch, and
prints its accuracy on the test set after each epoch.

  bazel run //models:train                           one rank
  bazel run //models:train -- --nproc=2 --epochs=1   two processes
  bazel run //models:train -- --nproc=2 --parallelism=dp      two threads
  bazel run //models:train -- --nproc=2 --output_dir=/tmp/run
  bazel run //models:train -- --nproc=2 --epochs=20 \
      --resume=/tmp/run/weights.safetensors          ten epochs more
  bazel run //models:train -- --model=resnet18_d2l --nproc=2 --sync_bn \
      --train_samples=2560 --test_samples=1000 --lr=0.1
  bazel run //models:train -- --model=resnet34 --nproc=2 --workers=1 \
      --dataset=image_folder --data_dir=/tmp/images --augment=standard
  torchrun --no-python --nproc-per-node=2 bazel-bin/models/train/train
  torchrun --no_python --redirects=1 --tee=1 \
      --nproc_per_node=2 bazel-bin/models/train/train      Debian's torchrun
)",
          .sections =
              {{"Network and data:", what},
               {"Images:", kImageFlags},
               {"Training:",
                "epochs batch_size lr optimizer momentum weight_decay "
                "adam_beta1 adam_beta2 adam_epsilon seed sync_bn"},
               {"Ranks and computation:",
                "device precision nproc=1 parallelism=MODE threads_per_rank "
                "graphs "
                "convolution "
                "deterministic_across_machines bucket_kb timeout_s verbose"},
               {"Files:", "output_dir=DIR resume=FILE"}},
          .ending = absl::StrCat("Networks:\n", NetworksHelp(), R"(
Under torchrun --no-python, mpirun, srun or //collectives:launch, on one host or
several, this process is one of the launcher's ranks, and --nproc is not needed.
Ranks on one host meet in the file that LOCKSTEP_RENDEZVOUS names, or otherwise
in a file in the temporary folder. Ranks on several hosts meet at MASTER_ADDR
and MASTER_PORT, with LOCKSTEP_TOKEN (collectives/launch/README.md).

Exit status: 0 on success, 2 for a wrong flag, 1 for any other error; 128 + N
if signal N killed a rank.
)"),
          .aliases = {{"world_size", "nproc"}, kDataAlias}};
}

struct Config {
  int world_size = 1;
  std::optional<RankEnvironment> launched;  // If a launcher started this rank.
  GroupOptions group;
  TrainRunOptions run;
};

absl::Status CheckFlags(int nproc) {
  constexpr int64_t kMany = int64_t{1} << 31;
  LOCKSTEP_RETURN_IF_ERROR(CheckCommonFlags(
      absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_sync_bn), nproc,
      absl::GetFlag(FLAGS_threads_per_rank), absl::GetFlag(FLAGS_timeout_s)));
  if (!absl::GetFlag(FLAGS_weights).empty() &&
      !absl::GetFlag(FLAGS_resume).empty()) {
    return FlagError("weights", absl::GetFlag(FLAGS_weights),
                     "--resume has weights of its own");
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--epochs", absl::GetFlag(FLAGS_epochs), 1, kMany));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--batch_size", absl::GetFlag(FLAGS_batch_size), 1, kMany));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--bucket_kb", absl::GetFlag(FLAGS_bucket_kb), 0, kMany));
  const double rate = absl::GetFlag(FLAGS_lr);
  if (!(rate > 0 && std::isfinite(static_cast<float>(rate)))) {
    return FlagError("lr", rate, "must be a positive number");
  }
  return absl::OkStatus();
}

absl::StatusOr<Sharding> ChooseParallelism(Config& config) {
  std::string mode = absl::GetFlag(FLAGS_parallelism);
  if (mode.empty()) mode = config.world_size == 1 ? "single" : "ddp";
  config.run.parallelism = mode;
  if (mode == "single" && config.world_size != 1) {
    return FlagError("parallelism", mode,
                     absl::StrCat("is for 1 rank, not ", config.world_size));
  }
  if (mode == "dp" && config.launched.has_value()) {
    return FlagError("parallelism", mode,
                     "ranks would be threads, but a launcher started this "
                     "process as a rank");
  }
  if (mode == "dp") return Sharding::kContiguous;
  if (mode == "single" || mode == "ddp") return Sharding::kStrided;
  return FlagError("parallelism", mode, "must be single, dp or ddp");
}

// Reads the flags of the optimizer.
absl::Status ReadOptimizer(OptimizerOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.kind,
      ParseName("--optimizer", absl::GetFlag(FLAGS_optimizer),
                NamedValues<OptimizerKind>{
                    {Name(OptimizerKind::kSgd), OptimizerKind::kSgd},
                    {Name(OptimizerKind::kAdamW), OptimizerKind::kAdamW}}));
  options.momentum = absl::GetFlag(FLAGS_momentum);
  options.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  options.beta1 = absl::GetFlag(FLAGS_adam_beta1);
  options.beta2 = absl::GetFlag(FLAGS_adam_beta2);
  options.epsilon = absl::GetFlag(FLAGS_adam_epsilon);
  const absl::Status status = CheckOptimizer(options);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", status.message()));
}

// Reads --device. A GPU has no choice of convolutions.
absl::Status ReadDevice(TrainRunOptions& run, char* const* argv) {
  absl::string_view why_not;
  if (run.convolution != ConvolutionAlgorithm::kAuto) {
    why_not = "chooses its convolutions itself";
  } else if (run.verbose) {
    why_not = "has nothing to print for --verbose";
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      run.device, ChooseDevice(absl::GetFlag(FLAGS_device), why_not, argv,
                               run.device_note));
  return absl::OkStatus();
}

// Reads --precision, after --device.
absl::Status ReadPrecision(TrainRunOptions& run) {
  using Precision = ConvolutionPrecision;
  NamedValues<Precision> all;
  for (const Precision each : {Precision::kFloat32, Precision::kTf32,
                               Precision::kBFloat16, Precision::kFloat16}) {
    all.emplace_back(Name(each), each);
  }
  const std::string text = absl::GetFlag(FLAGS_precision);
  LOCKSTEP_ASSIGN_OR_RETURN(run.precision, ParseName("--precision", text, all));
  if (run.device == ComputeDevice::kCpu &&
      run.precision != Precision::kFloat32) {
    return FlagError("precision", text,
                     "is for GPUs (--device=cuda); a CPU trains in float32");
  }
  return absl::OkStatus();
}

// Reads --nproc, which is -1 for as many ranks as GPUs. A launcher has decided
// already.
absl::StatusOr<std::optional<int>> ReadNproc(ComputeDevice device,
                                             bool is_launched) {
  const std::optional<int> nproc = absl::GetFlag(FLAGS_nproc);
  if (nproc != -1) return nproc;
  if (is_launched) return std::nullopt;
  if (device == ComputeDevice::kCuda) return GpuCount();
  return FlagError("nproc", *nproc,
                   "is for --device=cuda and a host with GPUs");
}

absl::StatusOr<Config> ReadConfig(std::optional<RankEnvironment> launched,
                                  char* const* argv) {
  Config config;
  config.run.verbose = absl::GetFlag(FLAGS_verbose);
  LOCKSTEP_ASSIGN_OR_RETURN(
      config.run.convolution,
      ChooseConvolution(absl::GetFlag(FLAGS_convolution),
                        absl::GetFlag(FLAGS_deterministic_across_machines)));
  LOCKSTEP_RETURN_IF_ERROR(ReadOptimizer(config.run.trainer.optimizer));
  LOCKSTEP_RETURN_IF_ERROR(ReadDevice(config.run, argv));
  LOCKSTEP_RETURN_IF_ERROR(ReadPrecision(config.run));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> nproc,
                            ReadNproc(config.run.device, launched.has_value()));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlags(nproc.value_or(1)));
  config.world_size = launched ? launched->world_size : nproc.value_or(1);
  if (nproc.value_or(config.world_size) != config.world_size) {
    return FlagError("nproc", *nproc,
                     absl::StrCat("a launcher has started ", config.world_size,
                                  config.world_size == 1 ? " rank" : " ranks"));
  }
  if (launched) config.run.local_rank = launched->local_rank;
  config.launched = std::move(launched);
  config.group.timeout = absl::Seconds(absl::GetFlag(FLAGS_timeout_s));
  config.run.timeout = config.group.timeout;
  TrainRunOptions& run = config.run;
  LOCKSTEP_ASSIGN_OR_RETURN(run.trainer.sharding, ChooseParallelism(config));
  run.model = absl::GetFlag(FLAGS_model);
  run.sync_bn = absl::GetFlag(FLAGS_sync_bn);
  run.epochs = absl::GetFlag(FLAGS_epochs);
  run.graphs = absl::GetFlag(FLAGS_graphs);
  run.threads_per_rank = absl::GetFlag(FLAGS_threads_per_rank);
  run.trainer.batch_size = absl::GetFlag(FLAGS_batch_size);
  run.trainer.learning_rate = static_cast<float>(absl::GetFlag(FLAGS_lr));
  run.trainer.seed = absl::GetFlag(FLAGS_seed);
  run.trainer.bucket_bytes = absl::GetFlag(FLAGS_bucket_kb) << 10;
  LOCKSTEP_ASSIGN_OR_RETURN(DataFlags data, ReadDataFlags(run.trainer.seed));
  run.dataset = std::move(data.dataset);
  run.data_dir = std::move(data.dir);
  run.data = std::move(data.options);
  run.data.test_samples = absl::GetFlag(FLAGS_test_samples);
  run.trainer.evaluation_transform = WithoutAugmentation(data.transform);
  run.trainer.transform = std::move(data.transform);
  run.trainer.loader = std::move(data.loader);
  run.output_dir = ResolveUserPath(absl::GetFlag(FLAGS_output_dir));
  run.resume = ResolveUserPath(absl::GetFlag(FLAGS_resume));
  run.weights = ResolveUserPath(absl::GetFlag(FLAGS_weights));
  return config;
}

// Returns `status`, prefixed with the rank.
absl::Status WithRank(int rank, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("rank ", rank, ": ", status.message()));
}

// Joins the launched run and trains. `environment` says which rank of the run
// this process is.
absl::Status TrainAsLaunchedRank(const RankEnvironment& environment,
                                 const GroupOptions& group,
                                 const TrainRunOptions& options) {
  const auto train = [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                              JoinLaunchedGroup(environment, group));
    // Data is read after joining, so that the group notices at once if this
    // rank fails.
    LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts data, LoadData(options));
    return RunTraining(*communicator, data, options);
  };
  return WithRank(environment.rank, train());
}

// Returns the exit status, or an error of this process.
absl::StatusOr<int> Train(const Config& config,
                          const std::vector<std::string>& arguments) {
  if (config.launched.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(
        TrainAsLaunchedRank(*config.launched, config.group, config.run));
    return 0;
  }
  {
    // Data is read before any rank exists, so that an error is reported once.
    LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts data, LoadData(config.run));
    if (config.run.parallelism != "ddp" || config.world_size == 1) {
      LOCKSTEP_RETURN_IF_ERROR(RunOnThreads(
          config.world_size, config.group, [&](Communicator& communicator) {
            return WithRank(communicator.rank(),
                            RunTraining(communicator, data, config.run));
          }));
      return 0;
    }
  }
  // Each rank is this program again, and calls TrainAsLaunchedRank.
  LaunchOptions options;
  options.nproc = config.world_size;
  options.argv = {OwnProgramPath()};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = {
      {"OMP_NUM_THREADS", absl::StrCat(config.run.threads_per_rank)}};
  // Only rank 0 prints progress, and errors name their rank.
  options.prefix_output = false;
  LOCKSTEP_ASSIGN_OR_RETURN(const LaunchSummary summary, Launch(options));
  const std::string text = FormatSummary(summary);
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
  return ExitStatus(summary);
}

absl::StatusOr<int> Run(std::span<char* const> argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::optional<RankEnvironment> launched,
                            ReadRankEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(const Config config,
                            ReadConfig(std::move(launched), argv.data()));
  LOCKSTEP_RETURN_IF_ERROR(PrepareRun(config.run));
  absl::StatusOr<int> result =
      Train(config, std::vector<std::string>(argv.begin() + 1, argv.end()));
  if (!absl::IsOutOfRange(result.status())) return result;
  // A launched rank's error begins with the rank, even if it names a flag. An
  // example is a number of samples that the data set does not have.
  Fail(kProgram, result.status());
  return kUsageError;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::CommandMain(
      lockstep::TrainUsage(), {argv, static_cast<size_t>(argc)}, lockstep::Run);
}
