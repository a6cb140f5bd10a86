// Programs in the place of Python, for tests.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_FAKE_PYTHON_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_FAKE_PYTHON_H_

#include <string>

namespace lockstep::benchmarks {

// The path of a program in the test's own folder that runs `script` with the
// shell, whatever its arguments.
std::string MakePython(const std::string& script);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_FAKE_PYTHON_H_
