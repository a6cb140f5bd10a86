#include "conformance/check/run/run_trainer.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_placement.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

namespace fs = std::filesystem;

constexpr char kEscape = '\x1b';

// Returns the position after a terminal's escape sequence, such as a colour,
// that begins at `begin`.
size_t EndOfEscape(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  if (end == text.size() || text[end] != '[') return end;
  ++end;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(end + 1, text.size());
}

std::string Printable(const std::string& line) {
  constexpr size_t kDots = 3;
  std::string printable;
  for (size_t i = 0; i < line.size(); ++i) {
    while (i < line.size() && line[i] == kEscape) i = EndOfEscape(line, i);
    if (i == line.size()) break;
    const char c = line[i];
    const unsigned char byte = static_cast<unsigned char>(c);
    printable += c == '\t' ? ' ' : absl::ascii_isprint(byte) ? c : '?';
  }
  absl::StripAsciiWhitespace(&printable);
  if (printable.size() > kMostLineBytes) {
    printable.resize(kMostLineBytes - kDots);
    printable.append(kDots, '.');
  }
  return printable;
}

constexpr char kWorldSize[] = "{world_size}";
constexpr size_t kMostLines = 20;
constexpr size_t kKeptBytes = 16 << 10;  // Of each rank's output.

bool StartsItsRanks(const TrainerCommand& trainer) {
  return absl::StrContains(trainer.command, kWorldSize);
}

absl::StatusOr<std::string> ExistingFolder(const std::string& path) {
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).string();
  if (!error && fs::is_directory(absolute, error)) return absolute;
  return absl::NotFoundError(absl::StrCat("there is no folder ", path));
}

absl::StatusOr<std::string> OutputFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  fs::directory_iterator entry;
  if (!error) entry = fs::directory_iterator(path, error);
  if (error) {
    return absl::ErrnoToStatus(
        error.value(), absl::StrCat("cannot use the output folder ", path));
  }
  for (; entry != fs::directory_iterator(); entry.increment(error)) {
    if (error || entry->path().filename() == "checkpoint") continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the output folder ", path,
        " has something in it: ", entry->path().filename().string()));
  }
  return ExistingFolder(path);
}

// Removes the ranks that other launchers set when they started the check. A
// trainer that reads these variables first would use the wrong rank.
constexpr char kUnsetLauncherRank[] =
    "unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "
    "OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE "
    "OMPI_COMM_WORLD_NODE_RANK PMI_RANK PMI_SIZE PMIX_RANK MPI_LOCALRANKID "
    "MPI_LOCALNRANKS SLURM_PROCID SLURM_LOCALID SLURM_STEP_ID "
    "SLURM_STEP_NUM_TASKS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE; ";

// Removes the rank that our own launcher sets for its single process. The ranks
// that a command starts itself have other values.
constexpr char kUnsetOwnRank[] =
    "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK "
    "GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_RENDEZVOUS; ";

// Returns arguments for execvp(): a shell that changes to the working folder
// and then becomes the shell that runs the command.
absl::StatusOr<std::vector<std::string>> ShellCommand(
    const TrainerCommand& trainer, int world_size) {
  if (trainer.command.empty()) {
    return absl::InvalidArgumentError("there is no command to run");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string folder,
      ExistingFolder(trainer.working_folder.empty() ? "."
                                                    : trainer.working_folder));
  const std::string script = absl::StrCat(
      kUnsetLauncherRank, StartsItsRanks(trainer) ? kUnsetOwnRank : "",
      "cd \"$0\" && exec /bin/sh -c \"$1\"");
  return std::vector<std::string>{
      "/bin/sh", "-c", script, folder,
      absl::StrReplaceAll(trainer.command,
                          {{kWorldSize, absl::StrCat(world_size)}})};
}

std::string FormatEnd(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was killed by signal ",
                        FormatSignal(WTERMSIG(wait_status)));
  }
  const int status = WEXITSTATUS(wait_status);
  const char* meaning = "";
  // The shell's own exit statuses.
  if (status == 126) meaning = ": the command cannot be run";
  if (status == 127) meaning = ": the command was not found";
  return absl::StrCat("exited with status ", status, meaning);
}

std::string DescribeTimeout(const TrainerCommand& trainer,
                            const LaunchSummary& summary) {
  std::vector<int> late;
  for (const RankOutcome& outcome : summary.ranks) {
    if (outcome.stopped) late.push_back(outcome.rank);
  }
  const std::string who = StartsItsRanks(trainer) || late.empty()
                              ? "the command"
                              : FormatRanks(std::move(late));
  return absl::StrCat(who, " had not ended after ",
                      FormatElapsed(trainer.timeout));
}

// Sets how the run ended.
void SetEnd(const TrainerCommand& trainer, const LaunchSummary& summary,
            TrainerRun& run) {
  if (const std::optional<RankOutcome> first = FirstFailure(summary)) {
    run.end = TrainerRun::End::kFailed;
    run.how = absl::StrCat(StartsItsRanks(trainer)
                               ? "the command"
                               : absl::StrCat("rank ", first->rank),
                           " ", FormatEnd(first->wait_status));
  } else if (summary.timed_out.has_value()) {
    run.end = TrainerRun::End::kTimedOut;
    run.how = DescribeTimeout(trainer, summary);
  }
}

