// mkdtemp() and its undoing.
#include "models/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(
    absl::string_view name) {
  std::error_code error;
  const std::filesystem::path below =
      std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "no folder for temporary files (TMPDIR): ", error.message()));
  }
  std::string path = below / absl::StrCat(name, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, path);
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;  // Nobody is there to tell.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
