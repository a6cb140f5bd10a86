// mkdir, lstat, rmdir.
#include "collectives/launch/private_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// Looks at the folder also when it was created just now: another user may own
// the folder above and have put something else in its place. On failure errno
// says why.
bool Create(const std::string& path, struct stat& info) {
  // Who leaves may remove the folder between the two calls, each time.
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts; ++i) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (lstat(path.c_str(), &info) == 0) return true;
    if (errno != ENOENT) return false;
  }
  return false;
}

}  // namespace

absl::StatusOr<PrivateDirectory> PrivateDirectory::Open(
    const std::string& path) {
  struct stat info;
  if (!Create(path, info)) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot create the folder ", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a folder of this user's alone"));
  }
  return PrivateDirectory(path);
}

PrivateDirectory::PrivateDirectory(std::string path) : path_(std::move(path)) {}

PrivateDirectory::PrivateDirectory(PrivateDirectory&& other) noexcept
    : path_(std::exchange(other.path_, std::string())) {}

PrivateDirectory& PrivateDirectory::operator=(
    PrivateDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

PrivateDirectory::~PrivateDirectory() {
  if (!path_.empty()) rmdir(path_.c_str());
}

}  // namespace lockstep
