#include "conformance/check/run_check.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/check_report.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/run/run_trainer.h"

namespace lockstep::conformance {
namespace {

// Makes one start, after telling on_start what it is.
using RunStart = std::function<absl::StatusOr<TrainerRun>(
    const std::string& what, const CasePlan& plan, const CaseFiles& files)>;

bool EndedWell(const TrainerRun& run) {
  return run.end == TrainerRun::End::kExited &&
         std::ranges::all_of(run.ranks, [](const TrainerRun::Rank& rank) {
           return rank.status.ok() && !rank.output.unsupported.has_value();
         });
}

absl::StatusOr<CaseRuns> RunAllStarts(const CheckCase& check,
                                      const RunStart& play) {
  CaseRuns runs;
  LOCKSTEP_ASSIGN_OR_RETURN(runs.one_rank,
                            play("1 rank", check.one_rank, check.files));
  // If one rank fails, no other run can be compared with it. A run that was not
  // started has no ranks.
  if (!EndedWell(runs.one_rank)) return runs;
  LOCKSTEP_ASSIGN_OR_RETURN(
      runs.all_ranks,
      play(absl::StrCat(check.all_ranks.c.world_size(), " ranks"),
           check.all_ranks, check.files));
  if (!EndedWell(runs.all_ranks)) return runs;
  for (const ExtraStart& start : ReorderedStarts(check)) {
    LOCKSTEP_ASSIGN_OR_RETURN(TrainerRun run, play("1 rank, for its rounding",
                                                   start.plan, start.files));
    runs.reordered.push_back(std::move(run));
  }
  return runs;
}

std::string SoftwareOf(const CaseRuns& runs) {
  for (const TrainerRun* run : {&runs.all_ranks, &runs.one_rank}) {
    for (const TrainerRun::Rank& rank : run->ranks) {
      if (!rank.output.software.empty()) return rank.output.software;
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<CaseReport> RunCheck(
    const CheckCase& check, const TrainerCommand& trainer,
    const std::string& work_folder,
    const std::function<void(const std::string&)>& on_start) {
  const absl::Time start = absl::Now();
  std::error_code error;
  std::filesystem::create_directory(work_folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(work_folder, ": ", error.message()));
  }
  int starts = 0;
  // Gives each start its own folder. Unless trainer.keep is set, the folder is
  // removed once it has been read.
  const RunStart play = [&](const std::string& what, const CasePlan& plan,
                            const CaseFiles& files) {
    if (on_start) on_start(what);
    const std::string folder = absl::StrCat(work_folder, "/start", ++starts);
    absl::StatusOr<TrainerRun> run = RunCasePlan(trainer, plan, files, folder);
    std::error_code ignored;  // The whole work folder is removed at the end.
    if (!trainer.keep) std::filesystem::remove_all(folder, ignored);
    return run;
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseRuns runs, RunAllStarts(check, play));
  const RunExtra run_extra = [&play](const ExtraStart& start) {
    return play("1 rank, for the cause", start.plan, start.files);
  };
  CaseReport report = {
      .name = check.name, .about = check.about, .software = SoftwareOf(runs)};
  report.verdicts = Judge(check, runs, run_extra);
  report.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (!trainer.keep) std::filesystem::remove_all(work_folder, error);
  return report;
}

}  // namespace lockstep::conformance
