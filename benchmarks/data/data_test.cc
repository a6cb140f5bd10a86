// The command `data`, next to programs in the place of torchvision.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/run_command.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CommandOutcome RunData(const std::string& flags) {
  return RunCommand(
      absl::StrCat("benchmarks/data/data --images=2 --rounds=2 ", flags),
      /*deadline_seconds=*/60);
}

// A peer that takes two seconds for everything, and has this mean.
std::string PeerWithMean(const std::string& mean) {
  return MakePython(absl::StrCat(
      "echo lockstep: ready 9.9 torchvision 8.8; while read line; do "
      "echo lockstep: loaded 2 ",
      mean, "; done"));
}

TEST(DataCommandTest, MeasuresOursAlone) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunData("--peers= --image_sizes=32,1 --json=" + path);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const size_t table = outcome.output.find("\n32 pixels\n");
  ExpectNarrow(
      outcome.output.substr(table, outcome.output.find("Wrote") - table));
  const nlohmann::json json = ReadJson(path);
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["images"], 2);
  EXPECT_TRUE(json["peer"].is_null());
  EXPECT_TRUE(json["bars"][1]["met"].is_null());
  for (const nlohmann::json& result : json["results"]) {
    EXPECT_TRUE(result["ratio"].is_null());
    ASSERT_EQ(result["subjects"].size(), 3u);
    EXPECT_EQ(result["subjects"][0]["seconds"].size(), 2u);
    EXPECT_GT(result["subjects"][0]["seconds"][0], 0);
  }
}

// A peer of another mean is rejected with both; one of that mean is measured.
TEST(DataCommandTest, MeasuresAPeerOnlyIfItsImagesAreTheSame) {
  const std::string flags = "--image_sizes=32 --python=";
  const CommandOutcome other = RunData(flags + PeerWithMean("0.9"));
  EXPECT_EQ(other.exit_status, 1);
  EXPECT_THAT(other.output, AllOf(HasSubstr("the mean of the resized images"),
                                  HasSubstr("torchvision's is 0.9")));
  const std::vector<std::string> words =
      absl::StrSplit(other.output.substr(other.output.find("images is ")),
                     absl::ByAnyChar(" ,"));
  ASSERT_GT(words.size(), 2u);
  const std::string path = TestPath(".json");
  const CommandOutcome same =
      RunData(absl::StrCat(flags, PeerWithMean(words[2]), " --json=", path));
  ASSERT_EQ(same.exit_status, 0) << same.output;
  EXPECT_THAT(same.output,
              AllOf(HasSubstr("PyTorch 9.9"), HasSubstr("torchvision, Pillow"),
                    HasSubstr("at least 1.5 times as fast")));
  const nlohmann::json result = ReadJson(path)["results"][0];
  const auto& seconds = result["subjects"][0]["seconds"];
  EXPECT_DOUBLE_EQ(
      result["ratio"].get<double>(),
      2 / ((seconds[0].get<double>() + seconds[1].get<double>()) / 2));
}

TEST(DataCommandTest, NamesAFlagThatIsWrong) {
  for (const auto& [flag, error] :
       {std::pair("--image_sizes=32,0", "--image_sizes: '0' is not between"),
        {"--image_sizes=", "--image_sizes: '' is not between"},
        {"--peers=jax", "--peers: 'jax' is not torch"},
        {"--rounds=0", "--rounds: 0 is not between 1 and 1000"},
        {"--timeout=-1", "--timeout: -1 is not above 0"},
        {"--json=/absent/x", "--json: cannot write to"}}) {
    const CommandOutcome outcome = RunData(flag);
    EXPECT_EQ(outcome.exit_status, 2) << flag;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("data: ", error)));
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
