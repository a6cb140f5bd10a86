// How commands end, and whether they may run.
#ifndef LOCKSTEP_REPORT_COMMAND_STATUS_H_
#define LOCKSTEP_REPORT_COMMAND_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Exit statuses.
inline constexpr int kFailure = 1;
inline constexpr int kUsageError = 2;

// Prints the error in one line, which begins with the command's name, and
// returns the exit status: kUsageError for a message that begins with a flag,
// else kFailure.
int Fail(absl::string_view command, const absl::Status& status);

// For commands that start their ranks themselves: under mpirun or torchrun
// every rank would be a driver of its own. Errors: kFailedPrecondition if a
// launcher started this process; those of ReadRankEnvironment.
absl::Status CheckNotLaunched();

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_COMMAND_STATUS_H_
