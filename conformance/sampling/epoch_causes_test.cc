// Causes are named where they give every index, and nowhere else.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "conformance/sampling/sampling_causes.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const SamplerFactory kMake = MakeTestedSampler;

std::vector<int64_t> OrderOf(SamplingCase c) {
  c.world_size = 1;
  return ReferenceOrder(c, 0);
}

std::vector<Batches> Dealt(const SamplingCase& c,
                           const std::vector<int64_t>& order) {
  return Cut(c, Deal(c, PadOrCut(c, order)));
}

// Epoch 0 of a case, drawn rightly by one rank.
DrawnEpoch EpochOf(const SamplingCase& c, const std::vector<Batches>& ranks,
                   const std::vector<int64_t>& one_rank) {
  return {kMake, c, 0, ranks, one_rank};
}

// Exchanges the first indices of the first two ranks.
void Swap(std::vector<Batches>& ranks) {
  std::swap(ranks[0][0][0], ranks[1][0][0]);
}

class EpochCausesTest : public testing::TestWithParam<int> {};

TEST_P(EpochCausesTest, NamesADroppedTail) {
  const SamplingCase c = {.dataset_size = 4 * GetParam() + 1,
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  SamplingCase other = c;
  other.drop_tail = true;
  std::vector<Batches> ranks = Dealt(other, order);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)),
              HasSubstr("; the tail is dropped, not padded"));
  // The same lengths.
  Swap(ranks);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)),
              Not(HasSubstr("the tail is")));
}

TEST_P(EpochCausesTest, NamesAPaddedTail) {
  SamplingCase c = {.drop_tail = true,
                    .dataset_size = 4 * GetParam() + 1,
                    .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  SamplingCase other = c;
  other.drop_tail = false;
  std::vector<Batches> ranks = Dealt(other, order);
  EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, order)),
            "; the tail is padded, not dropped");
  Swap(ranks);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesPaddingInExact) {
  const SamplingCase c = {.semantics = Semantics::kExact,
                          .dataset_size = 4 * GetParam() + 1,
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  SamplingCase other = c;
  other.semantics = Semantics::kTorch;
  std::vector<Batches> ranks = Dealt(other, order);
  EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, order)),
            "; the ranks are padded to be even, so that indices come twice");
  Swap(ranks);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesPaddingThatEnds) {
  const SamplingCase c = {.dataset_size = 1, .world_size = GetParam()};
  const std::vector<int64_t> order = {0};
  std::vector<Batches> ranks = Cut(c, Deal(c, {0, 0}));
  EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, order)),
            "; padding goes through the data set once and ends, not round it");
  // As many, but not where they belong.
  std::swap(ranks.front(), ranks.back());
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesATailThatIsNotSplit) {
  const int world_size = GetParam();
  const SamplingCase c = {.semantics = Semantics::kPaddle,
                          .dataset_size = 4 * world_size,
                          .world_size = world_size,
                          .batch_size = 3};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  for (Batches& batches : ranks) batches.pop_back();
  ranks.back().emplace_back(order.end() - world_size, order.end());
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)),
              HasSubstr("with what the others lack: the tail is not split"));
  Swap(ranks);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)), IsEmpty());
}

// Two samples on five ranks, or on six: padding goes round, and is not dealt.
TEST_P(EpochCausesTest, NamesATailThatIsNotSplitOfFewSamples) {
  const SamplingCase c = {.semantics = Semantics::kPaddle,
                          .dataset_size = 2,
                          .world_size = GetParam() + 2,
                          .batch_size = 7};
  std::vector<Batches> ranks(static_cast<size_t>(c.world_size), Batches(1));
  ranks.back()[0] = OrderOf(c);
  for (int64_t i = 2; i < c.world_size; ++i) ranks.back()[0].push_back(i % 2);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, OrderOf(c))),
              HasSubstr("the tail is not split"));
}

TEST_P(EpochCausesTest, NamesWhatIsLost) {
  const SamplingCase c = {.semantics = Semantics::kExact,
                          .dataset_size = 4 * GetParam(),
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  ranks[1].back().clear();
  EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, order)),
            "; lost: index " + std::to_string(3 * GetParam() + 1) +
                " is drawn by no rank");
  // Nor does one rank draw it.
  const std::vector<int64_t> fewer(order.begin(), order.end() - 1);
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, fewer)), HasSubstr("; lost: "));
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, {})), HasSubstr("; lost: "));
  // An index that does not exist: nothing is known of the others.
  ranks[0][0][0] = -1;
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, order)), IsEmpty());
}

// Not a tail that is not split: there is none to be split.
TEST_P(EpochCausesTest, NamesTheOnlySampleThatIsLost) {
  const SamplingCase c = {.semantics = Semantics::kExact,
                          .dataset_size = 1,
                          .world_size = GetParam()};
  std::vector<Batches> ranks = Dealt(c, {0});
  ranks[0][0].clear();
  for (const std::vector<int64_t>& one_rank : {std::vector<int64_t>(), {0}}) {
    EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, one_rank)),
              "; lost: index 0 is drawn by no rank");
  }
}

