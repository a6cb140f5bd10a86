#include "conformance/syncbn/batch_norm_check.h"

#include "conformance/syncbn/batch_norm_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Of any other name, BatchNormCheck does not compile.
static_assert(IsBatchNormCheck("Status"));
static_assert(IsBatchNormCheck("SameBits"));
static_assert(!IsBatchNormCheck("Outputs"));
static_assert(!IsBatchNormCheck("Out"));
static_assert(!IsBatchNormCheck(""));

TEST(BatchNormCheckTest, TheListIsTheTable) {
  EXPECT_THAT(BatchNormChecks(), testing::ElementsAreArray(kBatchNormChecks));
}

TEST(BatchNormCheckTest, KeepsItsName) {
  constexpr BatchNormCheck kCheck = "Ready";
  EXPECT_STREQ(kCheck.name(), "Ready");
}

}  // namespace
}  // namespace lockstep
