// Mutants of whole epochs: which indices, on which rank, in which order.
#include <cstdint>
#include <optional>
#include <vector>

#include "conformance/mutant.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "conformance/sampling/wrong_draws.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

bool IsTorch(const SamplingCase& c) { return c.semantics == Semantics::kTorch; }
bool IsPaddle(const SamplingCase& c) {
  return c.semantics == Semantics::kPaddle;
}
bool IsExact(const SamplingCase& c) { return c.semantics == Semantics::kExact; }
bool IsDivided(const SamplingCase& c) {
  return c.dataset_size % c.world_size == 0;
}
// Enough for no two orders to be alike by chance.
bool IsShuffled(const SamplingCase& c) {
  return c.shuffle != Shuffle::kNone && c.dataset_size >= kManySamples;
}
// Padding that does not hold every sample, all of it drawn.
bool Pads(const SamplingCase& c) {
  return PaddingOf(c) > 0 && c.dataset_size > c.world_size && !c.drop_last;
}
// Where one rank's order tells what the others draw.
bool HasCommonOrder(const SamplingCase& c) {
  return !IsPaddle(c) || c.shuffle == Shuffle::kNone || PaddingOf(c) == 0;
}
int64_t Fewest(const SamplingCase& c) { return LengthOf(c, c.world_size - 1); }

bool IsOfGroup(const SamplingCase& c, int rank) {
  return rank >= 0 && rank < c.world_size;
}

void ForgetEpoch(TestedSampler& real, const std::optional<SamplerState>&,
                 int64_t) {
  real.SetEpoch(0);
}

void SeedByTheNextEpoch(TestedSampler& real, const std::optional<SamplerState>&,
                        int64_t epoch) {
  real.SetEpoch(epoch + 1);
}

std::vector<Mutant> PaddingMutants() {
  return {
      Planted(
          {"PadsFromTheEnd",
           "padding repeats the end of the order, not its start",
           {"Padding"},
           "padding is the end of the order, not its start"},
          {.shows = [](const SamplingCase& c) { return IsTorch(c) && Pads(c); },
           .draws = PadFromTheEnd}),
      Planted({"PadsBeforeTheShuffle",
               "torch: the data set is padded, then shuffled",
               {"Padding"},
               "the start of the data set: padded, then shuffled"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsTorch(c) && IsShuffled(c) && Pads(c);
                   },
               .draws = PadFirst}),
      Planted({"PadsAfterTheShuffle",
               "paddle: the order is shuffled, then padded",
               {"Padding"},
               "the start of the order: shuffled, then padded"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsPaddle(c) && IsShuffled(c) && Pads(c);
                   },
               .draws = PadLast}),
  };
}

std::vector<Mutant> LengthMutants() {
  return {
      Planted({"PadsOnlyOnce",
               "torch: padding does not go round a data set that is too small",
               {"Lengths"},
               "padding goes through the data set once and ends"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsTorch(c) && PaddingOf(c) > c.dataset_size &&
                            !c.drop_last;
                   },
               .draws = PadOnce}),
      Planted(
          {"DropsTheTail",
           "the samples that do not go round the ranks are dropped",
           {"Lengths"},
           "the tail is dropped, not padded"},
          {.shows = [](const SamplingCase& c) { return IsTorch(c) && Pads(c); },
           .told = [](SamplingCase& c, int&) { c.drop_tail = true; }}),
      Planted({"KeepsTheTail",
               "drop_last is ignored: the order is padded",
               {"Lengths"},
               "the tail is padded, not dropped"},
              {.shows =
                   [](const SamplingCase& c) {
                     return c.drop_tail && !IsDivided(c) && !c.drop_last;
                   },
               .told = [](SamplingCase& c, int&) { c.drop_tail = false; }}),
      Planted({"GivesTheTailToTheLastRank",
               "paddle: the tail is not split, the last rank takes it all",
               {"Lengths"},
               "the tail is not split"},
              {.shows =
                   [](const SamplingCase& c) {
                     const int64_t tail =
                         LengthOf(c, 0) % c.batch_size * c.world_size;
                     return IsPaddle(c) && c.world_size > 1 && !c.drop_last &&
                            tail > 0 && tail <= c.batch_size;
                   },
               .draws = GiveTheTailToTheLast}),
      Planted({"PadsInExact",
               "exact: samples come twice so that ranks are even",
               {"Lengths"},
               "the ranks are padded to be even"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsExact(c) && !IsDivided(c) && !c.drop_last;
                   },
               .told = [](SamplingCase& c,
                          int&) { c.semantics = Semantics::kTorch; }}),
      Planted(
          {"LosesASample",
           "exact: the last sample of the order is not drawn",
           {"Lengths"},
           "; lost: index "},
          {.shows =
               [](const SamplingCase& c) { return IsExact(c) && !c.drop_last; },
           .draws = LoseTheLast}),
  };
}

