// The file that --json names.
#ifndef LOCKSTEP_BENCHMARKS_JSON_FILE_H_
#define LOCKSTEP_BENCHMARKS_JSON_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Finds out before a long run what would otherwise fail at its end. `path`: as
// the user gave it; empty is fine. Errors: kInvalidArgument, naming --json.
absl::Status CheckJsonPath(const std::string& path);

// Writes the file, unless the path is empty, and says so on standard output.
// Errors: the file system's.
absl::Status WriteJsonFile(const std::string& path, const std::string& json);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_JSON_FILE_H_
