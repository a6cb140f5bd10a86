// What tests of benchmarks have in common.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "report/document.h"

namespace lockstep::benchmarks {

// Where the reports of tests are from.
report::Origin ExampleOrigin(const std::string& command);

// Expects that no line of the text has more than 100 characters.
void ExpectNarrow(absl::string_view text);

// A path in the test's own folder that begins with the test case's name.
std::string TestPath(const std::string& suffix);

// The JSON in a file; expects that there is some.
nlohmann::json ReadJson(const std::string& path);

// The path of a program in the test's own folder that runs `script` with the
// shell, whatever its arguments, in the place of Python.
std::string MakePython(const std::string& script);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_TESTING_H_
