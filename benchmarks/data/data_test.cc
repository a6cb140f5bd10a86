// Tests the command `data` with programs in the place of torchvision.
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

// Creates a peer that reports two seconds for everything, and a difference of
// `levels` levels for the pixels.
std::string MakePeerDifferingBy(int levels) {
  return MakePython(absl::StrCat(
      "echo lockstep: ready 9.9 torchvision 8.8; while read way rest; do "
      "case $way in compare*) echo lockstep: differ ",
      levels,
      " 0.25;; list) echo lockstep: listed 2 300;; "
      "*) echo lockstep: loaded 2;; esac; done"));
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

TEST(DataCommandTest, MeasuresAPeerOnlyIfItsImagesAreTheSame) {
  const std::string flags = "--image_sizes=32 --python=";
  const CommandOutcome other = RunData(flags + MakePeerDifferingBy(2));
  EXPECT_EQ(other.exit_status, 1);
  EXPECT_THAT(other.output,
              HasSubstr("a value of the resized images is 2 levels from "
                        "torchvision's; 25% of the values differ"));
  const std::string path = TestPath(".json");
  const CommandOutcome same =
      RunData(absl::StrCat(flags, MakePeerDifferingBy(1), " --json=", path));
  ASSERT_EQ(same.exit_status, 0) << same.output;
  EXPECT_THAT(same.output,
              AllOf(HasSubstr("PyTorch 9.9"), HasSubstr("torchvision, Pillow"),
                    HasSubstr("at least 1.5 times as fast")));
  const nlohmann::json result = ReadJson(path)["results"][0];
  EXPECT_EQ(result["differences"][1]["levels"], 1);
  const auto& seconds = result["subjects"][0]["seconds"];
  EXPECT_DOUBLE_EQ(
      result["ratio"].get<double>(),
      2 / ((seconds[0].get<double>() + seconds[1].get<double>()) / 2));
}

TEST(DataCommandTest, ListsFiles) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunData(absl::StrCat(
      "--listing=2500 --python=", MakePeerDifferingBy(0), " --json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const size_t table = outcome.output.find("\nListing\n");
  ExpectNarrow(
      outcome.output.substr(table, outcome.output.find("Wrote") - table));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["files"], 2500);
  ASSERT_EQ(json["results"].size(), 3u);
  for (int ours = 0; ours < 2; ++ours) {
    EXPECT_EQ(json["results"][ours]["seconds"].size(), 2u);
    EXPECT_GT(json["results"][ours]["seconds"][0], 0);
    EXPECT_GT(json["results"][ours]["bytes_a_file"], 10);
  }
  EXPECT_EQ(json["results"][2]["bytes_a_file"], 300);
}

TEST(DataCommandTest, NamesAFlagThatIsWrong) {
  for (const auto& [flag, error] :
       {std::pair("--image_sizes=32,0", "--image_sizes: '0' is not between"),
        {"--image_sizes=", "--image_sizes: '' is not between"},
        {"--peers=jax", "--peers: 'jax' is neither torch nor empty"},
        {"--listing=-1", "--listing: -1 is not between 0 and 20000000"},
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
