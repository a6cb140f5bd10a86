// On every rank, each epoch of the grid follows its semantics. It can be
// stopped after every step and resumed at every world size. The grid is each
// semantics x shuffle x drop_tail x drop_last x data set size x world size x
// batch size, or a slice of these (slice.h). The mutants are the controls.
// conformance/mutants/all_mutants_test.cc checks for all folders that each
// property has a mutant, and that no mutant is reported as another.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/sampling/epoch_causes.h"
#include "conformance/sampling/epoch_checker.h"
#include "conformance/sampling/resume_checker.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using KindAndRanks = std::tuple<SamplingCase, int>;

std::string NameOf(const testing::TestParamInfo<KindAndRanks>& info) {
  return absl::StrCat(KindName(std::get<0>(info.param)), "P",
                      std::get<1>(info.param));
}

const auto kGrid = testing::Combine(testing::ValuesIn(SamplingKinds()),
                                    testing::Range(1, kMaxSamplingRanks + 1));

ClaimCellId PlaceOf(const char* claim, const KindAndRanks& parameter) {
  const auto& [kind, world_size] = parameter;
  return {claim, absl::StrCat(Name(kind.semantics), " sampler"), world_size,
          "indices"};
}

class SamplingTest : public testing::TestWithParam<KindAndRanks> {};

