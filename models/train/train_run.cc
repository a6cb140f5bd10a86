#include "models/train/train_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/catch_bad_alloc.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/cuda/precision.h"
#include "models/data/dataset.h"
#include "models/data/load_dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/train/checkpoint.h"
#include "models/train/data_parallel.h"
#include "models/train/same_data.h"
#include "models/train/trainer.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t kSumsPerEpoch = 10;
constexpr absl::Duration kInterval = absl::Seconds(1);

// Returns "step  12/235", with `done` as wide as `total`, so that lines align.
std::string Counter(const char* what, int64_t done, int64_t total) {
  const int width = static_cast<int>(absl::StrCat(total).size());
  return absl::StrFormat("%s %*d/%d", what, width, done, total);
}

Json EpochJson(const EpochSummary& summary) {
  Json epoch = {
      {"epoch", summary.epoch + 1},
      {"train_loss", summary.train.mean_loss()},
      {"train_accuracy", summary.train.accuracy()},
      {"test_loss", summary.test.mean_loss()},
      {"test_accuracy", summary.test.accuracy()},
      {"train_samples", summary.train.samples},
      {"test_samples", summary.test.samples},
      {"images_per_second", summary.images_per_second()},
      {"train_seconds", absl::ToDoubleSeconds(summary.train_time)},
      {"compute_seconds", absl::ToDoubleSeconds(summary.times.compute)},
      {"exposed_communication_seconds",
       absl::ToDoubleSeconds(summary.times.exposed_communication)},
      {"data_wait_seconds", absl::ToDoubleSeconds(summary.times.data_wait)},
  };
  if (summary.skipped_steps > 0) epoch["skipped_steps"] = summary.skipped_steps;
  return epoch;
}

// Returns the double with the fewest digits that rounds to `value`.
double Shortest(float value) {
  double shortest = 0;
  return absl::SimpleAtod(absl::StrCat(value), &shortest) ? shortest : value;
}

Json OptimizerJson(const OptimizerOptions& options) {
  Json json = {{"optimizer", Name(options.kind)}};
  if (options.kind == OptimizerKind::kSgd) {
    json["momentum"] = options.momentum;
    json["weight_decay"] = options.weight_decay;
  } else {
    json["weight_decay"] = options.weight_decay;
    json["adam_beta1"] = options.beta1;
    json["adam_beta2"] = options.beta2;
    json["adam_epsilon"] = options.epsilon;
  }
  return json;
}

Json RunJson(const TrainRunOptions& options, const DatasetParts& data,
             int world_size, ConvolutionAlgorithm convolution) {
  Json json = {
      {"model", options.model},
      {"sync_bn", options.sync_bn},
      {"dataset", options.dataset},
      {"train_samples", data.train->size()},
      {"test_samples", data.test->size()},
      {"parallelism", options.parallelism},
      {"world_size", world_size},
      {"device", Name(options.device)},
      {"precision", Name(options.precision)},
      {"threads_per_rank", options.threads_per_rank},
      {"convolution",
       options.device == ComputeDevice::kCuda ? "cudnn" : Name(convolution)},
      {"batch_size", options.trainer.batch_size},
      {"lr", Shortest(options.trainer.learning_rate)},
  };
  json.update(OptimizerJson(options.trainer.optimizer));
  json["seed"] = options.trainer.seed;
  json["epochs"] = Json::array();
  return json;
}

