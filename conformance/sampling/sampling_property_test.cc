#include "conformance/sampling/sampling_property.h"

#include <string>
#include <vector>

#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/resume_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Of any other name, SamplingProperty does not compile.
static_assert(IsSamplingProperty("Guards"));
static_assert(IsSamplingProperty("RepeatedDraw"));
static_assert(IsSamplingProperty("BadStates"));
static_assert(!IsSamplingProperty("Guard"));
static_assert(!IsSamplingProperty("Guardses"));
static_assert(!IsSamplingProperty(""));

TEST(SamplingPropertyTest, TheListsAreTheTables) {
  EXPECT_THAT(EpochProperties(), testing::ElementsAreArray(kEpochProperties));
  EXPECT_THAT(ResumeProperties(), testing::ElementsAreArray(kResumeProperties));
}

TEST(SamplingPropertyTest, KeepsItsName) {
  constexpr SamplingProperty kProperty = "Deal";
  EXPECT_STREQ(kProperty.name(), "Deal");
}

}  // namespace
}  // namespace lockstep
