// Tests of the whole command, on small data sets.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommandOutcome RunSampler(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/sampler/sampler ", flags),
                    /*deadline_seconds=*/120);
}

// Returns the text as one line, because line breaks in sentences depend on the
// lengths of paths.
std::string Unwrapped(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

constexpr char kSmall[] = " --sizes=11,60000 --rounds=2";

TEST(SamplerCommandTest, MeasuresEverySampler) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunSampler(absl::StrCat("--peers= --json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("for rank 3 of 8"), HasSubstr("           60,000 torch"),
            HasSubstr("\n                  exact"),
            HasSubstr("\n                  paddle"),
            HasSubstr("\n                  table"),
            HasSubstr("\n1,000,000,000,000 keyed"), HasSubstr("\nbar  "),
            HasSubstr(" at least 20 times as fast            not measured"),
            HasSubstr(absl::StrCat("Wrote ", path)),
            Not(HasSubstr("not available"))));
  const nlohmann::json json = ReadJson(path);
  ASSERT_EQ(json["results"].size(), 2u);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["rounds"], 2);
    ASSERT_EQ(result["draws"].size(), 4u);
    for (const auto& draw : result["draws"]) EXPECT_GT(draw["median"], 0);
  }
  EXPECT_EQ(json["results"][0]["draws"][0]["count"], 2);
  EXPECT_GT(json["keyed"]["indices_per_second"]["median"], 0);
  EXPECT_TRUE(json["peer"].is_null());
}

// If PyTorch is installed, the command fails unless its indices are ours.
TEST(SamplerCommandTest, ComparesWithPyTorchIfThereIsOne) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunSampler(absl::StrCat("--json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  if (json["peer"].is_null()) {
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("PyTorch: not available: python3: "),
                      HasSubstr("; /usr/bin/python3: ")));
    return;
  }
  EXPECT_THAT(outcome.output, HasSubstr("\n                  PyTorch"));
  for (const auto& result : json["results"]) {
    EXPECT_GT(result["draws"][0]["ratio_torch"], 0);
    EXPECT_EQ(result["draws"][0]["crc32"], result["draws"][3]["crc32"]);
  }
}

TEST(SamplerCommandTest, GoesOnWithoutPyTorch) {
  const auto breaks = [](const std::string& script) {
    return MakePython("echo lockstep: ready 2.1.0; read line;" + script);
  };
  // Cases with a size fail only when they are asked to draw.
  struct Case {
    std::string python, size, why;
    int timeout = 100;
  };
  const std::vector<Case> cases = {
      {"/bin/false", "", "it ended with exit status 1"},
      {"/absent/python", "", "cannot run it: No such file or directory"},
      {MakePython("echo lockstep: missing No module named torch"), "",
       "No module named torch"},
      {breaks("echo nonsense; exit 0"), "11", "it said: nonsense"},
      {breaks("echo lockstep: nonsense; cat"), "11",
       "has an unknown form: nonsense"},
      {breaks("echo MemoryError >&2; exit 1"), "11", "it said: MemoryError"},
      {breaks("kill -9 $$"), "11", "signal 9 ended it"},
      {breaks("sleep 1000"), "11", "it did not answer in time", 3}};
  for (const auto& [python, size, why, timeout] : cases) {
    const CommandOutcome outcome = RunSampler(
        absl::StrCat("--timeout=", timeout, " --python=", python, kSmall));
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    const std::string text = Unwrapped(outcome.output);
    const std::string where =
        size.empty() ? python : absl::StrCat("at ", size, " samples");
    EXPECT_THAT(text, HasSubstr("PyTorch: not available: " + where + ": "));
    EXPECT_THAT(text,
                AllOf(HasSubstr("           60,000 torch"),
                      HasSubstr(" torch at n = 1,281,167"), HasSubstr(why)));
  }
}

TEST(SamplerCommandTest, FailsIfPyTorchDrawsOtherIndices) {
  const CommandOutcome outcome = RunSampler(
      absl::StrCat("--python=",
                   MakePython("echo lockstep: ready 2.1.0; read line;"
                              "echo lockstep: drew 0.5 2 12345; cat"),
                   kSmall));
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("\nsampler: torch: of 11 samples it draws 2 indices"));
}

// Every wrong flag gives exit status 2 and one line that names the flag.
TEST(SamplerCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--sizes=0", "--sizes has '0'"},
      {"--sizes=", "--sizes has ''"},
      {"--sizes=9,x", "--sizes has 'x'"},
      {"--peers=numpy", "--peers is 'numpy'"},
      {"--peers=torch,mpi", "--peers is 'torch,mpi'"},
      {"--rounds=-1", "--rounds is -1, must be"},
      {"--rounds=few", "--rounds=few"},
      {"--seconds=0", "--seconds: 0"},
      {"--timeout=-1", "--timeout: -1"},
      {"--timeout=nan", "--timeout: nan is not"},
      {"--json=/absent/folder/x.json", "--json: cannot write to /absent"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  ExpectChecksFlags("sampler", RunSampler, cases);
}

}  // namespace
}  // namespace lockstep::benchmarks
