// Flags to settings.
#include "benchmarks/sampler_plan.h"

#include <limits>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseSizesTest, SortsThemAndTakesEachOnce) {
  EXPECT_THAT(ParseSizes("11"), IsOkAndHolds(ElementsAre(11)));
  EXPECT_THAT(ParseSizes("60000,1,2000000000,60000"),
              IsOkAndHolds(ElementsAre(1, 60000, 2000000000)));
}

TEST(ParseSizesTest, NamesTheSizeThatIsWrong) {
  for (const char* text : {"", "0", "-1", "2000000001", "1e6", "1,,2", "1,two",
                           "99999999999999999999", "1.5"}) {
    EXPECT_THAT(ParseSizes(text),
                StatusIs(kInvalid, StartsWith("--sizes has '")))
        << text;
  }
  EXPECT_THAT(ParseSizes("1,two"), StatusIs(kInvalid, HasSubstr("'two'")));
}

TEST(ParseSamplerPeersTest, KnowsOne) {
  EXPECT_THAT(ParseSamplerPeers("torch"), IsOkAndHolds(true));
  EXPECT_THAT(ParseSamplerPeers(""), IsOkAndHolds(false));
  EXPECT_THAT(ParseSamplerPeers("torch,mpi"),
              StatusIs(kInvalid, StartsWith("--peers is 'torch,mpi'")));
}

TEST(ValidateTest, NamesTheFlagThatIsWrong) {
  EXPECT_THAT(Validate(SamplerSettings()), IsOk());
  SamplerSettings settings;
  settings.rounds = -1;
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--rounds is -1, must be")));
  settings = SamplerSettings();
  settings.seconds = 0;
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--seconds: 0 is not")));
  settings = SamplerSettings();
  settings.timeout = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, StartsWith("--timeout: nan is not")));
}

// 100 million samples must fit where the bars are measured.
TEST(MemoryTest, GrowsWithTheSize) {
  EXPECT_GT(DrawMemory(100'000'000), 500'000'000);
  EXPECT_LT(DrawMemory(100'000'000), 700'000'000);
  EXPECT_GT(PyTorchMemory(100'000'000), 4'800'000'000);
  EXPECT_LT(PyTorchMemory(100'000'000), 7'000'000'000);
}

}  // namespace
}  // namespace lockstep
