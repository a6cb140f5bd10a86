// The command `scaling`: how training throughput scales with ranks.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/command.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/scaling/html.h"
#include "benchmarks/scaling/json.h"
#include "benchmarks/scaling/measure.h"
#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/scaling/run.h"
#include "benchmarks/scaling/table.h"
#include "models/data/dataset.h"
#include "report/machine.h"
#include "report/output_files.h"

ABSL_FLAG(std::string, world_sizes, "", "see kUsage");
ABSL_FLAG(std::string, mode, "strong,weak", "see kUsage");
ABSL_FLAG(std::string, backend, "processes", "see kUsage");
ABSL_FLAG(std::string, model, "lenet", "see kUsage");
ABSL_FLAG(std::string, dataset, "fashion_mnist", "see kUsage");
ABSL_FLAG(std::string, data_dir, lockstep::kFashionMnistDir, "see kUsage");
ABSL_FLAG(int64_t, batch_size, 256, "see kUsage");
ABSL_FLAG(int32_t, rounds, 5, "see kUsage");
ABSL_FLAG(int32_t, steps, 0, "see kUsage");
ABSL_FLAG(int32_t, warmup_steps, 5, "see kUsage");
ABSL_FLAG(double, seconds, 40, "see kUsage");
ABSL_FLAG(std::string, output_dir, "lockstep-scaling", "see kUsage");
ABSL_FLAG(
    std::string, worker, "",
    "internal: be a rank of one run, and write the result to this folder");

namespace lockstep::benchmarks {
namespace {

constexpr char kUsage[] = R"(scaling [FLAGS]

Trains a network with 1, 2, 4, ... ranks, one thread each, and reports images/s,
speed-up, efficiency, step times and where a step goes. Prints a table; writes
scaling.json and scaling.html, which opens offline.

  --world_sizes=1,2,4      numbers of ranks; default: powers of two up to the
                           number of cores, and that number
  --mode=strong,weak       strong: a step is --batch_size images in all;
                           weak: on each rank
  --batch_size=256
  --backend=processes      what a rank is: processes, threads
  --model=lenet            lenet
  --dataset=fashion_mnist  fashion_mnist
  --data_dir=DIR           the folder of the data set's files; default: where
                           the package dataset-fashion-mnist installs them
  --rounds=5               how often each configuration is run; fewer if
                           --seconds is too short for that and --steps=0
  --steps=0                timed steps in a run; 0: as --seconds allows
  --warmup_steps=5         steps before them
  --seconds=40             how long all should take, if --steps=0; no fewer than
                           10 steps are timed in a run, however long they take
  --output_dir=DIR         where to write; default: lockstep-scaling in the
                           current folder

Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else.
)";

constexpr char kName[] = "scaling";

absl::StatusOr<ScalingSettings> SettingsFromFlags(int cores) {
  ScalingSettings settings;
  settings.world_sizes = DefaultWorldSizes(cores);
  if (!absl::GetFlag(FLAGS_world_sizes).empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        settings.world_sizes,
        ParseWorldSizes(absl::GetFlag(FLAGS_world_sizes)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(settings.modes,
                            ParseModes(absl::GetFlag(FLAGS_mode)));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.ranks,
                            ParseRankKind(absl::GetFlag(FLAGS_backend)));
  settings.model = absl::GetFlag(FLAGS_model);
  settings.dataset = absl::GetFlag(FLAGS_dataset);
  settings.data_dir = UserPath(absl::GetFlag(FLAGS_data_dir));
  settings.batch_size = absl::GetFlag(FLAGS_batch_size);
  settings.rounds = absl::GetFlag(FLAGS_rounds);
  settings.steps = absl::GetFlag(FLAGS_steps);
  settings.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckSeconds("--seconds", absl::GetFlag(FLAGS_seconds)));
  return settings;
}

// The command of a process that is part of a run; WorkerSpec reads it back.
std::vector<std::string> WorkerCommand(const RunSpec& spec,
                                       const std::string& folder) {
  std::error_code error;
  const std::string self =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  return {error ? "/proc/self/exe" : self,
          absl::StrCat("--worker=", folder),
          "--mode=strong",
          absl::StrCat("--world_sizes=", spec.configuration.world_size),
          absl::StrCat("--batch_size=", spec.configuration.global_batch),
          absl::StrCat("--backend=", std::string(RankKindName(spec.ranks))),
          absl::StrCat("--model=", spec.model),
          absl::StrCat("--dataset=", spec.dataset),
          absl::StrCat("--data_dir=", spec.data_dir),
          absl::StrCat("--steps=", spec.steps),
          absl::StrCat("--warmup_steps=", spec.warmup_steps)};
}

RunSpec WorkerSpec(const ScalingSettings& settings) {
  return {.configuration = ConfigurationOf(settings, ScalingMode::kStrong,
                                           settings.world_sizes[0]),
          .ranks = settings.ranks,
          .model = settings.model,
          .dataset = settings.dataset,
          .data_dir = settings.data_dir,
          .steps = settings.steps,
          .warmup_steps = settings.warmup_steps};
}

// Finds out now what would otherwise fail in every rank, or at the end.
absl::Status CheckData(const ScalingSettings& settings) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(settings.data_dir));
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    if (configuration.global_batch <= data.train.size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--batch_size: a step of ", configuration.global_batch,
                     " images, at ", configuration.world_size,
                     configuration.world_size == 1 ? " rank" : " ranks",
                     ", is more than the ", data.train.size, " images in ",
                     settings.data_dir));
  }
  return absl::OkStatus();
}

