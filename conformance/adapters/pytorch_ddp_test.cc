// Runs pytorch_ddp_test.py, each of its suites in a Python of its own.
#include <string>

#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

void RunSuite(const std::string& suite) {
  RunPythonTest(
      "numpy, torch.distributed",
      absl::StrCat("conformance/adapters/pytorch_ddp_test.py ", suite),
      /*deadline_seconds=*/240);
}

TEST(PytorchDdpTest, SeveralRanksDoWhatOneDoes) { RunSuite("RightTest"); }

TEST(PytorchDdpTest, TutorialsDifferAsDocumented) { RunSuite("TutorialTest"); }

TEST(PytorchDdpTest, BrokenCopiesDifferWhereTheyAreBroken) {
  RunSuite("BrokenTest");
}

TEST(PytorchDdpTest, CommandsRun) { RunSuite("CommandTest"); }

}  // namespace
}  // namespace lockstep
