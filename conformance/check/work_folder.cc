// mkdtemp() and its undoing.
#include "conformance/check/work_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<WorkFolder> WorkFolder::Create() {
  std::error_code error;
  const std::filesystem::path below =
      std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "no folder for temporary files (TMPDIR): ", error.message()));
  }
  std::string path = below / "lockstep-check-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, path);
  }
  return WorkFolder(std::move(path));
}

WorkFolder::~WorkFolder() {
  if (path_.empty()) return;
  std::error_code ignored;  // Nobody is there to tell.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