// Returns the earlier epochs from metrics.json in output_dir, up to the
// checkpoint's last epoch. Returns none unless the checkpoint to resume from is
// in output_dir and the file is of the same model and seed. `run`: the result
// of RunJson.
Json EarlierEpochs(const TrainRunOptions& options, const Json& run,
                   int64_t epochs) {
  Json earlier = Json::array();
  if (options.resume.empty() || options.output_dir.empty()) return earlier;
  std::error_code error;
  const auto checkpoint = std::filesystem::absolute(options.resume, error);
  if (!std::filesystem::equivalent(checkpoint.parent_path(), options.output_dir,
                                   error)) {
    return earlier;
  }
  const Json old =
      Json::parse(ReadFile(absl::StrCat(options.output_dir, "/", kMetricsName))
                      .value_or(""),
                  /*cb=*/nullptr, /*allow_exceptions=*/false);
  const auto has = [](const Json& json, const char* key, const Json& value) {
    return json.is_object() && json.contains(key) && json[key] == value;
  };
  if (!has(old, "model", run["model"]) || !has(old, "seed", run["seed"]) ||
      !old.contains("epochs")) {
    return earlier;
  }
  for (const Json& epoch : old["epochs"]) {
    if (epoch.is_object() && epoch.contains("epoch") &&
        epoch["epoch"].is_number_integer() && epoch["epoch"] <= epochs) {
      earlier.push_back(epoch);
    }
  }
  return earlier;
}

// Runs one epoch and its evaluation.
absl::StatusOr<EpochSummary> RunEpoch(Trainer& trainer, int64_t epoch,
                                      const DatasetParts& data,
                                      TrainingProgress& progress) {
  EpochSummary summary;
  summary.epoch = epoch;
  absl::Status step_status;
  const Clock::time_point start = Clock::now();
  const absl::StatusOr<Metrics> train =
      trainer.TrainEpoch(epoch, [&](const StepReport& report) {
        summary.times.compute += report.times.compute;
        summary.times.exposed_communication +=
            report.times.exposed_communication;
        summary.times.data_wait += report.times.data_wait;
        summary.skipped_steps += report.skipped_steps;
        step_status = progress.OnStep(report);
        return step_status.ok();
      });
  LOCKSTEP_RETURN_IF_ERROR(step_status);  // The cause, if both failed.
  LOCKSTEP_ASSIGN_OR_RETURN(summary.train, train);
  summary.train_time = absl::FromChrono(Clock::now() - start);
  LOCKSTEP_ASSIGN_OR_RETURN(summary.test, trainer.Evaluate(*data.test));
  progress.OnEpoch(summary);
  return summary;
}

// Writes the epoch to output_dir: the model, and the metrics, which it appends
// to `report` (a result of RunJson).
absl::Status WriteFiles(const TrainRunOptions& options,
                        ConvolutionAlgorithm convolution,
                        const EpochSummary& summary, const Network& network,
                        RankSteps& steps, Json& report) {
  if (options.output_dir.empty()) return absl::OkStatus();
  report["epochs"].push_back(EpochJson(summary));
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  LOCKSTEP_RETURN_IF_ERROR(steps.Read(parameters, buffers));
  LOCKSTEP_ASSIGN_OR_RETURN(const OptimizerState state, steps.ReadOptimizer());
  LOCKSTEP_RETURN_IF_ERROR(
      SaveCheckpoint(absl::StrCat(options.output_dir, "/", kCheckpointName),
                     {.model = options.model,
                      .seed = options.trainer.seed,
                      .epochs = summary.epoch + 1,
                      .convolution = convolution,
                      .optimizer = options.trainer.optimizer},
                     parameters, buffers, state));
  return ReplaceFile(absl::StrCat(options.output_dir, "/", kMetricsName),
                     report.dump(/*indent=*/2) + "\n");
}

// Returns ", adamw" or ", momentum 0.9", for example, or "" for plain SGD.
std::string OptimizerText(const OptimizerOptions& options) {
  std::string text;
  if (options.kind != OptimizerKind::kSgd) {
    absl::StrAppend(&text, ", ", Name(options.kind));
  }
  if (options.momentum > 0) {
    absl::StrAppend(&text, ", momentum ", options.momentum);
  }
  if (options.weight_decay > 0) {
    absl::StrAppend(&text, ", weight decay ", options.weight_decay);
  }
  return text;
}

