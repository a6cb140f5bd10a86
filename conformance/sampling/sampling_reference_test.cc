// The reference against orders that PyTorch and numpy were seen to draw, and
// places worked out by hand; sampler/ is held to longer ones (*_golden_test).
#include "conformance/sampling/sampling_reference.h"

#include <cstdint>
#include <vector>

#include "conformance/sampling/sampling_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

SamplingCase Case(Semantics semantics, int64_t n, int world_size,
                  int64_t batch_size) {
  return {.semantics = semantics,
          .dataset_size = n,
          .world_size = world_size,
          .batch_size = batch_size};
}

std::vector<Batches> Draw(const SamplingCase& c) {
  return EpochPlace(c, 0, ReferenceOrder(c, 0)).Rest();
}

// torch.manual_seed(0); torch.randperm(10)
TEST(SamplingReferenceTest, ShufflesAsPyTorch) {
  SamplingCase c = Case(Semantics::kTorch, 10, 1, 10);
  c.shuffle = Shuffle::kOwn;
  c.seed = 0;
  EXPECT_THAT(ReferenceOrder(c, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
}

// x = list(range(10)) + [0, 1]; numpy.random.RandomState(1).shuffle(x)
TEST(SamplingReferenceTest, PadsAndShufflesAsPaddle) {
  SamplingCase c = Case(Semantics::kPaddle, 10, 4, 1);
  c.shuffle = Shuffle::kOwn;
  EXPECT_THAT(ReferenceOrder(c, 1),
              ElementsAre(2, 3, 4, 0, 1, 6, 0, 7, 1, 9, 8, 5));
}

TEST(SamplingReferenceTest, DealsElevenSamplesToTwoRanks) {
  EXPECT_THAT(Draw(Case(Semantics::kTorch, 11, 2, 3)),
              ElementsAre(ElementsAre(ElementsAre(0, 2, 4),  //
                                      ElementsAre(6, 8, 10)),
                          ElementsAre(ElementsAre(1, 3, 5),  //
                                      ElementsAre(7, 9, 0))));
  EXPECT_THAT(Draw(Case(Semantics::kExact, 11, 2, 5)),
              ElementsAre(ElementsAre(ElementsAre(0, 2, 4, 6, 8),  //
                                      ElementsAre(10)),
                          ElementsAre(ElementsAre(1, 3, 5, 7, 9),  //
                                      ElementsAre())));
  EXPECT_THAT(Draw(Case(Semantics::kPaddle, 11, 2, 4)),
              ElementsAre(ElementsAre(ElementsAre(0, 1, 2, 3),  //
                                      ElementsAre(8, 9)),
                          ElementsAre(ElementsAre(4, 5, 6, 7),  //
                                      ElementsAre(10, 0))));
  SamplingCase c = Case(Semantics::kTorch, 11, 2, 2);
  c.drop_tail = c.drop_last = true;
  EXPECT_THAT(Draw(c), ElementsAre(ElementsAre(ElementsAre(0, 2),  //
                                               ElementsAre(4, 6)),
                                   ElementsAre(ElementsAre(1, 3),  //
                                               ElementsAre(5, 7))));
}

TEST(SamplingReferenceTest, TilesPaddingWhereSamplesAreFew) {
  EXPECT_THAT(PadOrCut(Case(Semantics::kTorch, 2, 5, 1), {1, 0}),
              ElementsAre(1, 0, 1, 0, 1));
}

// 4 of 11 visited by two ranks; three take the seven that are left.
TEST(SamplingReferenceTest, DealsWhatIsLeftToRanksOfAnotherNumber) {
  const SamplingCase two = Case(Semantics::kTorch, 11, 2, 2);
  const EpochPlace stopped =
      EpochPlace(two, 0, ReferenceOrder(two, 0)).After(1);
  EXPECT_THAT(stopped.Unvisited(), ElementsAre(4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(stopped.TakenOverBy(Case(Semantics::kTorch, 11, 3, 2)).Rest(),
              ElementsAre(ElementsAre(ElementsAre(4, 7), ElementsAre(10)),
                          ElementsAre(ElementsAre(5, 8), ElementsAre(4)),
                          ElementsAre(ElementsAre(6, 9), ElementsAre(5))));
  // The same ranks go on with what they had, padding included.
  EXPECT_THAT(stopped.TakenOverBy(Case(Semantics::kTorch, 11, 2, 4)).Rest(),
              ElementsAre(ElementsAre(ElementsAre(4, 6, 8, 10)),
                          ElementsAre(ElementsAre(5, 7, 9, 0))));
}

// The order of PadsAndShufflesAsPaddle: a sample that came as padding is not
// left because its own place has not come.
TEST(SamplingReferenceTest, LeavesNoSampleThatCameAsPadding) {
  SamplingCase four = Case(Semantics::kPaddle, 10, 4, 1);
  four.shuffle = Shuffle::kOwn;
  const EpochPlace stopped =
      EpochPlace(four, 1, ReferenceOrder(four, 1)).After(1);
  EXPECT_THAT(stopped.Unvisited(), ElementsAre(1, 6, 7, 9, 8, 5));
  SamplingCase three = Case(Semantics::kPaddle, 10, 3, 1);
  three.shuffle = Shuffle::kOwn;
  EXPECT_THAT(stopped.TakenOverBy(three).Rest(),
              ElementsAre(ElementsAre(ElementsAre(1), ElementsAre(9)),
                          ElementsAre(ElementsAre(6), ElementsAre(8)),
                          ElementsAre(ElementsAre(7), ElementsAre(5))));
}

}  // namespace
}  // namespace lockstep
