// The command `check`: judges somebody else's trainer.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
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
#include "conformance/check/cases/check_case.h"
#include "conformance/check/check_report.h"
#include "conformance/check/run/run_trainer.h"
#include "report/document.h"
#include "report/write.h"

// An empty --command, as from a shell's empty variable, is an error; so the
// default is another text.
constexpr char kNoCommand[] = "none";
ABSL_FLAG(std::string, command, kNoCommand,
          "a shell command that starts the trainer, in the current folder; "
          "with {world_size} in it, it is started once and starts its ranks "
          "itself, else it is started as every rank, with RANK, WORLD_SIZE, "
          "MASTER_ADDR ... as torchrun sets them");
ABSL_FLAG(std::string, trainer, "pytorch",
          "without --command, one of the suite's own:\n"
          "pytorch           DistributedDataParallel used so that N ranks do "
          "what one does\n"
          "pytorch_tutorial  the same as tutorials have it\n"
          "lockstep          the trainer of //models:train");
ABSL_FLAG(std::string, python, "/usr/bin/python3",
          "the interpreter of pytorch and pytorch_tutorial");
ABSL_FLAG(int32_t, world_size, 2, "N, from 2 to 64");
ABSL_FLAG(std::string, cases, "", "some of the cases; default: all");
ABSL_FLAG(double, timeout, 120, "seconds that one start may take");
ABSL_FLAG(std::string, documented, "",
          "differences that the trainer documents: a JSON array of {\"case\", "
          "\"claim\", \"cause\", \"cited\"}, by the names in the table; "
          "pytorch_tutorial brings its own");
ABSL_FLAG(std::string, output_dir, "lockstep-check",
          "where to write; default: lockstep-check in the current folder");
ABSL_FLAG(bool, list, false, "print the cases and what they are about");

namespace lockstep::conformance {
namespace {

Usage CheckUsage() {
  return {.command = "check",
          .introduction = R"(check [FLAGS]

Judges a trainer: starts it on small cases, with one rank and with N, and says
whether the N ranks do what one rank does; where not, what differs first, the
likely cause, and how to mend it. What a trainer must read and write is one
page, conformance/PROTOCOL.md. Prints a table; writes check.json, check.md and
check.html, which opens offline.
)",
          .sections = {{"what is judged",
                        "command=COMMAND trainer python world_size "
                        "cases=NAME,NAME timeout documented=FILE"},
                       {"", "output_dir=DIR list"}},
          .ending = R"(Examples
  check
  check --command='python3 train.py' --world_size=4
  check --command='torchrun --nproc_per_node={world_size} train.py'

Exit status: 0 if every case holds, differs as documented or is not supported;
1 if one fails, or for another error; 2 for a wrong flag.
)"};
}

// Where `bazel run` and `bazel test` put what this program brings.
constexpr char kAdapters[] = "conformance/adapters/";
constexpr int kMostRanks = 64;
constexpr int64_t kMostDocumentedBytes = 1 << 20;

struct ChosenTrainer {
  std::string command;
  std::string documented;  // A file; "" for none.
};

// A file that comes with this program, for a shell's command line.
std::string Quoted(const std::string& path) {
  return absl::StrCat("'", std::filesystem::absolute(path).string(), "'");
}

absl::StatusOr<ChosenTrainer> TrainerFromFlags() {
  ChosenTrainer chosen = {absl::GetFlag(FLAGS_command),
                          UserPath(absl::GetFlag(FLAGS_documented))};
  if (chosen.command.empty()) {
    return absl::InvalidArgumentError(
        "--command is empty, must start a trainer");
  }
  if (chosen.command != kNoCommand) return chosen;
  const std::string trainer = absl::GetFlag(FLAGS_trainer);
  const std::string adapters = kAdapters;
  if (trainer == "lockstep") {
    chosen.command = Quoted(adapters + "lockstep_trainer");
    return chosen;
  }
  chosen.command = absl::StrCat("'", absl::GetFlag(FLAGS_python), "' ",
                                Quoted(adapters + "pytorch_ddp.py"));
  if (trainer == "pytorch") return chosen;
  if (trainer == "pytorch_tutorial") {
    chosen.command += " --recipe=tutorial";
    if (absl::GetFlag(FLAGS_documented).empty()) {
      chosen.documented = adapters + "pytorch_tutorial.json";
    }
    return chosen;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--trainer: there is no '", trainer,
                   "'; there are pytorch, pytorch_tutorial, lockstep"));
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
    return absl::InvalidArgumentError(absl::StrCat("--cases: there is no '",
                                                   name, "'; there are ",
                                                   absl::StrJoin(names, ", ")));
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

absl::Status CheckAll(const std::vector<CheckCase>& cases,
                      const TrainerCommand& trainer,
                      const std::vector<Documented>& documented,
                      CheckReport& report) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder work,
                            TemporaryFolder::Create("lockstep-check"));
  for (const CheckCase& check : cases) {
    const std::string place =
        absl::StrCat("case ", report.cases.size() + 1, " of ", cases.size(),
                     ", ", check.name, ": ");
    LOCKSTEP_ASSIGN_OR_RETURN(
        CaseReport judged,
        RunCheck(check, trainer, absl::StrCat(work.path(), "/", check.name),
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
  LOCKSTEP_ASSIGN_OR_RETURN(const ChosenTrainer chosen, TrainerFromFlags());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Documented> documented,
                            ReadDocumented(chosen.documented));
  const double timeout = absl::GetFlag(FLAGS_timeout);
  if (!(timeout >= 0.1 && timeout <= 86400)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout is ", timeout, " s, must be in [0.1, 86400]"));
  }
  const std::string folder = UserPath(absl::GetFlag(FLAGS_output_dir));
  LOCKSTEP_RETURN_IF_ERROR(MakeOutputFolder(folder));
  const TrainerCommand trainer = {.command = chosen.command,
                                  .working_folder = UserPath("."),
                                  .timeout = absl::Seconds(timeout)};
  CheckReport report;
  report.origin = report::OriginOf("//conformance:check", argv);
  report.world_size = absl::GetFlag(FLAGS_world_size);
  LOCKSTEP_RETURN_IF_ERROR(CheckAll(cases, trainer, documented, report));
  const report::Document document = CheckDocument(report);
  Print(TerminalText(document) + "\n");
  LOCKSTEP_RETURN_IF_ERROR(WriteReport(folder, "check", document));
  return TotalsOf(report).failed == 0 ? 0 : kFailure;
}

}  // namespace
}  // namespace lockstep::conformance

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::conformance::CheckUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::conformance::Run);
}
