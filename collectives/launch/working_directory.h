// Where the user is, who may have come through `bazel run`.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_WORKING_DIRECTORY_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_WORKING_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// What the user means by `path`. `bazel run` starts programs in a folder of its
// own and names the user's in BUILD_WORKING_DIRECTORY: a relative path is taken
// from there. Where that is not set, and for absolute and empty paths, this is
// `path` itself.
std::string UserPath(const std::string& path);

// Makes the user's folder the current one, and takes BUILD_WORKING_DIRECTORY
// out of the environment: it would mislead a child that has gone elsewhere.
// Errors: the file system's, naming the variable and the folder.
absl::Status EnterUserDirectory();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_WORKING_DIRECTORY_H_
