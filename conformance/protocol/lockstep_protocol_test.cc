// Runs lockstep_protocol_test.py.
#include "gtest/gtest.h"
#include "tools/testing/run_python_test.h"

namespace lockstep {
namespace {

TEST(LockstepProtocolTest, PassesInPython) {
  RunPythonTest("numpy", "conformance/protocol/lockstep_protocol_test.py",
                /*deadline_seconds=*/55);
}

}  // namespace
}  // namespace lockstep
