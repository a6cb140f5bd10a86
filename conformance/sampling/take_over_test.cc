// What is wrong when other ranks go on, and the causes, named where they give
// every index and nowhere else.
#include "conformance/sampling/take_over.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSteps = 3;

// Two ranks draw two steps, others three more, and again others go on.
class TakeOverTest : public testing::TestWithParam<int> {
 protected:
  static SamplingCase CaseOf(int world_size) {
    return {.semantics = Semantics::kExact,
            .dataset_size = 40,
            .world_size = world_size};
  }

  std::string Wrong(const std::vector<Batches>& got) const {
    return WrongTakeOver({start_, last_, kSteps, stopped_, next_, got})
        .value_or("");
  }

  const SamplingCase first_ = CaseOf(2);
  const SamplingCase last_ = CaseOf(GetParam());
  const SamplingCase next_ = CaseOf(GetParam() + 2);
  const EpochPlace start_{first_, 0, ReferenceOrder(first_, 0)};
  const EpochPlace stopped_ = start_.After(2).TakenOverBy(last_).After(kSteps);
  const std::vector<Batches> right_ = stopped_.TakenOverBy(next_).Rest();
};

TEST_P(TakeOverTest, TakesWhatIsRight) { EXPECT_EQ(Wrong(right_), ""); }

TEST_P(TakeOverTest, NamesAnEpochThatBeginsAnew) {
  std::vector<Batches> got = start_.TakenOverBy(next_).Rest();
  EXPECT_THAT(Wrong(got), HasSubstr("; as if the epoch began anew"));
  std::swap(got[0][0], got[1][0]);
  EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
}

TEST_P(TakeOverTest, NamesWhatTheLastRanksVisited) {
  std::vector<Batches> got =
      start_.TakenOverBy(last_).After(kSteps).TakenOverBy(next_).Rest();
  EXPECT_THAT(Wrong(got), HasSubstr("; as if only what the last ranks"));
  std::swap(got[0][0], got[1][0]);
  EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
}

TEST_P(TakeOverTest, NamesACountThatIsKept) {
  std::vector<Batches> got = start_.TakenOverBy(next_).After(kSteps).Rest();
  EXPECT_THAT(Wrong(got), HasSubstr("ranks had visited as many as each of"));
  std::swap(got[0][0], got[1][0]);
  EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
}

TEST_P(TakeOverTest, SaysWhichIndexIsWrongAndNoCause) {
  std::vector<Batches> got = right_;
  got[1][0][0] = 40;
  EXPECT_EQ(Wrong(got), "index 40 does not exist");
  got[1][0][0] = 0;
  EXPECT_EQ(Wrong(got), "index 0 was visited and is drawn again");
  got[1][0][0] = got[0][0][0];
  EXPECT_THAT(Wrong(got), HasSubstr("is lost, one of 1"));
  EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
  got = right_;
  std::swap(got[0][0], got[1][0]);
  EXPECT_THAT(Wrong(got), HasSubstr("in another order than they had"));
  EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TakeOverTest, testing::Values(3, 4),
                         [](const auto& info) {
                           return "P" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace lockstep