TEST_P(EpochCausesTest, NamesWhatRanksShare) {
  const SamplingCase c = {.semantics = Semantics::kExact,
                          .shuffle = Shuffle::kOwn,
                          .dataset_size = 8 * GetParam(),
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  const std::vector<Batches> same(ranks.size(), ranks[0]);
  EXPECT_EQ(CauseOfSharing(EpochOf(c, same, order)),
            "; all ranks draw the same");
  ranks[1][0][0] = ranks[0][0][0];
  EXPECT_EQ(CauseOfSharing(EpochOf(c, ranks, order)),
            "; rank 1 draws " + std::to_string(order[0]) +
                " in place of its own " + std::to_string(order[1]) +
                ", and all else is right");
  ranks[1][1][0] = ranks[0][1][0];
  EXPECT_THAT(CauseOfSharing(EpochOf(c, ranks, order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesASeedOfEachRank) {
  const SamplingCase c = {.shuffle = Shuffle::kOwn,
                          .dataset_size = 8 * GetParam(),
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    SamplingCase own = c;
    own.seed += static_cast<int64_t>(rank);
    ranks[rank] = Dealt(own, OrderOf(own))[rank];
  }
  EXPECT_THAT(CauseOfSharing(EpochOf(c, ranks, order)),
              HasSubstr("each rank shuffles by a seed of its own"));
  std::swap(ranks.back()[0][0], ranks.back()[1][0]);
  EXPECT_THAT(CauseOfSharing(EpochOf(c, ranks, order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesIndicesFromOne) {
  const SamplingCase c = {.dataset_size = 4 * GetParam(),
                          .world_size = GetParam()};
  const std::vector<int64_t> right = OrderOf(c);
  std::vector<int64_t> order = right;
  for (int64_t& index : order) ++index;
  EXPECT_EQ(CauseOfIndex(EpochOf(c, Dealt(c, order), order)),
            "; they go from 1 to n, not from 0 to n - 1");
  // One wrong index, with the same least and most.
  std::vector<Batches> ranks = Dealt(c, right);
  ranks[0][0][0] = c.dataset_size;
  EXPECT_THAT(CauseOfIndex(EpochOf(c, ranks, right)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesWhatComesInPlaceOfTheAbsent) {
  const SamplingCase c = {.semantics = Semantics::kExact,
                          .dataset_size = 4 * GetParam(),
                          .world_size = GetParam()};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  ranks[0][1][0] = 0;
  EXPECT_EQ(CauseOfAbsence(EpochOf(c, ranks, order)),
            ", but 0 comes 2 times in its place");
  ranks[0][2][0] = 0;
  EXPECT_EQ(CauseOfAbsence(EpochOf(c, ranks, order)), ", but 0 comes 3 times");
}

TEST_P(EpochCausesTest, NamesWhatPaddingRepeats) {
  const int world_size = GetParam();
  SamplingCase c = {.shuffle = Shuffle::kOwn,
                    .dataset_size = 8 * world_size + 1,
                    .world_size = world_size};
  const std::vector<int64_t> order = OrderOf(c);
  const auto padded = [&](const std::vector<int64_t>& with) {
    std::vector<int64_t> all = order;
    all.insert(all.end(), with.begin(), with.end());
    return Cut(c, Deal(c, all));
  };
  const ptrdiff_t padding = world_size - 1;
  std::vector<int64_t> first(static_cast<size_t>(padding));
  std::iota(first.begin(), first.end(), 0);
  EXPECT_THAT(CauseOfPadding(EpochOf(
                  c, padded({order.end() - padding, order.end()}), order)),
              HasSubstr("padding is the end of the order"));
  EXPECT_THAT(CauseOfPadding(EpochOf(c, padded(first), order)),
              HasSubstr("padded, then shuffled"));
  std::vector<int64_t> middle(order.begin() + 5, order.begin() + 5 + padding);
  EXPECT_THAT(CauseOfPadding(EpochOf(c, padded(middle), order)), IsEmpty());
  c.semantics = Semantics::kPaddle;
  EXPECT_THAT(CauseOfPadding(EpochOf(
                  c, padded({order.begin(), order.begin() + padding}), order)),
              HasSubstr("shuffled, then padded"));
}

TEST_P(EpochCausesTest, NamesTheKeyedShuffle) {
  SamplingCase c = {.shuffle = Shuffle::kOwn,
                    .dataset_size = 8 * GetParam(),
                    .world_size = GetParam()};
  SamplingCase one = c;
  one.world_size = 1;
  one.shuffle = Shuffle::kKeyed;
  std::vector<int64_t> order = Flat((*DrawRanks(MakeTestedSampler, one, 0))[0]);
  EXPECT_EQ(CauseOfOrder(EpochOf(c, Dealt(c, order), order)),
            "; it is the keyed shuffle");
  std::swap(order[0], order[1]);
  EXPECT_THAT(CauseOfOrder(EpochOf(c, Dealt(c, order), order)), IsEmpty());
}

TEST_P(EpochCausesTest, NamesTheDeal) {
  const int world_size = GetParam();
  SamplingCase c = {.dataset_size = 6 * world_size, .world_size = world_size};
  const std::vector<int64_t> order = OrderOf(c);
  std::vector<Batches> ranks = Dealt(c, order);
  std::reverse(ranks.begin(), ranks.end());
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)),
              HasSubstr("the last rank has what the first should"));
  Swap(ranks);
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)), IsEmpty());
  for (size_t i = 0; i < order.size(); ++i) ranks[i / 6][i % 6] = {order[i]};
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)),
              HasSubstr("each rank has a contiguous part"));
  Swap(ranks);
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)), IsEmpty());
  c.batch_size = 2;
  ranks = Dealt(c, order);
  c.semantics = Semantics::kPaddle;
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)),
              HasSubstr("dealt one by one"));
  Swap(ranks);
  EXPECT_THAT(CauseOfDeal(EpochOf(c, ranks, order)), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EpochCausesTest, testing::Values(3, 4),
                         [](const auto& info) {
                           return "P" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace lockstep