TEST_P(SamplingTest, KeepsItsSemantics) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("epochs", GetParam()));
  for (const SamplingCase& c :
       SliceOf(CasesAt(kind, world_size), 4, world_size)) {
    ASSERT_THAT(CheckEpochs(MakeTestedSampler, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, SamplingTest, kGrid, NameOf);

class ResumeTest : public testing::TestWithParam<KindAndRanks> {};

// Also checks that invalid states are refused. The tests of sampler/ check the
// text of states.
TEST_P(ResumeTest, GoesOnWhereItStopped) {
  const auto& [kind, world_size] = GetParam();
  ClaimRecorder recorder(PlaceOf("resuming", GetParam()));
  for (const SamplingCase& c :
       SliceOf(CasesAt(kind, world_size), 10, world_size)) {
    ASSERT_THAT(CheckResuming(MakeTestedSampler, c), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, ResumeTest, kGrid, NameOf);

TEST(SamplingMutantsTest, WithoutAMutationPasses) {
  const SamplerFactory make = MakeMutated({});
  for (const SamplingCase& c : SliceOf(SamplingMutantCases(), 10)) {
    ASSERT_THAT(CheckSampler(make, c), IsOk());
  }
}

// A cause gives every index in its place, so none is named if rank 0 exchanges
// two indices.
TEST(SamplingMutantsTest, AreNotNamedWhereTwoIndicesAreExchanged) {
  const std::set<std::string> causes = {
      "DropsTheTail",  "KeepsTheTail",      "GivesTheTailToTheLastRank",
      "PadsInExact",   "DrawsTheSameShard", "DrawsAnothersSample",
      "SeedsByRank",   "StridesByBlocks",   "ReversesTheRanks",
      "DealsOneByOne", "ShufflesByKey",     "SeedsByTheNextEpoch"};
  size_t tried = 0;
  for (auto& [mutant, mutation] : AllSamplingMutants()) {
    if (causes.count(mutant.name) == 0) continue;
    ++tried;
    mutation.swaps = true;
    std::vector<SamplingCase> cases = SamplingMutantCases();
    std::erase_if(cases, [&](const SamplingCase& c) {
      // Rank 0 has a full batch of at least two samples, whatever happens to a
      // tail.
      return c.world_size < 2 || c.batch_size < 2 ||
             c.dataset_size / c.world_size < c.batch_size ||
             !mutation.ShowsIn(c);
    });
    ASSERT_FALSE(cases.empty()) << mutant.name;
    for (const SamplingCase& c : SliceOf(cases, 4)) {
      const absl::Status status = CheckEpochs(MakeMutated(mutation), c);
      EXPECT_FALSE(status.ok()) << mutant.name;
      EXPECT_FALSE(absl::StrContains(status.message(), mutant.says))
          << mutant.name << ": " << status;
    }
  }
  EXPECT_EQ(tried, causes.size());
}

class SamplingMutantTest : public testing::TestWithParam<Mutant> {};

// In every case in which a mutant must show, the first failing property is the
// mutant's own, and its message names the mistake.
TEST_P(SamplingMutantTest, IsRejectedByWhatIsThereForIt) {
  const auto cases = GetParam().plant_everywhere();
  ASSERT_THAT(cases, IsOk());
  RecordProperty("cases", absl::StrCat(*cases));
  EXPECT_GT(*cases, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SamplingMutantTest,
                         testing::ValuesIn(SamplingMutants().mutants),
                         [](const auto& info) { return info.param.name; });

// The following tests check what the messages say: nothing of ranks that are
// right, and a cause only if it gives every index. They also check the
// reference.

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const SamplerFactory kMake = MakeTestedSampler;

// Lets rank 0 take one step less than the other ranks.
Batches LoseTheLastStep(const SamplingCase& c, int rank, int64_t epoch) {
  const auto sampler = MakeTestedSampler(c, rank).value();
  sampler->SetEpoch(epoch);
  Batches batches = DrawEpoch(*sampler).value();
  if (rank == 0 && c.world_size > 1) batches.pop_back();
  return batches;
}

// The message must not say that the other ranks have no sample left.
TEST(EpochCheckerTest, DoesNotTellARankThatTakesMoreToTakeAnEmptyStep) {
  const SamplingCase c = {
      .semantics = Semantics::kExact, .dataset_size = 7, .world_size = 3};
  const std::string says =
      CheckEpochs(MakeMutated({.draws = LoseTheLastStep}), c).ToString();
  EXPECT_THAT(says, HasSubstr("rank 1 takes 3 steps, rank 0 takes 2"));
  EXPECT_THAT(says, Not(HasSubstr("no sample left")));
}

// The following causes depend on how often indices come, in any place.

std::vector<int64_t> OrderOf(SamplingCase c) {
  c.world_size = 1;
  return ReferenceOrder(c, 0);
}

std::vector<Batches> Dealt(const SamplingCase& c,
                           const std::vector<int64_t>& order) {
  return Cut(c, Deal(c, PadOrCut(c, order)));
}

// Returns epoch 0 of a case, which one rank drew rightly.
DrawnEpoch EpochOf(const SamplingCase& c, const std::vector<Batches>& ranks,
                   const std::vector<int64_t>& one_rank) {
  return {kMake, c, 0, ranks, one_rank};
}

std::string RanksName(const testing::TestParamInfo<int>& info) {
  return absl::StrCat("P", info.param);
}

class EpochCausesTest : public testing::TestWithParam<int> {
 protected:
  const SamplingCase case_ = {.semantics = Semantics::kExact,
                              .dataset_size = 4 * GetParam(),
                              .world_size = GetParam()};
  const std::vector<int64_t> order_ = OrderOf(case_);
  std::vector<Batches> ranks_ = Dealt(case_, order_);
  const DrawnEpoch drawn_ = EpochOf(case_, ranks_, order_);
};

TEST_P(EpochCausesTest, NamesIndicesFromOne) {
  std::vector<int64_t> order = order_;
  for (int64_t& index : order) ++index;
  EXPECT_EQ(CauseOfIndex(EpochOf(case_, Dealt(case_, order), order)),
            "; they go from 1 to n, not from 0 to n - 1");
  // One index is wrong, but the minimum and the maximum are the same.
  ranks_[0][0][0] = case_.dataset_size;
  EXPECT_THAT(CauseOfIndex(drawn_), IsEmpty());
}

TEST_P(EpochCausesTest, NamesPaddingThatEnds) {
  const SamplingCase c = {.dataset_size = 1, .world_size = GetParam()};
  std::vector<Batches> ranks = Cut(c, Deal(c, {0, 0}));
  EXPECT_EQ(CauseOfLengths(EpochOf(c, ranks, {0})),
            "; padding goes through the data set once and ends, not round it");
  // The lengths are the same, but on the wrong ranks.
  std::swap(ranks.front(), ranks.back());
  EXPECT_THAT(CauseOfLengths(EpochOf(c, ranks, {0})), IsEmpty());
}

TEST_P(EpochCausesTest, NamesWhatComesInPlaceOfTheAbsent) {
  ranks_[0][1][0] = 0;
  EXPECT_EQ(CauseOfAbsence(drawn_), ", but 0 comes 2 times in its place");
  ranks_[0][2][0] = 0;
  EXPECT_EQ(CauseOfAbsence(drawn_), ", but 0 comes 3 times");
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

TEST_P(EpochCausesTest, NamesWhatIsLost) {
  ranks_[1].back().clear();
  EXPECT_EQ(CauseOfLengths(drawn_),
            absl::StrCat("; lost: index ", 3 * GetParam() + 1,
                         " is drawn by no rank"));
  // One rank does not draw the index either.
  const std::vector<int64_t> fewer(order_.begin(), order_.end() - 1);
  for (const std::vector<int64_t>& one_rank : {fewer, {}}) {
    EXPECT_THAT(CauseOfLengths(EpochOf(case_, ranks_, one_rank)),
                HasSubstr("; lost: "));
  }
  // An index does not exist, so nothing is known of the others.
  ranks_[0][0][0] = -1;
  EXPECT_THAT(CauseOfLengths(drawn_), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EpochCausesTest, testing::Values(3, 4),
                         RanksName);

// Compares the reference with orders that PyTorch and numpy have drawn, and
// with places worked out by hand. The tests of sampler/ have longer ones.

SamplingCase Case(Semantics semantics, int64_t n, int world_size,
                  int64_t batch_size) {
  return {.semantics = semantics,
          .dataset_size = n,
          .world_size = world_size,
          .batch_size = batch_size};
}

std::vector<Batches> Draw(const SamplingCase& c) {
  return EpochPosition(c, 0, ReferenceOrder(c, 0)).RemainingBatches();
}

// The order of torch.manual_seed(0); torch.randperm(10).
TEST(SamplingReferenceTest, ShufflesAsPyTorch) {
  SamplingCase c = Case(Semantics::kTorch, 10, 1, 10);
  c.shuffle = Shuffle::kOwn;
  c.seed = 0;
  EXPECT_THAT(ReferenceOrder(c, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
}

// The order of x = list(range(10)) + [0, 1];
// numpy.random.RandomState(1).shuffle(x).
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

// Two ranks have visited 4 of 11 samples. Three ranks take the remaining seven.
TEST(SamplingReferenceTest, DealsWhatIsLeftToRanksOfAnotherNumber) {
  const SamplingCase two = Case(Semantics::kTorch, 11, 2, 2);
  const EpochPosition stopped =
      EpochPosition(two, 0, ReferenceOrder(two, 0)).After(1);
  EXPECT_THAT(stopped.Unvisited(), ElementsAre(4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(
      stopped.TakenOverBy(Case(Semantics::kTorch, 11, 3, 2)).RemainingBatches(),
      ElementsAre(ElementsAre(ElementsAre(4, 7), ElementsAre(10)),
                  ElementsAre(ElementsAre(5, 8), ElementsAre(4)),
                  ElementsAre(ElementsAre(6, 9), ElementsAre(5))));
  // The same ranks continue with their own indices, padding included.
  EXPECT_THAT(
      stopped.TakenOverBy(Case(Semantics::kTorch, 11, 2, 4)).RemainingBatches(),
      ElementsAre(ElementsAre(ElementsAre(4, 6, 8, 10)),
                  ElementsAre(ElementsAre(5, 7, 9, 0))));
}

// Uses the order of PadsAndShufflesAsPaddle. A sample that came as padding is
// visited, even if its own place has not come yet.
TEST(SamplingReferenceTest, LeavesNoSampleThatCameAsPadding) {
  SamplingCase four = Case(Semantics::kPaddle, 10, 4, 1);
  four.shuffle = Shuffle::kOwn;
  const EpochPosition stopped =
      EpochPosition(four, 1, ReferenceOrder(four, 1)).After(1);
  EXPECT_THAT(stopped.Unvisited(), ElementsAre(1, 6, 7, 9, 8, 5));
  SamplingCase three = Case(Semantics::kPaddle, 10, 3, 1);
  three.shuffle = Shuffle::kOwn;
  EXPECT_THAT(stopped.TakenOverBy(three).RemainingBatches(),
              ElementsAre(ElementsAre(ElementsAre(1), ElementsAre(9)),
                          ElementsAre(ElementsAre(6), ElementsAre(8)),
                          ElementsAre(ElementsAre(7), ElementsAre(5))));
}

class ResumeCausesTest : public testing::TestWithParam<int> {
 protected:
  // Returns what a rank draws of an epoch from a step on.
  Batches From(int64_t epoch, size_t step) const {
    const auto ranks =
        Cut(case_, Deal(case_, PadOrCut(case_, ReferenceOrder(case_, epoch))));
    const Batches& own = ranks[1];
    return {own.begin() + static_cast<ptrdiff_t>(step), own.end()};
  }
  std::string Resume(const Batches& got) const {
    const Batches whole = From(1, 0);
    return CauseOfResume({kMake, case_, 1, 1, 2, whole, got});
  }
  std::string NextEpoch(const Batches& got, size_t step) const {
    const Batches whole = From(2, 0);
    return CauseOfNextEpoch({kMake, case_, 1, 2, step, whole, got});
  }

  const SamplingCase case_ = {.shuffle = Shuffle::kOwn,
                              .dataset_size = 10 * GetParam(),
                              .world_size = GetParam(),
                              .batch_size = 2};
};

TEST_P(ResumeCausesTest, NamesNoneWhereOneIndexIsAnother) {
  for (const auto& [epoch, step] :
       {std::pair<int64_t, size_t>(1, 1), {1, 2}, {1, 3}, {0, 2}, {2, 2}}) {
    Batches got = From(epoch, step);
    std::swap(got[0][0], got[1][0]);
    EXPECT_THAT(Resume(got), IsEmpty());
  }
  EXPECT_THAT(Resume(From(1, 0)), IsEmpty());
  EXPECT_THAT(Resume({}), IsEmpty());
}

TEST_P(ResumeCausesTest, NamesWhereTheNextEpochBegins) {
  EXPECT_EQ(NextEpoch(From(2, 2), 2),
            ", as if it began at step 2, where the one before was stopped");
  EXPECT_EQ(NextEpoch(From(1, 0), 2), ", as if it were still epoch 1");
  EXPECT_THAT(NextEpoch(From(2, 1), 2), IsEmpty());
  EXPECT_THAT(NextEpoch(From(1, 2), 2), IsEmpty());
  EXPECT_THAT(NextEpoch({}, 2), IsEmpty());
  Batches got = From(1, 0);
  got[1][1] = -1;
  EXPECT_THAT(NextEpoch(got, 2), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeCausesTest, testing::Values(3, 4),
                         RanksName);

constexpr int64_t kSteps = 3;

// Two ranks draw two steps, other ranks draw three more, and others resume
// again.
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
  const EpochPosition start_{first_, 0, ReferenceOrder(first_, 0)};
  const EpochPosition stopped_ =
      start_.After(2).TakenOverBy(last_).After(kSteps);
  const std::vector<Batches> right_ =
      stopped_.TakenOverBy(next_).RemainingBatches();
};

TEST_P(TakeOverTest, TakesWhatIsRight) { EXPECT_EQ(Wrong(right_), ""); }

TEST_P(TakeOverTest, NamesACauseThatGivesEveryIndex) {
  const std::pair<const char*, EpochPosition> causes[] = {
      {"; as if the epoch began anew", start_},
      {"; as if only what the last ranks",
       start_.TakenOverBy(last_).After(kSteps)},
      {"ranks had visited as many as each of",
       start_.TakenOverBy(next_).After(kSteps)}};
  for (const auto& [says, place] : causes) {
    std::vector<Batches> got = place.TakenOverBy(next_).RemainingBatches();
    EXPECT_THAT(Wrong(got), HasSubstr(says));
    std::swap(got[0][0], got[1][0]);
    EXPECT_THAT(Wrong(got), Not(HasSubstr("as if")));
  }
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

INSTANTIATE_TEST_SUITE_P(Ranks, TakeOverTest, testing::Values(3, 4), RanksName);

}  // namespace
}  // namespace lockstep::conformance
