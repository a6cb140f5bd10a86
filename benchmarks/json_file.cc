// Paths are resolved where the user is.
#include "benchmarks/json_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/launch/working_directory.h"
#include "models/file_io.h"

namespace lockstep {

absl::Status CheckJsonPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::filesystem::path file = UserPath(path);
  const std::string folder =
      file.has_parent_path() ? file.parent_path().string() : ".";
  if (access(folder.c_str(), W_OK | X_OK) == 0 &&
      !std::filesystem::is_directory(file)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--json: cannot write to ", file.string()));
}

absl::Status WriteJsonFile(const std::string& path, const std::string& json) {
  if (path.empty()) return absl::OkStatus();
  const std::string file = UserPath(path);
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(file, json));
  std::printf("Wrote %s\n", file.c_str());
  return absl::OkStatus();
}

}  // namespace lockstep
