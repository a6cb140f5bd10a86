// Helpers for tests of benchmarks.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns the origin of the reports in tests.
report::Origin ExampleOrigin(const std::string& command);

// Expects that no line of the text has more than 100 characters.
void ExpectNarrow(absl::string_view text);

// Returns a path in the test's own folder that begins with the test case's
// name.
std::string TestPath(const std::string& suffix);

// Returns the JSON in a file. Expects that the file has JSON.
nlohmann::json ReadJson(const std::string& path);

// Makes a program in the test's own folder that stands in for Python: it runs
// `script` with the shell, whatever its arguments. Returns the program's path.
std::string MakePython(const std::string& script);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_