std::vector<Mutant> BatchMutants() {
  return {
      Planted({"KeepsThePartialBatch",
               "the last batch is kept under drop_last",
               {"Batches"},
               "a partial batch, which drop_last leaves out"},
              {.shows =
                   [](const SamplingCase& c) {
                     return c.drop_last &&
                            (LengthOf(c, 0) % c.batch_size != 0 ||
                             Fewest(c) % c.batch_size != 0);
                   },
               .told = [](SamplingCase& c, int&) { c.drop_last = false; }}),
      Planted(
          {"MakesBatchesTooLarge",
           "a batch has one sample more than was asked for",
           {"Batches"},
           ", 1 more than a batch of"},
          {.shows =
               [](const SamplingCase& c) { return Fewest(c) > c.batch_size; },
           .told =
               [](SamplingCase& c, int&) {
                 if (c.batch_size > 0) ++c.batch_size;
               }}),
      Planted(
          {"PartsEarly",
           "a rank without samples left does not take part in the last step",
           {"Batches"},
           "it has no sample left, and must take an empty step"},
          {.shows =
               [](const SamplingCase& c) {
                 return IsExact(c) && Fewest(c) % c.batch_size == 0 &&
                        Fewest(c) < LengthOf(c, 0) && !c.drop_last;
               },
           .draws = PartEarly}),
      Planted({"NeverEnds",
               "empty batches come for ever after the last",
               {"Batches"},
               "does not end"},
              {.shows = [](const SamplingCase&) { return true; },
               .never_ends = true}),
      Planted({"SaysOneBatchLess",
               "num_batches() leaves the last batch out",
               {"Batches"},
               "it leaves the last one out"},
              {.shows = [](const SamplingCase&) { return true; },
               .says_batches = [](int64_t batches) { return batches - 1; }}),
  };
}

std::vector<Mutant> ShardMutants() {
  return {
      Planted({"DrawsAnothersSample",
               "exact: rank 1 draws rank 0's first sample, not its own",
               {"Disjointness"},
               "in place of its own"},
              {.shows =
                   [](const SamplingCase& c) {
                     // Of two samples on two ranks it is DrawsTheSameShard.
                     return IsExact(c) && c.world_size > 1 &&
                            c.dataset_size > 1 &&
                            !(c.world_size == 2 && c.dataset_size == 2);
                   },
               .draws = DrawAnothersFirst}),
      Planted({"DrawsASampleTwice",
               "exact: rank 0 draws its first sample again, its second never",
               {"Coverage"},
               "comes 2 times in its place"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsExact(c) && LengthOf(c, 0) > 1 && !c.drop_last;
                   },
               .draws = DrawTheFirstTwice}),
      Planted({"DrawsTheNextIndex",
               "samples are counted from 1",
               {"Coverage"},
               "they go from 1 to n, not from 0 to n - 1"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !c.drop_tail && !c.drop_last;
                   },
               .draws = DrawTheNextIndex}),
      Planted({"DrawsTheSameShard",
               "every rank draws rank 0's samples",
               {"Disjointness"},
               "all ranks draw the same"},
              {.shows =
                   [](const SamplingCase& c) {
                     return c.world_size > 1 && c.dataset_size > 1 &&
                            (!IsExact(c) || IsDivided(c));
                   },
               .told =
                   [](SamplingCase& c, int& rank) {
                     if (IsOfGroup(c, rank)) rank = 0;
                   }}),
      Planted({"ReversesTheRanks",
               "the last rank draws what the first should",
               {"Deal"},
               "the last rank has what the first should"},
              {.shows =
                   [](const SamplingCase& c) {
                     return c.world_size > 1 &&
                            c.dataset_size >= c.world_size &&
                            (!IsExact(c) || IsDivided(c)) && HasCommonOrder(c);
                   },
               .told =
                   [](SamplingCase& c, int& rank) {
                     if (IsOfGroup(c, rank)) rank = c.world_size - 1 - rank;
                   }}),
      Planted({"StridesByBlocks",
               "torch and exact: ranks take contiguous parts of the order",
               {"Deal"},
               "each rank has a contiguous part of the order"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && c.world_size > 1 && Fewest(c) > 1 &&
                            !c.drop_last;
                   },
               .draws = StrideByBlocks}),
      Planted({"DealsOneByOne",
               "paddle: samples are dealt one by one, not by the batch",
               {"Deal"},
               "samples are dealt one by one, not by the batch"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsPaddle(c) && c.world_size > 1 &&
                            c.batch_size > 1 && Fewest(c) > 1 && !c.drop_last &&
                            HasCommonOrder(c);
                   },
               .draws = DealOneByOne}),
  };
}

