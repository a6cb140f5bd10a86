// Tests of the checker on the PyTorch adapter: the adapter passes its own tests
// and the checks, and each of its mutants gets the verdict that names it. Used
// as in tutorials, the adapter differs only as PyTorch documents.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/slice.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {

struct BrokenTrainer {
  const char* mutant;  // A name that broken_pytorch_ddp.py knows.
  const char* case_name;
  const char* claim;
  const char* cause;
};

// Shows the parameter of a failing test.
void PrintTo(const BrokenTrainer& trainer, std::ostream* out) {
  *out << trainer.mutant;
}

namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr char kPreloaded[] =
    "conformance/adapters/testing/preloaded_python.py";
constexpr absl::Duration kDeadline = absl::Minutes(10);

bool HasTorch() {
  static const bool has = [] {
    const SubprocessResult python =
        RunSubprocess({kPython, "-c",
                       "import importlib.util as u; "
                       "assert u.find_spec('torch') and u.find_spec('numpy')"},
                      absl::Minutes(2));
    return python.exit_status == 0;
  }();
  return has;
}

// Returns a command that replaces `python3` and does not load PyTorch again.
// The first call starts a server that has PyTorch loaded.
std::string PreloadedPython() {
  static const std::string name =
      absl::StrCat("lockstep-", absl::Hex(std::random_device()()));
  static const absl::StatusOr<Subprocess> server =
      Subprocess::Start({kPython, kPreloaded, "serve", name, "numpy",
                         "torch.distributed", "torch.nn.parallel"});
  return absl::StrCat(kPython, " -I -S ", kPreloaded, " run ", name);
}

