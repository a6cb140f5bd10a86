// A folder for one run, among those of all users.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_PRIVATE_DIRECTORY_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_PRIVATE_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// A folder that only this user can read or write, shared by the processes that
// open the same path. Destruction removes it if it is empty, so the last to go
// does.
class PrivateDirectory {
 public:
  // Creates the folder, mode 0700, if it is absent. Errors: kPermissionDenied
  // if what is there is no folder, or another user's, or open to others; the
  // file system's; all with the path.
  static absl::StatusOr<PrivateDirectory> Open(const std::string& path);

  PrivateDirectory(PrivateDirectory&& other) noexcept;
  PrivateDirectory& operator=(PrivateDirectory&& other) noexcept;
  ~PrivateDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit PrivateDirectory(std::string path);

  std::string path_;  // "" after a move.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_PRIVATE_DIRECTORY_H_
