// Whole files, read and replaced.
#ifndef LOCKSTEP_MODELS_FILE_IO_H_
#define LOCKSTEP_MODELS_FILE_IO_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The file's bytes. Errors: the file system's, with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes a file, replacing an old one only once the new one is complete and on
// the disk, so a reader sees one or the other; until then the new one is at
// `path` + ".partial". Errors: the file system's, with the path.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Whether ReplaceFile can begin: its error where `path` is a folder, or nothing
// can be created beside it. Leaves no file, and an old one as it is.
absl::Status CheckReplaceable(const std::string& path);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_FILE_IO_H_
