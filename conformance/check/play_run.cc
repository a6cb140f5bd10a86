// Folders and starts.
#include "conformance/check/play_run.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/check/check_case.h"
#include "conformance/check/join_runs.h"
#include "conformance/check/run_trainer.h"
#include "conformance/check/trainer_run.h"
#include "conformance/protocol/case.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

absl::Status FileError(const std::error_code& error, const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(path, ": cannot use"));
}

absl::StatusOr<TrainerRun> Start(const TrainerCommand& trainer, const Case& c,
                                 const CaseFiles& files,
                                 const std::string& case_folder,
                                 const std::string& output_folder) {
  std::error_code error;
  fs::create_directories(case_folder, error);
  if (error) return FileError(error, case_folder);
  LOCKSTEP_RETURN_IF_ERROR(WriteCaseFolder(case_folder, c, files));
  return RunTrainer(trainer, case_folder, output_folder, c.world_size());
}

bool CanGoOn(const TrainerRun& run) {
  return run.end == TrainerRun::End::kExited &&
         std::none_of(run.ranks.begin(), run.ranks.end(),
                      [](const TrainerRun::Rank& rank) {
                        return rank.output.unsupported.has_value();
                      });
}

}  // namespace

absl::StatusOr<TrainerRun> PlayRun(const TrainerCommand& trainer,
                                   const CasePlan& plan, const CaseFiles& files,
                                   const std::string& work_folder) {
  const std::string output = absl::StrCat(work_folder, "/output");
  LOCKSTEP_ASSIGN_OR_RETURN(TrainerRun first,
                            Start(trainer, plan.c, files,
                                  absl::StrCat(work_folder, "/case"), output));
  if (!plan.resumed.has_value() || !CanGoOn(first)) return first;
  const std::string checkpoint = absl::StrCat(output, "/checkpoint");
  const std::string resumed = absl::StrCat(work_folder, "/resumed_output");
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
      TrainerRun second,
      Start(trainer, *plan.resumed, files,
            absl::StrCat(work_folder, "/resumed_case"), resumed));
  return JoinRuns(std::move(first), std::move(second));
}

}  // namespace lockstep