void Announce(const TrainRunOptions& options, const DatasetParts& data,
              int world_size) {
  std::cout << absl::StrCat(
      "training ", options.model, " on ", options.dataset, ": ",
      data.train->size(), " images, ", world_size,
      world_size == 1 ? " rank" : " ranks",
      options.device == ComputeDevice::kCuda ? " on GPUs" : "",
      options.precision == ConvolutionPrecision::kFloat32
          ? ""
          : absl::StrCat(" in ", Name(options.precision)),
      " (", options.parallelism, ")", options.sync_bn ? ", SyncBN" : "",
      ", global batch ", options.trainer.batch_size, ", learning rate ",
      options.trainer.learning_rate, OptimizerText(options.trainer.optimizer),
      ", seed ", options.trainer.seed, "\n");
  if (!data.skipped.empty()) std::cout << SkippedText(data.skipped) << "\n";
  std::cout << std::flush;
  if (!options.device_note.empty()) {
    std::cerr << absl::StrCat("train: ", options.device_note, "\n");
  }
}

// Checks that the checkpoint to resume from matches the flags.
absl::Status CheckResume(const TrainRunOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo info,
                            ReadInfo(options.resume));
  if (info.model != options.model) {
    return FlagError("model", options.model,
                     absl::StrCat(options.resume, " holds a ", info.model));
  }
  if (info.seed != options.trainer.seed) {
    return FlagError("seed", options.trainer.seed,
                     absl::StrCat(options.resume,
                                  " comes from a run with seed ", info.seed));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckSameOptimizer(options.resume, info, options.trainer.optimizer));
  if (info.epochs >= options.epochs) {
    return FlagError("epochs", options.epochs,
                     absl::StrCat(options.resume, " has finished ", info.epochs,
                                  " already"));
  }
  return absl::OkStatus();
}

// Returns the network for the data's images and classes.
absl::StatusOr<Network> NetworkFor(const TrainRunOptions& options,
                                   const DatasetParts& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const NetworkInput input,
                            InputOf(*data.train, options.trainer.transform));
  absl::StatusOr<Network> network = CreateNetwork(options.model, input);
  if (network.ok()) return network;
  return FlagError("model", options.model, network.status().message());
}

// The file's part of a run's beginning besides the weights; empty unless the
// run resumes.
struct FirstState {
  CheckpointInfo info;
  OptimizerState optimizer;
};

// Reads the first weights of the run, which are in a file. If the file is a
// checkpoint to resume from, returns its info and the optimizer's state.
absl::StatusOr<FirstState> ReadFirstWeights(const TrainRunOptions& options,
                                            Parameters& parameters,
                                            Buffers& buffers) {
  FirstState first;
  if (!options.resume.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        first.info, LoadCheckpoint(options.resume, parameters, buffers));
    LOCKSTEP_ASSIGN_OR_RETURN(
        first.optimizer,
        LoadOptimizerState(options.resume, first.info, parameters));
    return first;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors content,
                            ReadSafetensors(options.weights));
  LOCKSTEP_RETURN_IF_ERROR(
      LoadTensors(content.tensors, options.weights, parameters, buffers));
  return first;
}

// Gives the replica the run's first weights if they are in a file.
absl::StatusOr<CheckpointInfo> LoadFirstWeights(const TrainRunOptions& options,
                                                const Network& network,
                                                RankSteps& steps) {
  if (options.resume.empty() && options.weights.empty()) {
    return CheckpointInfo();
  }
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  LOCKSTEP_ASSIGN_OR_RETURN(FirstState first,
                            ReadFirstWeights(options, parameters, buffers));
  LOCKSTEP_RETURN_IF_ERROR(steps.Write(parameters, buffers));
  if (!options.resume.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(steps.WriteOptimizer(first.optimizer));
  }
  return std::move(first.info);
}

