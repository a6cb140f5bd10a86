// Tests of flags, and of the steps that they ask for.
#include "benchmarks/step/settings.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"

namespace lockstep::benchmarks {
namespace {

TEST(CasesOfTest, TakesOptionsWithTheirNetworkAndEachThreadsAndTypes) {
  StepSettings settings = {.models = "vit:patch=4,depth=2,lenet,resnet34"};
  ASSERT_THAT(ParseStepLists("1,2", "bfloat16", "auto", "", settings), IsOk());
  const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
  ASSERT_THAT(cases, IsOk());
  std::vector<std::string> names;
  for (const StepCase& one : *cases) names.push_back(Name(one));
  EXPECT_THAT(names,
              testing::ElementsAre(
                  "vit:patch=4,depth=2, batch 32, 1x28x28, 1 thread, bfloat16",
                  "vit:patch=4,depth=2, batch 32, 1x28x28, 2 threads, bfloat16",
                  "lenet, batch 256, 1x28x28, 1 thread, bfloat16",
                  "lenet, batch 256, 1x28x28, 2 threads, bfloat16",
                  "resnet34, batch 16, 3x112x112, 1 thread, bfloat16",
                  "resnet34, batch 16, 3x112x112, 2 threads, bfloat16"));
}

TEST(CasesOfTest, GivesResNet18BothBatchesUnlessOneIsNamed) {
  StepSettings settings = {.models = "resnet18_d2l,resnet18"};
  ASSERT_THAT(ParseStepLists("1", "float32", "auto", "", settings), IsOk());
  const auto batches = [&] {
    std::vector<std::string> names;
    const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
    for (const StepCase& one : cases.value()) {
      names.push_back(absl::StrCat(one.spec, " ", one.batch));
    }
    return names;
  };
  EXPECT_THAT(batches(),
              testing::ElementsAre("resnet18_d2l 32", "resnet18_d2l 16",
                                   "resnet18 16"));
  settings.batch = 8;
  EXPECT_THAT(batches(), testing::ElementsAre("resnet18_d2l 8", "resnet18 8"));
}

TEST(CasesOfTest, GivesEachCaseTheConvolutionsOnce) {
  StepSettings settings = {.models = "lenet"};
  ASSERT_THAT(
      ParseStepLists("1", "float32", "direct,auto,direct", "", settings),
      IsOk());
  const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
  ASSERT_THAT(cases, IsOk());
  EXPECT_THAT((*cases)[0].convolutions,
              testing::ElementsAre(ConvolutionAlgorithm::kDirect,
                                   ConvolutionAlgorithm::kAuto));
  EXPECT_EQ(OursName(ConvolutionAlgorithm::kAuto), "ours");
  EXPECT_EQ(OursName(ConvolutionAlgorithm::kDirect), "ours, direct");
}

}  // namespace
}  // namespace lockstep::benchmarks