// Selects lines of the ranks' outputs. The rank that explains the end best
// comes last and gets half of the lines.
std::vector<std::string> ChooseLines(const TrainerCommand& trainer,
                                     const LaunchSummary& summary) {
  const std::vector<std::string>& outputs = summary.kept_output;
  if (outputs.empty()) return {};
  if (StartsItsRanks(trainer)) return LastLines(outputs[0], kMostLines);
  const std::optional<RankOutcome> first = FirstFailure(summary);
  const size_t last = first.has_value() ? static_cast<size_t>(first->rank) : 0;
  const size_t others = outputs.size() - 1;
  const size_t each =
      others == 0 ? 0 : std::max<size_t>(1, kMostLines / 2 / others);
  std::vector<std::string> lines;
  const auto add = [&](size_t rank, size_t most) {
    const std::string mark = absl::StrCat("[", rank, "] ");
    for (const std::string& line : LastLines(outputs[rank], most)) {
      lines.push_back((mark + line).substr(0, kMostLineBytes));
    }
  };
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    if (rank != last && lines.size() + each <= kMostLines / 2) add(rank, each);
  }
  add(last, kMostLines - lines.size());
  return lines;
}

absl::Status FileError(const std::error_code& error, const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(path, ": cannot use"));
}

// Starts every rank, and fails if one rank fails. A single rank runs in the
// foreground, for a debugger.
constexpr char kStartRanks[] = R"(unset LOCKSTEP_RENDEZVOUS
export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks GROUP_RANK=0 GROUP_WORLD_SIZE=1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29500}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ "$ranks" = 1 ]; then
  export RANK=0 LOCAL_RANK=0
  exec /bin/sh -c "$command"
fi
pids='' rank=0 status=0
while [ "$rank" -lt "$ranks" ]; do
  RANK=$rank LOCAL_RANK=$rank /bin/sh -c "$command" &
  pids="$pids $!" rank=$((rank + 1))
done
for pid in $pids; do wait "$pid" || status=$?; done
exit $status
)";

// Returns the script of a start whose folders exist. Unlike RunTrainer, the
// script sets no time limit and shows the ranks' output.
absl::StatusOr<std::string> ScriptByHand(const TrainerCommand& trainer,
                                         const Case& c,
                                         const std::string& case_folder,
                                         const std::string& output_folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string input,
                            ExistingFolder(case_folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string output,
                            ExistingFolder(output_folder));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string folder,
      ExistingFolder(trainer.working_folder.empty() ? "."
                                                    : trainer.working_folder));
  const std::string command = absl::StrReplaceAll(
      trainer.command, {{kWorldSize, absl::StrCat(c.world_size())}});
  const std::string resume =
      c.resume ? absl::StrCat("cp -r ", ShellQuoted(output + "/checkpoint"),
                              " \"$LOCKSTEP_OUTPUT\" || exit\n")
               : "";
  return absl::StrCat(
      "#!/bin/sh\n# Starts the trainer on this case, as `check` did.\nranks=",
      c.world_size(), "\ncommand=", ShellQuoted(command), "\n",
      kUnsetLauncherRank, "\nLOCKSTEP_CASE=", ShellQuoted(input),
      "\nLOCKSTEP_OUTPUT=$(mktemp -d ", ShellQuoted(output + "_by_hand_XXXXXX"),
      ") || exit\n", "export LOCKSTEP_CASE LOCKSTEP_OUTPUT\n", resume,
      "echo \"Output: $LOCKSTEP_OUTPUT\"\ncd ", ShellQuoted(folder),
      " || exit\n",
      StartsItsRanks(trainer)
          ? absl::StrCat(kUnsetOwnRank, "\nexec /bin/sh -c \"$command\"\n")
          : kStartRanks);
}

// The folders and the script of one of a plan's two starts.
struct StartPaths {
  std::string folder;  // The parent folder.
  std::string prefix;  // The prefix of the names: "" or "resumed_".

  std::string Of(const char* name) const {
    return absl::StrCat(folder, "/", prefix, name);
  }
};

absl::StatusOr<TrainerRun> Start(const TrainerCommand& trainer, const Case& c,
                                 const CaseFiles& files,
                                 const StartPaths& paths) {
  const std::string input = paths.Of("case"), output = paths.Of("output");
  for (const std::string& folder : {input, output}) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return FileError(error, folder);
  }
  LOCKSTEP_RETURN_IF_ERROR(WriteCaseFolder(input, c, files));
  std::string by_hand;
  if (trainer.keep) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string script,
                              ScriptByHand(trainer, c, input, output));
    const std::string path = fs::absolute(paths.Of("run.sh")).string();
    LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(path, script));
    by_hand = "sh " + ShellQuoted(path);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(TrainerRun run,
                            RunTrainer(trainer, input, output, c.world_size(),
                                       trainer.keep ? paths.Of("logs") : ""));
  run.by_hand = std::move(by_hand);
  return run;
}

}  // namespace

