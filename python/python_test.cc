// Runs the tests of the Python package. A test is skipped, with the reason, if
// no Python has the modules that it needs.
#include "base/run_command.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kDeadlineSeconds = 800;

TEST(WheelTest, InstallsAndRuns) {
  RunPythonTest("pip, venv", "python/wheel_test.py", kDeadlineSeconds);
}

TEST(DigestTest, PassesInPython) {
  RunPythonTest("numpy", "python/lockstep/digest_test.py", kDeadlineSeconds);
}

TEST(RecordTest, PassesInPython) {
  RunPythonTest("json", "python/lockstep/record_test.py", kDeadlineSeconds);
}

TEST(JudgeTest, PassesInPython) {
  RunPythonTest("json", "python/lockstep/judge_test.py", kDeadlineSeconds);
}

TEST(LaunchTest, PassesInPython) {
  RunPythonTest("json", "python/lockstep/launch_test.py", kDeadlineSeconds);
}

TEST(Fsdp2Test, PassesInPython) {
  RunPythonTest("numpy, torch.distributed.fsdp._fully_shard",
                "python/lockstep/fsdp2_test.py", kDeadlineSeconds);
}

TEST(AccelerateTest, PassesInPython) {
  RunPythonTest("numpy, accelerate", "python/lockstep/accelerate_test.py",
                kDeadlineSeconds);
}

TEST(DeepSpeedTest, PassesInPython) {
  RunPythonTest("numpy, deepspeed", "python/lockstep/deepspeed_test.py",
                kDeadlineSeconds);
}

TEST(FailFastTest, PassesInPython) {
  RunPythonTest("json", "python/lockstep/monitor/fail_fast_test.py",
                kDeadlineSeconds);
}

TEST(WaitingTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/monitor/waiting_test.py", kDeadlineSeconds);
}

TEST(GoneTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/monitor/gone_test.py", kDeadlineSeconds);
}

TEST(JoiningTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/monitor/joining_test.py", kDeadlineSeconds);
}

TEST(ReportsTest, PassesInPython) {
  RunPythonTest("json", "python/lockstep/reports_test.py", kDeadlineSeconds);
}

TEST(OddScriptsTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/odd_scripts_test.py", kDeadlineSeconds);
}

TEST(ByHandTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed", "python/lockstep/by_hand_test.py",
                kDeadlineSeconds);
}

TEST(RecorderTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed", "python/lockstep/recorder_test.py",
                kDeadlineSeconds);
}

TEST(DevicesTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/hooks/devices_test.py", kDeadlineSeconds);
}

TEST(ReferenceTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed", "python/lockstep/reference_test.py",
                kDeadlineSeconds);
}

TEST(ScalersTest, PassesInPython) {
  RunPythonTest("numpy, torch.amp.grad_scaler",
                "python/lockstep/scalers_test.py", kDeadlineSeconds);
}

TEST(EarlierRunTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "python/lockstep/earlier_run_test.py", kDeadlineSeconds);
}

TEST(TensorsTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed", "python/lockstep/tensors_test.py",
                kDeadlineSeconds);
}

}  // namespace
}  // namespace lockstep