std::vector<Mutant> ShuffleMutants() {
  return {
      Planted({"ForgetsTheEpoch",
               "every epoch is the first",
               {"EpochsDiffer"},
               "both are shuffled: by the same seed"},
              {.shows = IsShuffled, .sets_epoch = ForgetEpoch}),
      Planted(
          {"DoesNotShuffle",
           "every epoch is in order",
           {"EpochsDiffer"},
           "both are in order: not shuffled"},
          {.shows = IsShuffled,
           .told = [](SamplingCase& c, int&) { c.shuffle = Shuffle::kNone; }}),
      Planted({"ForgetsTheSeed",
               "every seed is 0",
               {"SeedsDiffer"},
               "has the order of seed"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && IsShuffled(c);
                   },
               .told = [](SamplingCase& c, int&) { c.seed = 0; }}),
      Planted({"SeedsByRank",
               "each rank shuffles with a seed of its own",
               {"Disjointness"},
               "each rank shuffles by a seed of its own"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && IsShuffled(c) &&
                            c.dataset_size >= 20 && c.world_size > 1;
                   },
               .told = [](SamplingCase& c, int& rank) { c.seed += rank; }}),
      Planted({"LeavesTheLastInItsPlace",
               "the shuffle ends one place early",
               {"Order"},
               "the last sample stays in its place in every epoch"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && IsShuffled(c) &&
                            c.shuffle == Shuffle::kOwn;
                   },
               .draws = LeaveTheLast}),
      Planted({"SeedsByTheNextEpoch",
               "paddle: the shuffle is seeded by epoch + 1",
               {"Order"},
               "as if it were epoch 1"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsPaddle(c) && IsShuffled(c);
                   },
               .sets_epoch = SeedByTheNextEpoch}),
      Planted({"ShufflesByKey",
               "the order is shuffled, but not as PyTorch does",
               {"Order"},
               "; it is the keyed shuffle"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && IsShuffled(c) &&
                            c.shuffle == Shuffle::kOwn;
                   },
               .told =
                   [](SamplingCase& c, int&) {
                     if (c.shuffle == Shuffle::kOwn)
                       c.shuffle = Shuffle::kKeyed;
                   }}),
  };
}

std::vector<Mutant> RepeatedDrawMutants() {
  return {
      Planted({"DoesNotRefuseASecondDraw",
               "an epoch that nobody set is drawn again",
               {"RepeatedDraw"},
               "the second draw, by default, is not refused"},
              {.shows =
                   [](const SamplingCase& c) {
                     return !IsPaddle(c) && IsShuffled(c);
                   },
               .told =
                   [](SamplingCase& c, int&) {
                     if (c.repeated_draw.value_or(RepeatedDraw::kRefuse) ==
                         RepeatedDraw::kRefuse) {
                       c.repeated_draw = RepeatedDraw::kAllow;
                     }
                   }}),
      Planted({"RefusesEverySecondDraw",
               "an epoch cannot be drawn again where that is asked for",
               {"RepeatedDraw"},
               "is refused: FAILED_PRECONDITION"},
              {.shows = IsShuffled,
               .told = [](SamplingCase& c,
                          int&) { c.repeated_draw = RepeatedDraw::kRefuse; }}),
      Planted({"StaysInTheEpoch",
               "paddle: the epoch does not advance by itself",
               {"RepeatedDraw"},
               "the second draw, by default, is not epoch 1"},
              {.shows =
                   [](const SamplingCase& c) {
                     return IsPaddle(c) && IsShuffled(c);
                   },
               .told =
                   [](SamplingCase& c, int&) {
                     if (!c.repeated_draw)
                       c.repeated_draw = RepeatedDraw::kAllow;
                   }}),
  };
}

}  // namespace

std::vector<Mutant> EpochMutants() {
  std::vector<Mutant> all;
  for (const auto& some :
       {RepeatedDrawMutants(), BatchMutants(), LengthMutants(), ShardMutants(),
        PaddingMutants(), ShuffleMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace lockstep
