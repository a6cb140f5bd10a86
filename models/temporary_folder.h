// A folder for what lasts no longer than a run.
#ifndef LOCKSTEP_MODELS_TEMPORARY_FOLDER_H_
#define LOCKSTEP_MODELS_TEMPORARY_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Below TMPDIR, or /tmp if that is empty or not set, for this user alone;
// removed with all that is in it when this object goes.
class TemporaryFolder {
 public:
  // A new one, whose name begins with `name`, and "-" after it.
  // Errors: the file system's, with the path.
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view name);

  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // "" after a move.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TEMPORARY_FOLDER_H_
