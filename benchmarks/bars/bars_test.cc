// Tests of the command `bars`, with scripts in place of the benchmarks.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Writes a shell script in the benchmark's place. $json is the path of its
// JSON.
void MakeBenchmark(const std::string& program, const std::string& script) {
  const std::filesystem::path path = TestPath("") + "/" + program;
  std::filesystem::create_directories(path.parent_path());
  ASSERT_THAT(ReplaceFile(path.string(),
                          absl::StrCat(
                              "#!/bin/sh\nfor flag; do case $flag in --json=*) "
                              "json=${flag#*=};; esac; done\n",
                              script)),
              IsOk());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

CommandOutcome RunBars(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/bars/bars --programs=",
                                 TestPath(""), " ", flags),
                    /*deadline_seconds=*/60);
}

TEST(BarsCommandTest, GathersTheBarsOfEveryBenchmark) {
  MakeBenchmark("step/step",
                "echo \"steps, $1\"; echo '{\"bars\": [{\"what\": \"a step\", "
                "\"at_least\": 1.5, \"unit\": \"times\", \"value\": 1.25}]}' "
                "> $json");
  MakeBenchmark("sampler/sampler",
                "echo '{\"bars\": [{\"what\": \"memory\", \"at_most\": 2, "
                "\"unit\": \"MiB\", \"value\": 1}, {\"what\": \"indices\", "
                "\"at_least\": 3, \"unit\": \"\", \"value\": null}, "
                "{\"what\": \"noise\", \"at_least\": 3, \"unit\": \"\", "
                "\"value\": 2, \"met\": null}]}' > $json");
  const std::string path = TestPath(".json");
  const std::string flags =
      absl::StrCat("--benchmarks=sampler,step --json=", path);
  const CommandOutcome outcome = RunBars(flags);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(
          HasSubstr("$ bazel run //benchmarks:step -- --peers=eager,compile"),
          HasSubstr("\nsteps, --peers=eager,compile\n"),
          HasSubstr("\na step           at least 1.5 times 1.25: NOT met\n"
                    "sampler: memory  at most 2 MiB      1.00: met\n"
                    "sampler: indices at least 3         not measured\n"
                    "sampler: noise   at least 3         2.00: not judged\n")));
  EXPECT_EQ(ReadJson(path)["bars"].size(), 4u);
  EXPECT_EQ(RunBars(flags + " --require_bars").exit_status, 1);
}

// Each of the two runs measures one bar, and lists the other run's bar.
TEST(BarsCommandTest, ListsABarOnceThatOneOfTwoRunsMeasured) {
  MakeBenchmark("scaling/scaling", R"(
case $1 in
  *=lenet) lenet=2 resnet=null ;;
  *) lenet=null resnet=3 ;;
esac
cat > $json <<END
{"bars": [{"what": "lenet", "at_least": 1, "value": $lenet},
          {"what": "resnet", "at_least": 4, "value": $resnet},
          {"what": "both", "at_least": 1, "value": 5},
          {"what": "none", "at_least": 1, "value": null}]}
END
)");
  const CommandOutcome outcome = RunBars("--benchmarks=scaling");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nlenet  at least 1 2.00: met\n"
                                        "resnet at least 4 3.00: NOT met\n"
                                        "both   at least 1 5.00: met\n"
                                        "none   at least 1 not measured\n"
                                        "both   at least 1 5.00: met\n"));
}

// `bars` makes syncbn measure a step of ResNet-18. Its percents have one
// decimal.
TEST(BarsCommandTest, AsksForAStepWithSyncBatchNorm) {
  MakeBenchmark("syncbn/syncbn",
                "echo '{\"bars\": [{\"what\": \"step\", \"at_most\": 2, "
                "\"unit\": \"percent\", \"value\": 2.14, \"met\": false, "
                "\"decimals\": 1}]}' > $json");
  const CommandOutcome outcome = RunBars("--benchmarks=syncbn --require_bars");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(" --shapes=resnet18_d2l --network=resnet18_d2l "),
                    HasSubstr("\nSyncBN: step at most 2 percent "
                              "2.1: NOT met\n")));
}

TEST(BarsCommandTest, GoesOnAfterABenchmarkThatFails) {
  MakeBenchmark("step/step", "echo 'step: it broke' >&2; exit 1");
  MakeBenchmark("sampler/sampler",
                "echo '{\"bars\": [{\"what\": \"memory\", \"at_most\": 2, "
                "\"unit\": \"MiB\", \"value\": 1}]}' > $json");
  MakeBenchmark("syncbn/syncbn", "echo nonsense > $json");
  const CommandOutcome outcome = RunBars("--benchmarks=sampler,step,syncbn");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("it ended with exit status 1; it said: step: it "
                              "broke"),
                    HasSubstr("report.json is not a JSON object"),
                    HasSubstr("1.00: met")));
}

TEST(BarsCommandTest, RefusesABenchmarkThatThereIsNot) {
  const CommandOutcome outcome = RunBars("--benchmarks=step,speed");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("bars: --benchmarks: 'speed' is not one of step"),
                    Not(HasSubstr("$ bazel"))));
}

}  // namespace
}  // namespace lockstep::benchmarks