// Checks that all ranks have chosen the same kind of device (--device=auto).
absl::Status CheckSameDevice(Communicator& communicator, ComputeDevice device) {
  int64_t gpus = device == ComputeDevice::kCuda ? 1 : 0;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span(&gpus, 1)));
  if (gpus == 0 || gpus == communicator.world_size()) return absl::OkStatus();
  return FlagError(
      "device", "auto",
      absl::StrCat("only ", gpus, " of ", communicator.world_size(),
                   " ranks have a GPU"));
}

// Returns how the run computes convolutions, the same on every rank: direct if
// some rank has no Winograd for the network. Error: kUnimplemented if a
// checkpoint to resume from used Winograd and some rank has none.
absl::StatusOr<ConvolutionAlgorithm> AgreeOnConvolution(
    Communicator& communicator, const TrainRunOptions& options,
    const Network& network) {
  if (options.device == ComputeDevice::kCuda) {
    return ConvolutionAlgorithm::kDirect;
  }
  ConvolutionAlgorithm wanted = options.convolution;
  const bool goes_on =
      !options.resume.empty() && wanted == ConvolutionAlgorithm::kAuto;
  if (goes_on) {
    LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo info,
                              ReadInfo(options.resume));
    wanted = info.convolution;
  }
  if (wanted == ConvolutionAlgorithm::kDirect) return wanted;
  int64_t without = ResolveConvolution(network, wanted) != wanted ? 1 : 0;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span(&without, 1)));
  if (without == 0) return wanted;
  if (!goes_on) return ConvolutionAlgorithm::kDirect;
  return absl::UnimplementedError(absl::StrCat(
      options.resume,
      " comes from a run with Winograd convolutions, which some "
      "rank does not support; --convolution=direct continues without them"));
}

// Prints how each layer of a rank's part of the batch is computed.
absl::Status PrintAlgorithms(CpuReplica& model, int64_t n) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> algorithms,
                            model.Algorithms(n));
  std::cout << absl::StrCat("the layout of activations is ",
                            Name(model.layout()),
                            "; algorithms of layers that have a choice, for ",
                            n, n == 1 ? " image" : " images", ":\n");
  for (size_t i = 0; i < algorithms.size(); ++i) {
    if (algorithms[i].empty()) continue;
    std::cout << absl::StrFormat(
        "  %-40s %s\n", model.network().operations()[i].name, algorithms[i]);
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

// A rank's replica. Members are destroyed from the last to the first.
struct Replica {
  std::unique_ptr<Model> model;  // Null if `steps` have their own.
  std::unique_ptr<RankSteps> steps;
};

// Creates the model of a rank on a CPU. If asked for, prints how the CPU
// computes it.
absl::StatusOr<std::unique_ptr<Model>> CreateCpuModel(
    const Communicator& communicator, const TrainRunOptions& options,
    ConvolutionAlgorithm convolution, const Network& network) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuReplica> model,
      CreateCpuReplica(
          network, {.seed = options.trainer.seed, .convolution = convolution}));
  if (options.verbose && communicator.rank() == 0) {
    const int64_t world_size = communicator.world_size();
    LOCKSTEP_RETURN_IF_ERROR(PrintAlgorithms(
        *model, (options.trainer.batch_size + world_size - 1) / world_size));
  }
  return model;
}

