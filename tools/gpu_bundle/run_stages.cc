// The command behind run.sh: runs a suite of stages within a budget.
#include <gnu/libc-version.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/subprocess.h"
#include "report/document.h"
#include "report/write.h"
#include "tools/gpu_bundle/host.h"
#include "tools/gpu_bundle/pack.h"
#include "tools/gpu_bundle/stages.h"
#include "tools/gpu_bundle/training_bars.h"

ABSL_FLAG(
    std::string, suite, "all",
    "the stages to run: correct (every test of GPU code, NCCL with 1 to 3 "
    "ranks on one GPU and with one rank on each of several GPUs, "
    "compute-sanitizer if there is one), kernels (benchmarks of batch norm "
    "and all-reduce, next to PyTorch if there is one), train (the trainer, and "
    "training steps next to PyTorch), first (what to run on a card that has "
    "not run any of it, in 45 "
    "minutes), all");
ABSL_FLAG(
    std::string, only, "",
    "the stages to run, by name, in place of a suite; default: all of the "
    "suite");
ABSL_FLAG(double, budget, 3600,
          "seconds for all stages together; a stage leaves the least time that "
          "the later ones need, and is not run if too little is left");
ABSL_FLAG(std::string, out, "lockstep-gpu",
          "write results.json, junit.xml and each stage's output to this "
          "folder; default: lockstep-gpu");

namespace lockstep::gpu_bundle {
namespace {

constexpr int kNoGpu = 3;

Usage RunUsage() {
  return {
      .command = "run.sh",
      .introduction = R"(run.sh [FLAGS]

Runs Lockstep's GPU tests and benchmarks on this host, which needs an NVIDIA
driver, and CUDA's runtime, NCCL and cuDNN in $LOCKSTEP_CUDA_LIBS (folders,
separated by ':'), in LD_LIBRARY_PATH, in the Python packages of a python3 on
PATH, or in a CUDA toolkit. Prints the folders that it uses. stages.txt beside
run.sh lists the stages.
)",
      .sections = {{"", "suite only=NAMES budget out=DIR"}},
      .ending =
          R"(Exit status: 0 if every stage that this host can run passed, and at least one of
them is of the suite; 1 if one failed, timed out, skipped all its tests or did
not fit the budget, if a library is missing, or if the driver fails or is too
old; 2 for a wrong flag; 3 if there is no GPU.
)"};
}

std::vector<std::string> Strings(const report::Value& values) {
  std::vector<std::string> strings;
  for (size_t i = 0; i < values.size(); ++i) {
    if (const auto* text = std::get_if<std::string>(&values[i].variant())) {
      strings.push_back(*text);
    }
  }
  return strings;
}

