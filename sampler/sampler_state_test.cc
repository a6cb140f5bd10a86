// States to JSON and back.
#include "sampler/sampler_state.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr char kState[] =
    R"({"order":"11 samples in order","epoch":3,"first_world_size":2,)"
    R"("before":4,"world_size":5,"batch_size":6,"visited":7})";

TEST(SamplerStateTest, IsThisTextForEver) {
  const absl::StatusOr<SamplerState> state = SamplerStateFromJson(kState);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(*state, (SamplerState{.order = "11 samples in order",
                                  .epoch = 3,
                                  .first_world_size = 2,
                                  .before = 4,
                                  .world_size = 5,
                                  .batch_size = 6,
                                  .visited = 7}));
  EXPECT_EQ(ToJson(*state), kState);
}

TEST(SamplerStateTest, ComesBackFromJson) {
  const SamplerState want = {.order = "11 samples \"in order\"",
                             .epoch = 3,
                             .first_world_size = 4,
                             .before = 5,
                             .world_size = 2,
                             .batch_size = 7,
                             .visited = std::numeric_limits<int64_t>::max()};
  const std::string json = ToJson(want);
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  const absl::StatusOr<SamplerState> state = SamplerStateFromJson(json);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(*state, want);
}

TEST(SamplerStateTest, NamesTheKeyThatIsMissingOrOfAnotherType) {
  for (const std::string key : {"order", "epoch", "first_world_size", "before",
                                "world_size", "batch_size", "visited"}) {
    const std::string quoted = absl::StrCat("\"", key, "\":");
    for (const std::string& wrong :
         {absl::StrReplaceAll(kState, {{quoted, "\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "[0],\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "null,\"x\":"}}),
          absl::StrReplaceAll(kState, {{quoted, quoted + "0.5,\"x\":"}})}) {
      EXPECT_THAT(SamplerStateFromJson(wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("\"", key, "\""))))
          << wrong;
    }
  }
}

TEST(SamplerStateTest, RejectsWhatIsNoObject) {
  const std::string cut = std::string(kState).substr(0, 40);
  for (const std::string& wrong :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"),
        std::string("\"text\""), std::string("{}x"), std::string("no JSON"),
        std::string("[1, 2]"), std::string("7"), std::string("{\"order\""), cut,
        cut + "\xff"}) {
    EXPECT_THAT(SamplerStateFromJson(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no JSON object")))
        << wrong;
  }
}

TEST(SamplerStateTest, NamesTheNumberThatNoInt64Holds) {
  for (const std::string number :
       {"1.5", "9223372036854775808", "1e3", "1e30"}) {
    for (const auto& [key, value] :
         {std::pair("\"epoch\"", "3"), std::pair("\"visited\"", "7")}) {
      const std::string wrong = absl::StrReplaceAll(
          kState,
          {{absl::StrCat(key, ":", value), absl::StrCat(key, ":", number)}});
      EXPECT_THAT(SamplerStateFromJson(wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)))
          << wrong;
    }
  }
}

}  // namespace
}  // namespace lockstep
