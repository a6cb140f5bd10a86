// What this program was built with and runs on, and of when its sources are.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace lockstep {

// Pairs of what and its version: compiler, abseil, oneDNN, and Bazel where
// `bazel --version` answers.
std::vector<std::pair<std::string, std::string>> Versions();

// When the commit was made that is checked out where `bazel run` was called;
// nothing if git does not say.
std::optional<absl::Time> CommitTime();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_