// Returns nvidia-smi's description of each GPU; null if nvidia-smi fails.
report::Value AskNvidiaSmi() {
  constexpr absl::string_view kKeys =
      "index,name,uuid,driver_version,memory.total,memory.used,clocks.sm,"
      "clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,"
      "ecc.mode.current,mig.mode.current,compute_mode,persistence_mode";
  const SubprocessResult said =
      RunSubprocess({"nvidia-smi", absl::StrCat("--query-gpu=", kKeys),
                     "--format=csv,noheader"},
                    absl::Seconds(30));
  report::Value gpus;
  if (said.exit_status != 0) return gpus;
  const std::vector<std::string> keys = absl::StrSplit(kKeys, ',');
  for (const auto& line : absl::StrSplit(said.out, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> values = absl::StrSplit(line, ", ");
    report::Value gpu;
    for (size_t i = 0; i < std::min(keys.size(), values.size()); ++i) {
      gpu.Add(keys[i], values[i]);
    }
    gpus.Add(std::move(gpu));
  }
  return gpus;
}

// A run: its inputs, and its results so far.
struct Run {
  std::string suite;
  double budget = 0;
  std::vector<Stage> stages = {};
  report::Origin origin = {};
  report::Value manifest = {};
  std::vector<Gpu> gpus = {};
  report::Value nvidia_smi = {};
  CudaLibraries libraries = {};
  std::optional<TemporaryFolder> links = {};  // To `libraries`.
  Torch torch = {};
  Setting setting = {};
  std::vector<StageResult> results = {};
};

// Returns the libraries and functions of the manifest.
CudaFunctions FunctionsOf(const report::Value& manifest) {
  CudaFunctions functions;
  for (const std::string& name : manifest.keys()) {
    functions[name] = Strings(manifest[name]);
  }
  return functions;
}

report::Value LibrariesValue(const CudaLibraries& libraries) {
  report::Value values;
  for (const CudaLibraries::Found& each : libraries.found) {
    values.Add(report::Value{{"name", each.name},
                             {"version", report::TextOrNull(each.version)},
                             {"file", each.file}});
  }
  return values;
}

report::Value StageValue(const StageResult& result) {
  return {{"name", result.name},
          {"outcome", Name(result.outcome)},
          {"text", Text(result)},
          {"seconds", result.seconds},
          {"command", absl::StrJoin(result.command, " ")},
          {"tests", result.tests},
          {"skipped", result.skipped},
          {"failed", result.failed},
          {"numbers", result.numbers}};
}

report::Section StageTable(std::span<const StageResult> results) {
  report::Section section = {
      .title = "Stages",
      .table = {.columns = {{.title = "stage", .left = true},
                            {.title = "seconds"},
                            {.title = "tests"},
                            {.title = "skipped"},
                            {.title = "outcome", .left = true}}}};
  for (const StageResult& each : results) {
    const bool good = each.outcome == Outcome::kPassed;
    section.table.rows.push_back(
        {each.name,
         absl::StrFormat("%.1f", each.seconds),
         each.tests == 0 ? "-" : absl::StrCat(each.tests),
         each.tests == 0 ? "-" : absl::StrCat(each.skipped),
         {Text(each), good ? report::Tone::kGood : report::Tone::kBad}});
  }
  return section;
}

// Returns whether the run has stages of the suite `train`.
bool HasTraining(const Run& run) {
  return std::ranges::any_of(run.stages, [](const Stage& stage) {
    return std::ranges::count(stage.suites, "train") > 0;
  });
}

report::Document DocumentOf(const Run& run) {
  report::Document document = {.name = "lockstep.gpu_bundle"};
  document.about = absl::StrCat(
      "Lockstep's suite '", run.suite, "' on ",
      report::Counted(static_cast<int64_t>(run.gpus.size()), "GPU"),
      ", the first a ", run.gpus[0].name, ".");
  document.origin = run.origin;
  report::Value gpus;
  for (const Gpu& gpu : run.gpus) {
    gpus.Add(gpu.name);
  }
  report::Value stages = report::Value::Array();
  for (const StageResult& each : run.results) stages.Add(StageValue(each));
  document.data = {{"suite", run.suite},
                   {"budget", run.budget},
                   {"bundle", run.manifest},
                   {"gpus", gpus},
                   {"nvidia_smi", run.nvidia_smi},
                   {"libraries", LibrariesValue(run.libraries)},
                   {"torch", run.torch.version},
                   {"torch_python", report::TextOrNull(run.torch.python)},
                   {"stages", stages}};
  document.sections.push_back(StageTable(run.results));
  if (HasTraining(run)) document.bars = TrainingBars(run.results);
  return document;
}

// Writes the results, and packs the output folder into one file. Called after
// each stage, so that a run that is killed leaves its results so far.
absl::Status WriteResults(const Run& run) {
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(run.setting.out + "/results.json",
                                       report::JsonText(DocumentOf(run))));
  LOCKSTEP_RETURN_IF_ERROR(
      ReplaceFile(run.setting.out + "/junit.xml", JUnitText(run.results)));
  return PackFolder(run.setting.out, run.setting.out + ".tar");
}

// Links to the host's C++ library if it is newer than the bundle's: a network
// plugin of NCCL may need it.
absl::Status LinkNewerCxxLibrary(const Run& run) {
  const std::string newer = FindNewerCxxLibrary(run.setting.bundle + "/lib");
  if (newer.empty()) return absl::OkStatus();
  Print(absl::StrCat("libstdc++.so.6: ", newer,
                     ", which is newer than the bundle's\n"));
  return LinkCxxLibrary(newer, run.links->path());
}

