// mkdtemp() and its undoing.
#include "models/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstdlib>
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
  const char* const tmpdir = std::getenv("TMPDIR");
  const std::filesystem::path below =
      tmpdir != nullptr && *tmpdir != '\0' ? tmpdir : "/tmp";
  std::error_code error;  // Of what is no folder, the path says enough.
  if (!std::filesystem::is_directory(below, error)) {
    return absl::UnavailableError(absl::StrCat(
        "no folder for temporary files (TMPDIR): ", below.string()));
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
