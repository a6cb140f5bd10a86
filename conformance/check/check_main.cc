// The command `check`: judges a user's trainer.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/check_report.h"
#include "conformance/check/run/run_trainer.h"
#include "conformance/check/run_check.h"
#include "report/document.h"
#include "report/write.h"

// An empty --command or --trainer, as an unset shell variable gives, is an
// error. The default is therefore not empty.
constexpr char kNotGiven[] = "none";
ABSL_FLAG(std::string, command, kNotGiven,
          "a shell command that starts the trainer, in the current folder. A "
          "command that contains {world_size} is started once and starts its "
          "ranks itself; any other command is started once for each rank, with "
          "RANK, WORLD_SIZE, MASTER_ADDR and so on, as torchrun sets them");
ABSL_FLAG(std::string, trainer, kNotGiven,
          "in place of --command, a trainer of the suite; default: pytorch\n"
          "pytorch           DistributedDataParallel, used so that N ranks do "
          "what one rank does\n"
          "pytorch_tutorial  DistributedDataParallel, used as in tutorials\n"
          "lockstep          the trainer of //models:train");
ABSL_FLAG(std::string, python, "/usr/bin/python3",
          "the interpreter of pytorch and pytorch_tutorial");
ABSL_FLAG(int32_t, world_size, 2,
          "the number of ranks that are compared with one, from 2 to 64");
ABSL_FLAG(std::string, cases, "", "the cases to judge; default: all");
ABSL_FLAG(double, timeout, 120, "seconds that one start may take");
ABSL_FLAG(
    std::string, documented, "",
    "a file of the differences that the trainer documents: a JSON array of "
    "{\"case\", \"claim\", \"cause\", \"cited\"}, with the names in the "
    "table; pytorch_tutorial has a file of its own");
ABSL_FLAG(
    std::string, output_dir, "lockstep-check",
    "write to this folder; default: lockstep-check in the current folder");
ABSL_FLAG(std::string, keep, "",
          "keep the case, the output and the logs of every start, and a script "
          "that repeats it by hand, in this new or empty folder; default: "
          "nothing is kept");
ABSL_FLAG(bool, list, false, "print the cases, each with a sentence about it");

namespace lockstep::conformance {
namespace {

Usage CheckUsage() {
  return {.command = "check",
          .introduction = R"(check [FLAGS]

Judges a trainer: starts it on small cases, with one rank and with N ranks, and
reports whether the N ranks do what one rank does. If not, it reports the first
difference, the likely cause, and a fix. One page, conformance/PROTOCOL.md, says
what a trainer must read and write. Prints a table, and writes check.json,
check.md and check.html, which opens offline.
)",
          .sections = {{"what is judged",
                        "command=COMMAND trainer=NAME python world_size "
                        "cases=NAME,NAME timeout documented=FILE"},
                       {"", "output_dir=DIR keep=DIR list"}},
          .ending = R"(Examples
  check
  check --command='python3 train.py' --world_size=4
  check --command='torchrun --nproc_per_node={world_size} train.py'
Debian's torchrun (PyTorch 1.13) ends in an AttributeError without these flags:
  check --command='torchrun --redirects=1 --tee=1 \
      --nproc_per_node={world_size} train.py'

Exit status: 0 if every case holds, differs as documented or is not supported;
1 if one fails, or for another error; 2 for a wrong flag.
)",
          .aliases = {{"nproc", "world_size"}}};
}

// The adapters' folder, relative to the root of this program's runfiles.
constexpr char kAdapters[] = "conformance/adapters/";
constexpr int kMostRanks = 64;
constexpr int64_t kMostDocumentedBytes = 1 << 20;

namespace fs = std::filesystem;

struct ChosenTrainer {
  std::string command;
  std::string documented;  // A path; "" for none.
};