absl::StatusOr<TrainerRun> RunTrainer(const TrainerCommand& trainer,
                                      const std::string& case_folder,
                                      const std::string& output_folder,
                                      int world_size,
                                      const std::string& log_folder) {
  if (world_size < 1 || world_size > kMostRanksOnHost) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the world size is ", world_size, ", not 1 to ", kMostRanksOnHost));
  }
  LaunchOptions options;
  options.nproc = StartsItsRanks(trainer) ? 1 : world_size;
  LOCKSTEP_ASSIGN_OR_RETURN(options.argv, ShellCommand(trainer, world_size));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string input,
                            ExistingFolder(case_folder));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string output,
                            OutputFolder(output_folder));
  options.environment = {{"LOCKSTEP_CASE", input}, {"LOCKSTEP_OUTPUT", output}};
  options.keep_output_bytes = kKeptBytes;
  options.log_dir = log_folder;
  options.timeout = trainer.timeout;
  LOCKSTEP_ASSIGN_OR_RETURN(const LaunchSummary summary, Launch(options));
  if (summary.received_signal != 0) {
    return absl::CancelledError(absl::StrCat(
        "interrupted by signal ", FormatSignal(summary.received_signal)));
  }
  TrainerRun run;
  run.world_size = world_size;
  SetEnd(trainer, summary, run);
  run.last_lines = ChooseLines(trainer, summary);
  for (int rank = 0; rank < world_size; ++rank) {
    absl::StatusOr<RankOutput> read = ReadRankOutput(output_folder, rank);
    run.ranks.push_back({.status = read.status()});
    if (read.ok()) run.ranks.back().output = *std::move(read);
  }
  return run;
}

absl::StatusOr<TrainerRun> RunCasePlan(const TrainerCommand& trainer,
                                       const CasePlan& plan,
                                       const CaseFiles& files,
                                       const std::string& work_folder) {
  const StartPaths paths = {work_folder, ""};
  const StartPaths resumed_paths = {work_folder, "resumed_"};
  LOCKSTEP_ASSIGN_OR_RETURN(TrainerRun first,
                            Start(trainer, plan.c, files, paths));
  const bool can_go_on =
      first.end == TrainerRun::End::kExited &&
      std::ranges::none_of(first.ranks, [](const TrainerRun::Rank& rank) {
        return rank.output.unsupported.has_value();
      });
  if (!plan.resumed.has_value() || !can_go_on) return first;
  const std::string checkpoint = paths.Of("output") + "/checkpoint";
  const std::string resumed = resumed_paths.Of("output");
  std::error_code error;
  if (!fs::is_directory(checkpoint, error)) {
    first.end = TrainerRun::End::kFailed;
    first.how = absl::StrCat(
        "it wrote no folder \"checkpoint\" into its output, though it was to "
        "stop after step ",
        plan.c.stop_after);
    return first;
  }
  fs::create_directories(resumed, error);
  if (!error) fs::rename(checkpoint, resumed + "/checkpoint", error);
  if (error) return FileError(error, resumed);
  LOCKSTEP_ASSIGN_OR_RETURN(
      TrainerRun second, Start(trainer, *plan.resumed, files, resumed_paths));
  return JoinRuns(std::move(first), std::move(second));
}

std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::vector<std::string> LastLines(const std::string& output, size_t most) {
  std::vector<std::string> lines;
  size_t end = output.size();
  while (end > 0 && lines.size() < most) {
    const size_t before = output.find_last_of("\n\r", end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    std::string line = Printable(output.substr(begin, end - begin));
    if (!line.empty()) lines.push_back(std::move(line));
    end = begin == 0 ? 0 : begin - 1;
  }
  std::ranges::reverse(lines);
  return lines;
}

namespace {

void JoinRank(TrainerRun::Rank& first, TrainerRun::Rank second) {
  if (!first.status.ok()) return;
  if (!second.status.ok()) {
    first.status = absl::Status(
        second.status.code(),
        absl::StrCat("after the resume: ", second.status.message()));
    first.output = RankOutput();
    return;
  }
  if (first.output.unsupported.has_value()) return;
  if (second.output.unsupported.has_value()) {
    first.output = std::move(second.output);
    return;
  }
  first.output.steps.insert(
      first.output.steps.end(),
      std::make_move_iterator(second.output.steps.begin()),
      std::make_move_iterator(second.output.steps.end()));
  first.output.tensors.merge(second.output.tensors);
  first.output.evaluation = std::move(second.output.evaluation);
  // If the two starts state different world sizes, the second one counts.
  first.output.world_size = second.output.world_size;
}

}  // namespace

TrainerRun JoinRuns(TrainerRun first, TrainerRun second) {
  first.end = second.end;
  if (second.end != TrainerRun::End::kExited) {
    first.how = absl::StrCat("after the resume: ", second.how);
  }
  first.last_lines = std::move(second.last_lines);
  first.by_hand = std::move(second.by_hand);
  for (size_t r = 0; r < first.ranks.size() && r < second.ranks.size(); ++r) {
    JoinRank(first.ranks[r], std::move(second.ranks[r]));
  }
  return first;
}

}  // namespace lockstep::conformance
