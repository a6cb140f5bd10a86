// Names and ranges, and what is said of others.
#include "benchmarks/flag_values.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const NamedValues<int>& Numbers() {
  static const auto* const numbers =
      new NamedValues<int>{{"one", 1}, {"two", 2}};
  return *numbers;
}

TEST(ParseNameTest, TakesANameAndNothingElse) {
  EXPECT_THAT(ParseName("--n", "two", Numbers()), IsOkAndHolds(2));
  for (const char* text : {"", "tw", "twoo", "Two", "one,two"}) {
    EXPECT_THAT(ParseName("--n", text, Numbers()),
                StatusIs(kInvalid, absl::StrCat("--n: '", text,
                                                "' is not one of one, two")));
  }
}

TEST(ParseNamesTest, HasEachOnceInTheOrderGiven) {
  EXPECT_THAT(ParseNames("--n", "two,one,two", Numbers()),
              IsOkAndHolds(ElementsAre(2, 1)));
  EXPECT_THAT(ParseNames("--n", "one,", Numbers()),
              StatusIs(kInvalid, "--n: '' is not one of one, two"));
}

TEST(CheckRangeTest, IncludesItsEnds) {
  for (const int value : {2, 3, 4}) {
    EXPECT_THAT(CheckRange("--n", value, 2, 4), IsOk());
  }
  for (const int value : {1, 5}) {
    EXPECT_THAT(CheckRange("--n", value, 2, 4),
                StatusIs(kInvalid, absl::StrCat("--n: ", value,
                                                " is not between 2 and 4")));
  }
}

TEST(CheckSecondsTest, TakesWhatIsATime) {
  EXPECT_THAT(CheckSeconds("--t", 0.5), IsOk());
  for (const double value : {0.0, -1.0, 1e6, std::nan("")}) {
    EXPECT_THAT(
        CheckSeconds("--t", value),
        StatusIs(kInvalid, absl::StrCat("--t: ", value,
                                        " is not above 0 and below 1e+06")));
  }
}

}  // namespace
}  // namespace lockstep