// Returns the possible runfiles roots of the program at `path`: each folder in
// path.runfiles. If the program itself lies in a runfiles tree, the folder
// above conformance/check is a root too.
std::vector<fs::path> RunfilesRoots(const fs::path& path) {
  std::vector<fs::path> roots;
  std::error_code error;
  for (fs::directory_iterator entry(path.string() + ".runfiles", error), end;
       !error && entry != end; entry.increment(error)) {
    roots.push_back(entry->path());
  }
  roots.push_back(path.parent_path().parent_path().parent_path());
  return roots;
}

// Returns the absolute path of an adapter's file. The file is found from this
// program's own path, so the current folder does not matter. Error: kNotFound.
absl::StatusOr<std::string> AdapterFile(const char* program,
                                        const std::string& name) {
  std::error_code error;
  for (const fs::path& path :
       {fs::absolute(program, error), fs::canonical("/proc/self/exe", error)}) {
    for (const fs::path& root : RunfilesRoots(path)) {
      const fs::path file = root / kAdapters / name;
      if (fs::exists(file, error)) return file.string();
    }
  }
  return absl::NotFoundError(
      absl::StrCat("cannot find ", kAdapters, name,
                   " beside this program; run it with bazel run "
                   "//conformance:check, or give --command"));
}

absl::StatusOr<ChosenTrainer> OwnTrainer(const char* program,
                                         const std::string& trainer) {
  ChosenTrainer chosen = {"", ResolveUserPath(absl::GetFlag(FLAGS_documented))};
  if (trainer == "lockstep") {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string file,
                              AdapterFile(program, "lockstep_trainer"));
    chosen.command = ShellQuoted(file);
    return chosen;
  }
  if (trainer != "pytorch" && trainer != "pytorch_tutorial") {
    return absl::InvalidArgumentError(
        absl::StrCat("--trainer: '", trainer,
                     "' is not one of pytorch, pytorch_tutorial, lockstep"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string script,
                            AdapterFile(program, "pytorch_ddp.py"));
  chosen.command = absl::StrCat(ShellQuoted(absl::GetFlag(FLAGS_python)), " ",
                                ShellQuoted(script));
  if (trainer == "pytorch") return chosen;
  chosen.command += " --recipe=tutorial";
  if (chosen.documented.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(chosen.documented,
                              AdapterFile(program, "pytorch_tutorial.json"));
  }
  return chosen;
}

// Returns the trainer that the flags name. program: argv[0].
absl::StatusOr<ChosenTrainer> TrainerFromFlags(const char* program) {
  const std::string command = absl::GetFlag(FLAGS_command);
  const std::string trainer = absl::GetFlag(FLAGS_trainer);
  if (command.empty()) {
    return absl::InvalidArgumentError(
        "--command is empty, but must start a trainer");
  }
  if (command == kNotGiven) {
    return OwnTrainer(program, trainer == kNotGiven ? "pytorch" : trainer);
  }
  if (trainer != kNotGiven) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trainer=", trainer,
                     " and --command both choose a trainer; give one of them"));
  }
  return ChosenTrainer{command,
                       ResolveUserPath(absl::GetFlag(FLAGS_documented))};
}

absl::StatusOr<std::vector<CheckCase>> CasesFromFlags() {
  const int world_size = absl::GetFlag(FLAGS_world_size);
  if (world_size < 2 || world_size > kMostRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--world_size is ", world_size, ", must be in [2, ", kMostRanks, "]"));
  }
  std::vector<CheckCase> all = BuiltInCases(world_size);
  std::vector<std::string> wanted =
      absl::StrSplit(absl::GetFlag(FLAGS_cases), ',', absl::SkipEmpty());
  if (wanted.empty()) return all;
  std::vector<std::string> names;
  for (const CheckCase& check : all) names.push_back(check.name);
  for (const std::string& name : wanted) {
    if (Includes(names, name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--cases: '", name, "' is not one of ", absl::StrJoin(names, ", ")));
  }
  std::erase_if(all, [&](const CheckCase& check) {
    return !Includes(wanted, check.name);
  });
  return all;
}

absl::StatusOr<std::vector<Documented>> ReadDocumented(
    const std::string& path) {
  if (path.empty()) return std::vector<Documented>{};
  const auto text = ReadForeignFile(path, kMostDocumentedBytes);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat("--documented: ", text.status().message()));
  }
  return ParseDocumented(*text, path);
}

