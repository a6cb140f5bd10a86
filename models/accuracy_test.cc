// d2l's recipe on the real data: LeNet reaches the accuracy that it is known
// for. Needs Fashion-MNIST where the distribution's package puts it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "models/testing/program.h"

namespace lockstep {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(14);

// PyTorch's own run of the recipe gives 0.19, 0.56, 0.71, 0.78, 0.78, 0.81,
// 0.82, 0.78, 0.78, 0.80. From one epoch to the next the accuracy of such a run
// moves by up to 0.05, and which epoch is the first to pass 0.80 depends on the
// seed, so the bounds are on the best so far: 0.80 in the end and, since it
// must not be slower to get there, 0.05 below PyTorch's best when half way.
TEST(AccuracyTest, TwoRanksReachThePublishedAccuracyOfTheRecipe) {
  const std::string dir = absl::StrCat(testing::TempDir(), "/accuracy");
  std::filesystem::create_directories(dir);
  Program program(dir, {"models/train", "--nproc=2", "--output_dir=" + dir});
  const ProgramResult result = program.Wait(kDeadline);
  ASSERT_EQ(result.exit_status, 0) << result.out << result.err;
  const nlohmann::json metrics =
      nlohmann::json::parse(std::ifstream(dir + "/metrics.json"), nullptr,
                            /*allow_exceptions=*/false);
  ASSERT_EQ(metrics["epochs"].size(), 10u) << result.out;
  std::vector<double> best;
  for (const nlohmann::json& epoch : metrics["epochs"]) {
    const double accuracy = epoch["test_accuracy"];
    best.push_back(best.empty() ? accuracy : std::max(best.back(), accuracy));
  }
  EXPECT_GE(best[4], 0.73) << result.out;
  EXPECT_GE(best[9], 0.80) << result.out;
}

}  // namespace
}  // namespace lockstep