// Creates the rank's model and its steps. If ranks share a GPU in a way that
// NCCL does not support, the hosts sum the gradients.
absl::StatusOr<Replica> CreateReplica(Communicator& communicator,
                                      const TrainRunOptions& options,
                                      ConvolutionAlgorithm convolution,
                                      const Network& network) {
  const uint64_t seed = options.trainer.seed;
  const int local_rank = options.local_rank.value_or(communicator.rank());
  Replica replica;
  if (options.device == ComputeDevice::kCuda) {
    const int64_t world_size = communicator.world_size();
    const int64_t batch_size = options.trainer.batch_size;
    const int64_t shard = (batch_size + world_size - 1) / world_size;
    std::string shared;
    LOCKSTEP_ASSIGN_OR_RETURN(
        replica.steps,
        CreateGpuSteps(
            communicator, local_rank, network,
            {.seed = seed,
             .bucket_bytes = options.trainer.bucket_bytes,
             .sync_bn = options.sync_bn,
             .precision = options.precision,
             .optimizer = options.trainer.optimizer,
             .largest_shard = std::max(shard, Trainer::kEvaluationBatch),
             .graph_samples =
                 options.graphs ? GraphSamples(batch_size, world_size) : 0,
             .timeout = options.timeout},
            shared));
    if (replica.steps != nullptr) return replica;
    if (options.precision == ConvolutionPrecision::kFloat16) {
      return FlagError("precision", Name(options.precision),
                       absl::StrCat("needs a GPU for each rank: ", shared));
    }
    if (communicator.rank() == 0) {
      std::cerr << absl::StrCat("train: the hosts sum the gradients: ", shared,
                                "\n");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(
        replica.model,
        CreateGpuModel(network, seed, local_rank, options.precision));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(
        replica.model,
        CreateCpuModel(communicator, options, convolution, network));
  }
  replica.steps = std::make_unique<ModelSteps>(communicator, *replica.model,
                                               options.trainer.bucket_bytes,
                                               options.trainer.optimizer);
  return replica;
}

absl::Status Train(Communicator& communicator, const DatasetParts& data,
                   const TrainRunOptions& options) {
  SetComputeThreads(options.threads_per_rank);
  LOCKSTEP_RETURN_IF_ERROR(CheckSameDevice(communicator, options.device));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameData(communicator, data));
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network, NetworkFor(options, data));
  LOCKSTEP_ASSIGN_OR_RETURN(const ConvolutionAlgorithm convolution,
                            AgreeOnConvolution(communicator, options, network));
  if (communicator.rank() == 0) {
    Announce(options, data, communicator.world_size());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Replica replica,
      CreateReplica(communicator, options, convolution, network));
  RankSteps& steps = *replica.steps;
  LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo resumed,
                            LoadFirstWeights(options, network, steps));
  TrainerOptions trainer_options = options.trainer;
  trainer_options.reports_per_epoch = kSumsPerEpoch;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(communicator, steps, *data.train, trainer_options));
  if (communicator.rank() == 0 && !trainer->warning().empty()) {
    std::cerr << absl::StrCat("train: warning: ", trainer->warning(), "\n");
  }
  // The group is declared after the steps, which own the reducer.
  std::unique_ptr<Communicator> batch_norm_group;
  if (options.sync_bn && replica.model != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        batch_norm_group, SynchroniseBatchNorm(communicator, *replica.model));
  }
  TrainingProgress progress(communicator, options.epochs, std::cout,
                            isatty(STDOUT_FILENO) == 1);
  Json report = RunJson(options, data, communicator.world_size(), convolution);
  if (communicator.rank() == 0) {
    report["epochs"] = EarlierEpochs(options, report, resumed.epochs);
  }
  for (int64_t epoch = resumed.epochs; epoch < options.epochs; ++epoch) {
    LOCKSTEP_ASSIGN_OR_RETURN(const EpochSummary summary,
                              RunEpoch(*trainer, epoch, data, progress));
    if (communicator.rank() == 0) {
      LOCKSTEP_RETURN_IF_ERROR(
          WriteFiles(options, convolution, summary, network, steps, report));
    }
  }
  // No rank exits before all are done, because an exit would look like a death.
  return communicator.Barrier();
}

}  // namespace

TrainingProgress::TrainingProgress(Communicator& communicator, int64_t epochs,
                                   std::ostream& out, bool rewrite)
    : communicator_(communicator),
      epochs_(epochs),
      out_(out),
      rewrite_(rewrite) {}

