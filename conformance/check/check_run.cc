#include "conformance/check/check_run.h"

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
#include "conformance/check/judge/judge.h"
#include "conformance/check/run/run_trainer.h"
#include "conformance/check/run/trainer_run.h"

namespace lockstep {
namespace {

// Gives each start a folder, which is removed once it has been read.
class Player {
 public:
  Player(const TrainerCommand& trainer, std::string work_folder,
         const std::function<void(const std::string&)>& on_start)
      : trainer_(trainer),
        work_folder_(std::move(work_folder)),
        on_start_(on_start) {}

  absl::StatusOr<TrainerRun> Play(const std::string& what, const CasePlan& plan,
                                  const CaseFiles& files) {
    if (on_start_) on_start_(what);
    const std::string folder = absl::StrCat(work_folder_, "/start", ++starts_);
    absl::StatusOr<TrainerRun> run = PlayRun(trainer_, plan, files, folder);
    std::error_code ignored;  // The whole work folder goes in the end.
    std::filesystem::remove_all(folder, ignored);
    return run;
  }

 private:
  const TrainerCommand& trainer_;
  const std::string work_folder_;
  const std::function<void(const std::string&)>& on_start_;
  int starts_ = 0;
};

bool EndedWell(const TrainerRun& run) {
  return run.end == TrainerRun::End::kExited &&
         std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const TrainerRun::Rank& rank) {
                       return rank.status.ok() &&
                              !rank.output.unsupported.has_value();
                     });
}

absl::StatusOr<CaseRuns> PlayAll(const CheckCase& check, Player& player) {
  CaseRuns runs;
  LOCKSTEP_ASSIGN_OR_RETURN(runs.one_rank,
                            player.Play("1 rank", check.one_rank, check.files));
  // Other runs could not be compared with anything. Runs that were not started
  // have no ranks, which is to say that they wrote nothing.
  if (!EndedWell(runs.one_rank)) return runs;
  LOCKSTEP_ASSIGN_OR_RETURN(
      runs.all_ranks,
      player.Play(absl::StrCat(check.all_ranks.c.world_size(), " ranks"),
                  check.all_ranks, check.files));
  if (!EndedWell(runs.all_ranks)) return runs;
  for (const ExtraStart& start : ReorderedStarts(check)) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        TrainerRun run,
        player.Play("1 rank, for its rounding", start.plan, start.files));
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

absl::StatusOr<CheckRun> RunCheck(
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
  Player player(trainer, work_folder, on_start);
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseRuns runs, PlayAll(check, player));
  const RunExtra run_extra = [&player](const ExtraStart& start) {
    return player.Play("1 rank, for the cause", start.plan, start.files);
  };
  CheckRun result;
  result.report.name = check.name;
  result.report.about = check.about;
  result.report.verdicts = Judge(check, runs, run_extra);
  result.report.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  result.software = SoftwareOf(runs);
  std::filesystem::remove_all(work_folder, error);
  return result;
}

}  // namespace lockstep