absl::Status FindLibraries(Run& run) {
  if (!Variable("LOCKSTEP_PROGRAM").empty()) {  // Set by start.cc.
    Print(absl::StrCat("libc.so.6: the bundle's, version ",
                       gnu_get_libc_version(), "; this host's is older\n"));
  }
  const CudaFunctions functions = FunctionsOf(run.manifest["nvidia"]);
  LOCKSTEP_RETURN_IF_ERROR(CheckDriver(functions));
  run.libraries = FindCudaLibraries(functions);
  for (const std::string& each : run.libraries.passed_over) {
    Print(absl::StrCat("passed over: ", each, "\n"));
  }
  for (const CudaLibraries::Found& each : run.libraries.found) {
    Print(absl::StrCat(
        each.name, ": ", each.version.empty() ? "" : each.version + ", ",
        each.file, each.lack.empty() ? "" : ": ", each.lack, "\n"));
  }
  if (run.libraries.missing.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(LinkLibraries(run.libraries, run.links->path()));
    return LinkNewerCxxLibrary(run);
  }
  return absl::NotFoundError(absl::StrCat(
      absl::StrJoin(run.libraries.missing, ", "),
      " not found: set LOCKSTEP_CUDA_LIBS to the folders that have them; "
      "looked in ",
      absl::StrJoin(run.libraries.looked, ":"),
      run.libraries.passed_over.empty() ? "" : "; passed over ",
      absl::StrJoin(run.libraries.passed_over, "; ")));
}

// Returns the variables by which stages find libraries and Python: see run.sh
// and peers/python3. peers/python3 exists even if no Python has PyTorch; it
// then says so.
Environment StageEnvironment(const Run& run) {
  const std::string host = Variable("LOCKSTEP_HOST_LIBRARY_PATH");
  return {
      {"LD_LIBRARY_PATH",
       absl::StrCat(run.links->path(), ":", run.setting.bundle, "/lib",
                    host.empty() ? "" : ":", host)},
      {"LOCKSTEP_PYTHON", run.torch.python},
      {"PATH", absl::StrCat(run.setting.bundle, "/peers:", Variable("PATH"))}};
}

