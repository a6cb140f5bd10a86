// Packs a folder into one file.
#ifndef LOCKSTEP_TOOLS_GPU_BUNDLE_PACK_H_
#define LOCKSTEP_TOOLS_GPU_BUNDLE_PACK_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep::gpu_bundle {

// Writes the regular files of the folder and its subfolders to a tar file
// (POSIX ustar, not compressed), sorted by name, each as FOLDER/NAME. Leaves
// out files that cannot be read, and names of more than 100 bytes. The host may
// lack `tar`. Errors: kUnavailable if the folder cannot be listed;
// ReplaceFile's.
absl::Status PackFolder(const std::string& folder, const std::string& file);

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_PACK_H_
