// Every epoch of the grid can be stopped after every step and be gone on with
// at every world size; and a state that is none is refused.
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampler/sampler_state.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class ResumeTest
    : public testing::TestWithParam<std::tuple<SamplingCase, int>> {};

TEST_P(ResumeTest, GoesOnWhereItStopped) {
  const auto& [kind, world_size] = GetParam();
  for (const SamplingCase& c : CasesAt(kind, world_size)) {
    ASSERT_THAT(CheckResuming(MakeSubject, c), IsOk());
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, ResumeTest,
                         testing::Combine(testing::ValuesIn(SamplingKinds()),
                                          testing::Range(1, kMaxWorldSize + 1)),
                         [](const auto& info) {
                           return absl::StrCat(
                               KindName(std::get<0>(info.param)), "P",
                               std::get<1>(info.param));
                         });

constexpr char kState[] =
    R"({"order":"11 samples in order","epoch":3,"first_world_size":2,)"
    R"("before":4,"world_size":5,"batch_size":6,"visited":7})";

TEST(StateTextTest, IsKept) {
  const auto state = SamplerStateFromJson(kState);
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

TEST(StateTextTest, WithoutAKeyOrItsTypeIsRefusedByTheKey) {
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

TEST(StateTextTest, ThatIsNoObjectIsRefused) {
  const std::string cut = std::string(kState).substr(0, 40);
  for (const std::string& wrong :
       {std::string(), std::string("no JSON"), std::string("[1, 2]"),
        std::string("7"), std::string("{\"order\""), cut, cut + "\xff"}) {
    EXPECT_THAT(SamplerStateFromJson(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no JSON object")))
        << wrong;
  }
}

// Numbers that int64_t does not hold.
TEST(StateTextTest, WithANumberOutOfRangeIsRefusedByTheKey) {
  for (const std::string number : {"9223372036854775808", "1e30"}) {
    const std::string wrong = absl::StrReplaceAll(
        kState, {{"\"visited\":7", absl::StrCat("\"visited\":", number)}});
    EXPECT_THAT(
        SamplerStateFromJson(wrong),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"visited\"")))
        << wrong;
  }
}

}  // namespace
}  // namespace lockstep