absl::Status Prepare(Run& run) {
  for (const Gpu& gpu : run.gpus) {
    Print(absl::StrCat(
        "GPU: ", gpu.name,
        gpu.exclusive ? ", for one process alone, by its compute mode" : "",
        "\n"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(run.links,
                            TemporaryFolder::Create("lockstep-libraries"));
  LOCKSTEP_RETURN_IF_ERROR(FindLibraries(run));
  run.torch = FindTorch();
  Print(absl::StrCat(
      "PyTorch: ",
      run.torch.python.empty()
          ? absl::StrCat("none: ", run.torch.version)
          : absl::StrCat(run.torch.version, " (", run.torch.python, ")"),
      "\n"));
  run.nvidia_smi = AskNvidiaSmi();
  run.setting.gpus = static_cast<int>(run.gpus.size());
  run.setting.exclusive = std::ranges::any_of(run.gpus, &Gpu::exclusive);
  run.setting.python = run.torch.python;
  run.setting.compute_sanitizer = FindComputeSanitizer();
  run.setting.has_data = std::filesystem::exists(run.setting.bundle + "/data");
  run.setting.environment = StageEnvironment(run);
  return absl::OkStatus();
}

// Returns the stages with these names or, without names, those of the suite.
// Errors: kInvalidArgument for a name that is no stage's.
absl::StatusOr<std::vector<Stage>> ChooseStages(
    std::vector<Stage> stages, const std::string& suite,
    const std::vector<std::string>& only) {
  for (const std::string& name : only) {
    if (std::ranges::count(stages, name, &Stage::name) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--only: '", name, "' is no stage of stages.txt"));
    }
  }
  std::erase_if(stages, [&](const Stage& stage) {
    return only.empty() ? !stage.IsIn(suite)
                        : std::ranges::count(only, stage.name) == 0;
  });
  return stages;
}

// Begins a run by the command line and the bundle.
absl::StatusOr<Run> BeginRun(std::span<char* const> argv) {
  Run run = {.suite = absl::GetFlag(FLAGS_suite),
             .budget = absl::GetFlag(FLAGS_budget)};
  LOCKSTEP_RETURN_IF_ERROR(ParseName<bool>("--suite", run.suite,
                                           {{"correct", true},
                                            {"kernels", true},
                                            {"train", true},
                                            {"first", true},
                                            {"all", true}})
                               .status());
  LOCKSTEP_RETURN_IF_ERROR(CheckSeconds("--budget", run.budget));
  // Without a slash at its end.
  run.setting.out = (std::filesystem::absolute(absl::GetFlag(FLAGS_out)) / "")
                        .parent_path()
                        .string();
  run.setting.bundle = Variable("LOCKSTEP_BUNDLE");
  std::string run_sh = run.setting.bundle + "/run.sh";  // Also in glibc/.
  std::vector<char*> typed(argv.begin(), argv.end());
  typed[0] = run_sh.data();
  run.origin = report::OriginOf(run_sh, typed);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string table,
                            ReadFile(run.setting.bundle + "/stages.txt"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Stage> stages, ParseStages(table));
  LOCKSTEP_ASSIGN_OR_RETURN(
      run.stages, ChooseStages(std::move(stages), run.suite,
                               absl::StrSplit(absl::GetFlag(FLAGS_only), ',',
                                              absl::SkipEmpty())));
  run.manifest = ReadJson(run.setting.bundle + "/manifest.json");
  const auto* commit =
      std::get_if<std::string>(&run.manifest["commit"].variant());
  if (commit != nullptr) run.origin.commit = *commit;
  return run;
}

// Runs the stages. Returns true if every stage that this host has the means for
// passed, and at least one of them is not of `every` suite or was named.
absl::StatusOr<bool> RunStages(const Deadline& deadline, Run& run) {
  bool passed = true;
  bool any = false;
  const bool named = !absl::GetFlag(FLAGS_only).empty();
  for (size_t i = 0; i < run.stages.size(); ++i) {
    const Stage& stage = run.stages[i];
    const absl::Duration reserved =
        LeastTime(std::span(run.stages).subspan(i + 1), run.setting);
    run.results.push_back(
        RunStage(stage, run.setting, deadline.remaining(), reserved));
    const StageResult& result = run.results.back();
    Print(absl::StrFormat("%-22s %7.1f s  %s\n", stage.name, result.seconds,
                          Text(result)));
    LOCKSTEP_RETURN_IF_ERROR(WriteResults(run));
    if (result.outcome == Outcome::kNeedsMissing) continue;
    passed = passed && result.outcome == Outcome::kPassed;
    any = any || named || stage.suites != std::vector<std::string>{"every"};
  }
  Print(absl::StrCat("Wrote ", run.setting.out,
                     "/results.json, junit.xml, and ", run.setting.out,
                     ".tar\n\n", report::TerminalText(DocumentOf(run))));
  return passed && any;
}

absl::StatusOr<int> RunSuite(std::span<char* const> argv) {
  const Deadline deadline(absl::Seconds(absl::GetFlag(FLAGS_budget)));
  LOCKSTEP_ASSIGN_OR_RETURN(Run run, BeginRun(argv));
  absl::StatusOr<std::vector<Gpu>> gpus = FindGpus();
  if (absl::IsNotFound(gpus.status())) {
    Fail("run.sh", absl::NotFoundError(
                       absl::StrCat("no GPU: ", gpus.status().message())));
    return kNoGpu;
  }
  LOCKSTEP_RETURN_IF_ERROR(gpus.status());
  run.gpus = *std::move(gpus);
  if (!MakeOutputFolder(run.setting.out).ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out: cannot write to ", run.setting.out));
  }
  LOCKSTEP_RETURN_IF_ERROR(WriteResults(run));  // Replaces an earlier run's.
  LOCKSTEP_RETURN_IF_ERROR(Prepare(run));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool passed, RunStages(deadline, run));
  return passed ? 0 : kFailure;
}

}  // namespace
}  // namespace lockstep::gpu_bundle

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::gpu_bundle::RunUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::gpu_bundle::RunSuite);
}