// Returns the path of a program that runs PreloadedPython(), for --python.
std::string PreloadedProgram() {
  // The server starts before the file is open: a started process would inherit
  // the file, and a program that is open for writing cannot be run.
  const std::string python = PreloadedPython();
  const std::string path = testing::TempDir() + "/preloaded_python";
  std::ofstream(path) << "#!/bin/sh\nexec " << python << " \"$@\"\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

struct Result {
  int status = 0;
  std::string output;
  nlohmann::json report;
};

Result RunCheck(std::vector<std::string> flags) {
  const testing::TestInfo* const test =
      testing::UnitTest::GetInstance()->current_test_info();
  std::string name = test->name();
  for (char& c : name) c = c == '/' ? '_' : c;
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  flags.insert(flags.begin(), "conformance/check/check");
  flags.push_back("--output_dir=" + folder);
  const SubprocessResult check = RunSubprocess(flags, kDeadline);
  Result result;
  result.status = check.exit_status;
  result.output = absl::StrCat(check.out, check.err);
  result.report = nlohmann::json::parse(
      ReadFile(folder + "/check.json").value_or(""), nullptr, false);
  return result;
}

// Returns the first failed claim of the only case.
nlohmann::json FirstFailure(const nlohmann::json& report) {
  for (const auto& verdict : report["cases"][0]["verdicts"]) {
    if (verdict["outcome"] == "failed") return verdict;
  }
  return {};
}

class BrokenTrainerTest : public testing::TestWithParam<BrokenTrainer> {};

TEST_P(BrokenTrainerTest, GetsTheVerdictThatNamesItsBug) {
  if (!HasTorch()) GTEST_SKIP() << kPython << " has no PyTorch";
  const BrokenTrainer& broken = GetParam();
  // Many times the time of a start. A trainer that hangs uses all of it.
  const int timeout = broken.cause == std::string("hangs") ? 15 : 60;
  const Result result = RunCheck(
      {absl::StrCat(
           "--command=", PreloadedPython(),
           " conformance/adapters/broken_pytorch_ddp.py --bug=", broken.mutant),
       absl::StrCat("--cases=", broken.case_name),
       absl::StrCat("--timeout=", timeout)});
  EXPECT_EQ(result.status, 1) << result.output;
  ASSERT_TRUE(result.report.is_object()) << result.output;
  ASSERT_EQ(result.report["cases"].size(), 1u);
  const nlohmann::json verdict = FirstFailure(result.report);
  ASSERT_TRUE(verdict.is_object()) << result.output;
  EXPECT_EQ(verdict["claim"], broken.claim) << result.output;
  EXPECT_EQ(verdict["cause"], broken.cause) << result.output;
  EXPECT_NE(verdict["fix"], "") << result.output;
}

// Mistakes that users of PyTorch made. The script's other mutants are planted
// in the fake trainer of judge_test, which starts no PyTorch.
constexpr BrokenTrainer kBroken[] = {
    {"LossNotScaled", "uneven_batches", "gradients", "mean_of_means"},
    {"NoSetEpoch", "shuffled", "samples", "same_order_every_epoch"},
    {"NoSyncBatchNorm", "sync_bn", "gradients", "local_batch_norm"},
    {"PaddedEvaluation", "evaluation", "evaluation", "evaluation_padded"},
    {"ParameterLeftOutOfDdp", "even", "ranks_agree", "not_reduced"},
    {"ResumeForgetsMomentum", "resume", "state", "momentum_lost"},
    {"AccumulationNotScaled", "accumulation", "gradients",
     "accumulation_not_scaled"},
    {"GradientsReducedTwice", "even", "gradients", "summed_not_averaged"},
    {"LearningRateScaledByN", "even", "state", "learning_rate_scaled"},
    {"RankSkipsLastBatch", "even", "run", "rank_skips_last_batch"},
    // The mutants below run only in exhaustive runs. pytorch_ddp_test.py always
    // shows that they differ, and judge_test names the same causes for the fake
    // trainer.
    {"UnweightedMetrics", "evaluation", "evaluation", "metrics_unweighted"},
    {"DifferentSeedsPerRank", "shuffled", "samples", "ranks_shuffle_apart"},
    {"FrozenIsTrained", "frozen_parameter", "state", "frozen_moves"},
    {"WritesNaN", "even", "run", "not_finite"},
    {"Crashes", "even", "run", "crashes"},
    {"WritesGarbage", "even", "run", "writes_garbage"},
    {"WritesNothing", "even", "run", "writes_nothing"},
    {"Hangs", "even", "run", "hangs"},
};
constexpr size_t kAlways = 10;

INSTANTIATE_TEST_SUITE_P(
    All, BrokenTrainerTest,
    testing::ValuesIn(kBroken, kBroken + (IsExhaustive() ? std::size(kBroken)
                                                         : kAlways)),
    [](const auto& info) { return info.param.mutant; });

TEST(PyTorchTest, PassesInPython) {
  RunPythonTest("numpy, torch.distributed",
                "conformance/adapters/pytorch_ddp_test.py",
                /*deadline_seconds=*/600);
}

// Returns the report's totals for one of the suite's own trainers, on which no
// case fails.
nlohmann::json TotalsOf(std::vector<std::string> flags, bool preloaded = true) {
  if (preloaded) flags.push_back("--python=" + PreloadedProgram());
  const Result result = RunCheck(flags);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_TRUE(result.report.is_object()) << result.output;
  return result.report.is_object() ? result.report["totals"] : nlohmann::json();
}

// The control: the adapter itself passes.
TEST(PyTorchTest, HoldsWhereItIsUsedSo) {
  if (!HasTorch()) GTEST_SKIP() << kPython << " has no PyTorch";
  const bool all = IsExhaustive();
  const nlohmann::json want = {{"passed", all ? 13 : 1},
                               {"failed", 0},
                               {"documented", 0},
                               {"skipped", 0}};
  EXPECT_EQ(TotalsOf({"--trainer=pytorch", "--world_size=3",
                      all ? "--cases=" : "--cases=sync_bn"}),
            want);
}

// The cases in which tutorial use differs, as the adapters' README publishes
// them, and one case that passes.
TEST(PyTorchTest, DiffersAsDocumentedWhereTutorialsUseIt) {
  if (!HasTorch()) GTEST_SKIP() << kPython << " has no PyTorch";
  const bool all = IsExhaustive();
  const nlohmann::json want = {{"passed", all ? 1 : 0},
                               {"failed", 0},
                               {"documented", all ? 4 : 1},
                               {"skipped", 1}};
  EXPECT_EQ(
      TotalsOf({"--trainer=pytorch_tutorial",
                all ? "--cases=even,uneven_batches,local_bn,uneven_last_batch,"
                      "evaluation,sync_bn"
                    : "--cases=uneven_batches,sync_bn"}),
      want);
}

// In exhaustive runs, every rank loads PyTorch, as for a user.
TEST(PyTorchTest, IsKnownByName) {
  if (!HasTorch()) GTEST_SKIP() << kPython << " has no PyTorch";
  EXPECT_EQ(TotalsOf({"--trainer=pytorch", "--cases=even"},
                     /*preloaded=*/!IsExhaustive())["passed"],
            1);
}

}  // namespace
}  // namespace lockstep::conformance
