// States to JSON and back.
#include "sampler/sampler_state.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

SamplerState Example() {
  return {.order = "11 samples \"in order\"",
          .epoch = 3,
          .first_world_size = 4,
          .before = 5,
          .world_size = 2,
          .batch_size = 7,
          .visited = std::numeric_limits<int64_t>::max()};
}

TEST(SamplerStateTest, ComesBackFromJson) {
  const std::string json = ToJson(Example());
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  const absl::StatusOr<SamplerState> state = SamplerStateFromJson(json);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(*state, Example());
}

TEST(SamplerStateTest, NamesTheKeyThatIsMissingOrWrong) {
  const std::string json = ToJson(Example());
  for (const char* key : {"order", "epoch", "first_world_size", "before",
                          "world_size", "batch_size", "visited"}) {
    const std::string quoted = std::string("\"") + key + "\"";
    const std::string missing =
        absl::StrReplaceAll(json, {{quoted, "\"other\""}});
    EXPECT_THAT(
        SamplerStateFromJson(missing),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(quoted)));
    const std::string wrong =
        absl::StrReplaceAll(json, {{quoted + ":", quoted + ":null,\"x\":"}});
    EXPECT_THAT(
        SamplerStateFromJson(wrong),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(quoted)));
  }
}

TEST(SamplerStateTest, RejectsWhatIsNoState) {
  for (const char* text : {"", "{", "[]", "3", "\"text\"", "{}x"}) {
    EXPECT_THAT(SamplerStateFromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no JSON object")))
        << text;
  }
  // Numbers that no int64 holds.
  for (const char* number : {"1.5", "9223372036854775808", "1e3"}) {
    EXPECT_THAT(
        SamplerStateFromJson(absl::StrReplaceAll(
            ToJson(Example()),
            {{"\"epoch\":3", std::string("\"epoch\":") + number}})),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epoch")))
        << number;
  }
}

}  // namespace
}  // namespace lockstep
