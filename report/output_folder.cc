// Created, and tried.
#include "report/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::Status MakeOutputFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "--output_dir: cannot write to ", folder, ": ", error.message()));
}

}  // namespace lockstep