void WarnOfOversubscription(const ScalingSettings& settings, int cores) {
  for (const int world_size : settings.world_sizes) {
    if (world_size <= cores) continue;
    std::fprintf(stderr,
                 "scaling: warning: %d ranks on %d %s take turns; their "
                 "numbers say little\n",
                 world_size, cores, cores == 1 ? "core" : "cores");
  }
}

absl::Status WriteReport(const ScalingReport& report,
                         const std::string& folder) {
  const std::string json = folder + "/scaling.json";
  const std::string html = folder + "/scaling.html";
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(json, FormatScalingJson(report)));
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(html, FormatScalingHtml(report)));
  std::printf("%s\nWrote %s\nWrote %s\n", FormatScalingTable(report).c_str(),
              json.c_str(), html.c_str());
  return absl::OkStatus();
}

absl::Status Measure(const ScalingSettings& settings, const Machine& machine,
                     const std::string& command) {
  const std::string folder = UserPath(absl::GetFlag(FLAGS_output_dir));
  LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(folder));
  WarnOfOversubscription(settings, machine.cores);
  const ScalingRunner run = [](const RunSpec& spec) {
    return RunOnce(spec, [&spec](const std::string& result_folder) {
      return WorkerCommand(spec, result_folder);
    });
  };
  const ScalingProgress progress = [](absl::string_view text) {
    std::fprintf(stderr, "%s", std::string(text).c_str());
  };
  LOCKSTEP_ASSIGN_OR_RETURN(
      ScalingReport report,
      MeasureScaling(
          settings,
          {.seconds = absl::GetFlag(FLAGS_seconds), .cores = machine.cores},
          run, progress));
  report.machine = machine;
  report.command = command;
  report.commit = CommitText();
  report.created = TimeStamp();
  return WriteReport(report, folder);
}

int Main(std::span<char* const> argv) {
  const std::optional<int> ended = BeginCommand(kName, kUsage, argv);
  if (ended.has_value()) return *ended;
  const Machine machine = DescribeMachine();
  const absl::StatusOr<ScalingSettings> settings =
      SettingsFromFlags(machine.cores);
  if (!settings.ok()) {
    Fail(kName, settings.status());
    return kUsageError;
  }
  if (const std::string folder = absl::GetFlag(FLAGS_worker); !folder.empty()) {
    const absl::Status status = RunWorker(WorkerSpec(*settings), folder);
    return status.ok() ? 0 : Fail(kName, status);
  }
  absl::Status status = CheckData(*settings);
  if (status.ok())
    status =
        Measure(*settings, machine, CommandText("//benchmarks:scaling", argv));
  return status.ok() ? 0 : Fail(kName, status);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::benchmarks::Main({argv, static_cast<size_t>(argc)});
}
