// The command `scaling`: how training throughput scales with ranks.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/report.h"
#include "models/data/dataset.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, world_sizes, "",
          "numbers of ranks; default: powers of two up to the number of cores, "
          "or of a launcher's ranks, and that number");
ABSL_FLAG(std::string, mode, "strong,weak",
          "strong: a step is --batch_size images in all;\n"
          "weak: on each rank");
ABSL_FLAG(std::string, backend, "processes",
          "what a rank is: processes, threads");
ABSL_FLAG(std::string, model, "lenet", "lenet");
ABSL_FLAG(std::string, dataset, "fashion_mnist", "fashion_mnist");
ABSL_FLAG(std::string, data_dir, lockstep::kFashionMnistDir,
          "the folder of the data set's files; default: where the package "
          "dataset-fashion-mnist installs them");
ABSL_FLAG(int64_t, batch_size, 256, "images in a step: see --mode");
ABSL_FLAG(int32_t, rounds, 5,
          "how often each configuration is run; fewer if --seconds is too "
          "short for that and --steps=0");
ABSL_FLAG(int32_t, steps, 0, "timed steps in a run; 0: as --seconds allows");
ABSL_FLAG(int32_t, warmup_steps, 5, "steps before them");
ABSL_FLAG(double, seconds, 40,
          "how long all should take, if --steps=0; no fewer than 10 steps are "
          "timed in a run, however long they take");
ABSL_FLAG(std::string, worker, "",
          "internal: be a rank, for the driver that listens there");

namespace lockstep::benchmarks {
namespace {

constexpr char kName[] = "scaling";
constexpr char kFolder[] = "lockstep-scaling";

Usage ScalingUsage() {
  return {
      .command = kName,
      .introduction = R"(scaling [FLAGS]

Trains a network with 1, 2, 4, ... ranks, one thread each, and reports images/s,
speed-up, efficiency, step times and where a step goes. Prints a table and
writes a report.
)",
      .sections = {{"",
                    "world_sizes=1,2,4 mode batch_size backend model dataset "
                    "data_dir=DIR rounds steps warmup_steps seconds"},
                   {"", kOutputFlags}},
      .ending =
          R"(Under torchrun, mpirun, srun or //collectives:launch, on one host or several,
the ranks are theirs, and rank 0 alone prints and writes.

Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else.
)",
      .words = OutputWords(kName, kFolder)};
}

absl::StatusOr<ScalingSettings> SettingsFromFlags(int cores) {
  ScalingSettings settings = {.world_sizes = DefaultWorldSizes(cores)};
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
  settings.seconds = absl::GetFlag(FLAGS_seconds);
  LOCKSTEP_RETURN_IF_ERROR(Validate(settings));
  return settings;
}

// Finds out now what would otherwise fail in every rank, or at the end.
absl::Status CheckData(const ScalingSettings& settings) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(settings.data_dir));
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    if (configuration.global_batch <= data.train.size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size: a step of ", configuration.global_batch, " images, at ",
        report::Counted(configuration.world_size, "rank"),
        ", is more than the ", data.train.size, " images in ",
        settings.data_dir));
  }
  return absl::OkStatus();
}

void WarnOfOversubscription(const ScalingSettings& settings, int cores) {
  for (const int world_size : settings.world_sizes) {
    if (world_size <= cores) continue;
    std::fprintf(stderr,
                 "scaling: warning: %d ranks on %s take turns; their "
                 "numbers say little\n",
                 world_size, report::Counted(cores, "core").c_str());
  }
}

// cores: of all hosts that ranks are on.
absl::Status Measure(const ScalingSettings& settings, int cores,
                     const ReportOutput& output, const report::Origin& origin) {
  WarnOfOversubscription(settings, cores);
  const ScalingProgress progress = [](absl::string_view text) {
    std::fprintf(stderr, "%s", std::string(text).c_str());
  };
  LOCKSTEP_ASSIGN_OR_RETURN(ScalingReport report,
                            MeasureScaling(settings, cores, RunOnce, progress));
  report.origin = origin;
  const report::Document document = ScalingDocument(report);
  Print(report::TerminalText(document) + "\n");
  return output.Write(document);
}

absl::Status RunDriver(std::span<char* const> argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<LaunchedRun> launched,
                            LaunchedRun::Join());
  if (launched != nullptr && !launched->is_driver()) return launched->Serve();
  const report::Origin origin = report::OriginOf("//benchmarks:scaling", argv);
  const int cores =
      launched == nullptr ? origin.machine.cores : launched->cores();
  LOCKSTEP_ASSIGN_OR_RETURN(
      const ScalingSettings settings,
      SettingsFromFlags(launched == nullptr ? cores : launched->world_size()));
  LOCKSTEP_RETURN_IF_ERROR(CheckData(settings));
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, kFolder));
  return Measure(settings, cores, output, origin);
}

absl::Status RunWorker(const std::string& listener) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int> world_sizes,
                            ParseWorldSizes(absl::GetFlag(FLAGS_world_sizes)));
  LOCKSTEP_ASSIGN_OR_RETURN(const RankKind ranks,
                            ParseRankKind(absl::GetFlag(FLAGS_backend)));
  return ServeRun(listener, ranks, world_sizes[0],
                  absl::GetFlag(FLAGS_data_dir));
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
