// One variable, and what follows from it.
#include "collectives/launch/working_directory.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

}  // namespace

std::string UserPath(const std::string& path) {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr || path.empty() || path[0] == '/') return path;
  return absl::StrCat(folder, "/", path);
}

absl::Status EnterUserDirectory() {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr) return absl::OkStatus();
  if (chdir(folder) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(kVariable, "=", folder));
  }
  unsetenv(kVariable);
  return absl::OkStatus();
}

}  // namespace lockstep
