// What this program was built with and runs on.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_
#define LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Pairs of what and its version: compiler, abseil, oneDNN, and Bazel where
// `bazel --version` answers.
std::vector<std::pair<std::string, std::string>> Versions();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_VERSIONS_H_
