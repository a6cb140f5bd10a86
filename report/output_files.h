// The files that --output_dir and --json name.
#ifndef LOCKSTEP_REPORT_OUTPUT_FILES_H_
#define LOCKSTEP_REPORT_OUTPUT_FILES_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Makes the folder, if it is not there, and finds out before a long run whether
// it can be written to. Error: kPermissionDenied, beginning with --output_dir.
absl::Status MakeOutputFolder(const std::string& folder);

// Finds out before a long run what would otherwise fail at its end. `path`: as
// the user gave it; empty is fine. Errors: kInvalidArgument, naming --json.
absl::Status CheckJsonPath(const std::string& path);

// Writes the file, unless the path is empty, and says so on standard output.
// Errors: the file system's.
absl::Status WriteJsonFile(const std::string& path, const std::string& json);

// The same for a path that need not be resolved.
absl::Status WriteReportFile(const std::string& path, const std::string& text);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_OUTPUT_FILES_H_
