// Folder, names, open().
#include "collectives/launch/rank_logs.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {
namespace {

absl::StatusOr<OwnedFd> OpenLog(const std::string& path) {
  // Without blocking, as a pipe could make it; a pipe is refused below.
  OwnedFd log(open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  struct stat info;
  if (!log.open() || fstat(log.get(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write the log ", path, ": ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write the log ", path, ": it is not a regular file"));
  }
  return log;
}

}  // namespace

std::string RankLogPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank-", rank, ".log");
}

absl::StatusOr<std::vector<OwnedFd>> OpenRankLogs(const std::string& folder,
                                                  int world_size) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot create the log folder ", folder, ": ", error.message()));
  }
  std::vector<OwnedFd> logs;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string path = RankLogPath(folder, rank);
    LOCKSTEP_ASSIGN_OR_RETURN(OwnedFd log, OpenLog(path));
    logs.push_back(std::move(log));
  }
  return logs;
}

}  // namespace lockstep