// Returns the folder of --keep as an absolute path; "" without the flag.
absl::StatusOr<std::string> FolderToKeep() {
  const std::string given = ResolveUserPath(absl::GetFlag(FLAGS_keep));
  if (given.empty()) return given;
  std::error_code error;
  fs::create_directories(given, error);
  const bool empty = !error && fs::is_empty(given, error);
  if (!error && empty && access(given.c_str(), W_OK | X_OK) == 0) {
    return fs::absolute(given).string();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--keep: ", given,
                   error || empty ? " is not a folder that can be written to"
                                  : " is not empty",
                   "; name a new folder"));
}

// Runs all cases, each in a folder below `work`, and adds them to the report.
absl::Status CheckAll(const std::vector<CheckCase>& cases,
                      const TrainerCommand& trainer,
                      const std::vector<Documented>& documented,
                      const std::string& work, CheckReport& report) {
  for (const CheckCase& check : cases) {
    const std::string place =
        absl::StrCat("case ", report.cases.size() + 1, " of ", cases.size(),
                     ", ", check.name, ": ");
    LOCKSTEP_ASSIGN_OR_RETURN(
        CaseReport judged,
        RunCheck(check, trainer, absl::StrCat(work, "/", check.name),
                 [&](const std::string& what) { ShowProgress(place + what); }));
    ApplyDocumented(documented, judged.verdicts);
    if (report.software.empty()) report.software = judged.software;
    report.cases.push_back(std::move(judged));
  }
  ShowProgress("");
  return absl::OkStatus();
}

// Returns the exit status.
absl::StatusOr<int> Run(std::span<char* const> argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<CheckCase> cases,
                            CasesFromFlags());
  if (absl::GetFlag(FLAGS_list)) {
    for (const CheckCase& check : cases) {
      absl::PrintF("%-18s %s\n", check.name, check.about);
    }
    return 0;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const ChosenTrainer chosen,
                            TrainerFromFlags(argv[0]));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Documented> documented,
                            ReadDocumented(chosen.documented));
  const double timeout = absl::GetFlag(FLAGS_timeout);
  if (!(timeout >= 0.1 && timeout <= 86400)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout is ", timeout, " s, must be in [0.1, 86400]"));
  }
  const std::string folder = ResolveUserPath(absl::GetFlag(FLAGS_output_dir));
  LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string kept, FolderToKeep());
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder temporary,
                            TemporaryFolder::Create("lockstep-check"));
  const TrainerCommand trainer = {.command = chosen.command,
                                  .working_folder = ResolveUserPath("."),
                                  .timeout = absl::Seconds(timeout),
                                  .keep = !kept.empty()};
  CheckReport report;
  report.origin = report::OriginOf("//conformance:check", argv);
  report.world_size = absl::GetFlag(FLAGS_world_size);
  LOCKSTEP_RETURN_IF_ERROR(CheckAll(cases, trainer, documented,
                                    kept.empty() ? temporary.path() : kept,
                                    report));
  const report::Document document = CheckDocument(report);
  Print(TerminalText(document) + "\n");
  LOCKSTEP_RETURN_IF_ERROR(WriteReport(folder, "check", document));
  if (trainer.keep) {
    Print(absl::StrCat("Kept every start, with its run.sh, in ", kept, "\n"));
  }
  return TotalsOf(report).failed == 0 ? 0 : kFailure;
}

}  // namespace
}  // namespace lockstep::conformance

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::conformance::CheckUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::conformance::Run);
}
