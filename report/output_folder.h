// The folder that --output_dir names.
#ifndef LOCKSTEP_REPORT_OUTPUT_FOLDER_H_
#define LOCKSTEP_REPORT_OUTPUT_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Makes it, if it is not there, and finds out before a long run whether it can
// be written to. Error: kPermissionDenied, beginning with --output_dir.
absl::Status MakeOutputFolder(const std::string& folder);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_OUTPUT_FOLDER_H_
