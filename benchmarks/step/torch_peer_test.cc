// Runs the tests of PyTorch's side of the command, unless no Python has it.
#include "base/run_command.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

TEST(TorchPeerTest, PassesInPython) {
  RunPythonTest("torch", "benchmarks/step/torch_peer_test.py",
                /*deadline_seconds=*/280);
}

}  // namespace
}  // namespace lockstep::benchmarks