absl::Status TrainingProgress::OnStep(const StepReport& report) {
  shard_ += report.shard_metrics;
  wall_ += report.wall;
  const int64_t done = report.step + 1;
  const int64_t interval =
      ReportInterval(report.steps_per_epoch, kSumsPerEpoch);
  if (done % interval != 0) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum,
                            AllReduceMetrics(communicator_, shard_));
  shard_ = Metrics();
  unprinted_ += sum;
  if (communicator_.rank() == 0 && (!printed_ || wall_ >= kInterval)) {
    Print(report, unprinted_);
    unprinted_ = Metrics();
    wall_ = absl::ZeroDuration();
    printed_ = true;
  }
  return absl::OkStatus();
}

void TrainingProgress::Print(const StepReport& report, const Metrics& sum) {
  const std::string line = absl::StrFormat(
      "%s  %s  loss %.4f  accuracy %.3f  %.0f images/s",
      Counter("epoch", report.epoch + 1, epochs_),
      Counter("step", report.step + 1, report.steps_per_epoch), sum.mean_loss(),
      sum.accuracy(),
      static_cast<double>(sum.samples) / absl::ToDoubleSeconds(wall_));
  // The cursor waits at the start of the line, so that the next output, even an
  // error, overwrites the line.
  out_ << (rewrite_ ? absl::StrCat("\x1b[2K", line, "\r")
                    : absl::StrCat(line, "\n"))
       << std::flush;
}

void TrainingProgress::OnEpoch(const EpochSummary& summary) {
  shard_ = Metrics();
  unprinted_ = Metrics();
  wall_ = absl::ZeroDuration();
  if (communicator_.rank() != 0) return;
  out_ << (rewrite_ ? "\x1b[2K" : "")
       << absl::StrFormat(
              "%s  loss %.4f  accuracy %.3f  test accuracy %.4f  "
              "%.0f images/s  %.1f s  data %.1f%%%s\n",
              Counter("epoch", summary.epoch + 1, epochs_),
              summary.train.mean_loss(), summary.train.accuracy(),
              summary.test.accuracy(), summary.images_per_second(),
              absl::ToDoubleSeconds(summary.train_time),
              100 * summary.data_share(),
              summary.skipped_steps == 0
                  ? ""
                  : absl::StrCat("  ", summary.skipped_steps,
                                 summary.skipped_steps == 1 ? " step skipped"
                                                            : " steps skipped"))
       << std::flush;
}

absl::StatusOr<DatasetParts> LoadData(const TrainRunOptions& options) {
  return CatchBadAlloc([&]() -> absl::StatusOr<DatasetParts> {
    LOCKSTEP_ASSIGN_OR_RETURN(
        DatasetParts data,
        LoadDataset(options.dataset, options.data_dir, options.data));
    if (data.test == nullptr || data.test->size() == 0) {
      return FlagError("dataset", options.dataset,
                       "has no images to test with");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Network network, NetworkFor(options, data));
    if (options.resume.empty() && options.weights.empty()) return data;
    // Without a seed, CreateParameters draws no first values: drawing takes
    // seconds in large networks.
    Parameters parameters = CreateParameters(network);
    Buffers buffers = CreateBuffers(network);
    LOCKSTEP_RETURN_IF_ERROR(
        ReadFirstWeights(options, parameters, buffers).status());
    return data;
  });
}

absl::Status PrepareRun(const TrainRunOptions& options) {
  if (!options.resume.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(
        CatchBadAlloc([&] { return CheckResume(options); }));
  }
  if (options.output_dir.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options.output_dir, error);
  if (!std::filesystem::is_directory(options.output_dir, error)) {
    return FlagError("output_dir", options.output_dir,
                     "is not a folder and cannot be created");
  }
  return absl::OkStatus();
}

absl::Status RunTraining(Communicator& communicator, const DatasetParts& data,
                         const TrainRunOptions& options) {
  return CatchBadAlloc([&] { return Train(communicator, data, options); });
}

}  // namespace lockstep
