// Files that somebody else's program wrote, or something else in their place.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_FOREIGN_FILE_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_FOREIGN_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// The bytes of the regular file at `path`, which may be a link to it. Never
// waits for a writer, as opening a pipe would. Errors, all with the path:
// kDataLoss if it is no regular file or has more than `most` bytes; kNotFound
// and the like from the file system.
absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_FOREIGN_FILE_H_
