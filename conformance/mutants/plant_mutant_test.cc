// The control of the bugs that are planted in LeNet's training, which
// all_mutants_test plants: without a bug the same run passes.
#include "conformance/mutants/plant_mutant.h"

#include "base/status_matchers.h"
#include "conformance/rejection.h"
#include "conformance/training_run.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(PlantMutantTest, WithoutABugEveryCheckPasses) {
  const auto rejections = PlantMutation(Mutation());
  ASSERT_THAT(rejections, IsOk());
  EXPECT_TRUE(rejections->empty())
      << (*rejections)[0].check << ": " << (*rejections)[0].message;
}

}  // namespace
}  // namespace lockstep
