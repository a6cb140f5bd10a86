// Runs Python's unit tests out of ours.
#ifndef LOCKSTEP_TOOLS_TESTING_RUN_PYTHON_TEST_H_
#define LOCKSTEP_TOOLS_TESTING_RUN_PYTHON_TEST_H_

#include <string>

namespace lockstep {

// Runs `script`, a path and flags as the shell reads them, with the first of
// python3 and /usr/bin/python3 that has `modules` ("torch, numpy"), and expects
// it to end well. If neither has them, skips the calling test and says why.
void RunPythonTest(const std::string& modules, const std::string& script,
                   int deadline_seconds);

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_TESTING_RUN_PYTHON_TEST_H_
