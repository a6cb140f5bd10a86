// A folder for what lasts no longer than a run of the checker.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_WORK_FOLDER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_WORK_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace lockstep {

// Below TMPDIR or /tmp, for this user alone; removed with all that is in it
// when this object goes.
class WorkFolder {
 public:
  // Errors: the file system's, with the path.
  static absl::StatusOr<WorkFolder> Create();

  WorkFolder(WorkFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();

  const std::string& path() const { return path_; }

 private:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // "" after a move.
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_WORK_FOLDER_H_
