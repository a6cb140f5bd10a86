// What the checks of whole epochs say of the ranks that are right.
#include "conformance/sampling/epoch_checker.h"

#include <cstdint>
#include <string>

#include "conformance/sampling/faulty_sampler.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

// The epoch without the last step of one of the ranks.
template <int kRank>
Batches LoseTheLastStep(const SamplingCase& c, int rank, int64_t epoch) {
  const auto subject = MakeSubject(c, rank).value();
  subject->SetEpoch(epoch);
  Batches batches = DrawEpoch(*subject).value();
  if (rank == kRank && c.world_size > 1) batches.pop_back();
  return batches;
}

class EpochCheckerTest : public testing::TestWithParam<int> {
 protected:
  static std::string Says(Batches (*draws)(const SamplingCase&, int, int64_t)) {
    SamplingFault fault;
    fault.draws = draws;
    const SamplingCase c = {.semantics = Semantics::kExact,
                            .dataset_size = 2 * GetParam() + 1,
                            .world_size = GetParam()};
    return CheckEpochs(MakeFaulty(fault), c).ToString();
  }
};

// Rank 0 has samples for its last step; the others must take an empty one.
TEST_P(EpochCheckerTest, TellsTheRankThatParts) {
  EXPECT_THAT(Says(LoseTheLastStep<1>),
              HasSubstr("rank 1 takes 2 steps, rank 0 takes 3; it has no "
                        "sample left, and must take an empty step"));
}

TEST_P(EpochCheckerTest, DoesNotTellItToARankThatTakesMore) {
  const std::string says = Says(LoseTheLastStep<0>);
  EXPECT_THAT(says, HasSubstr("rank 1 takes 3 steps, rank 0 takes 2"));
  EXPECT_THAT(says, Not(HasSubstr("no sample left")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, EpochCheckerTest, testing::Values(2, 3, 4),
                         [](const auto& info) {
                           return "P" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace lockstep
