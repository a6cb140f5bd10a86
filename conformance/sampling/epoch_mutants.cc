// Faults in whole epochs: which indices, on which rank, in which order.
#include <cstdint>
#include <optional>
#include <vector>

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

void ForgetEpoch(SamplingSubject& real, const std::optional<SamplerState>&,
                 int64_t) {
  real.SetEpoch(0);
}

void SeedByTheNextEpoch(SamplingSubject& real,
                        const std::optional<SamplerState>&, int64_t epoch) {
  real.SetEpoch(epoch + 1);
}

std::vector<SamplingFault> PaddingFaults() {
  return {
      {.name = "PadsFromTheEnd",
       .bug = "padding repeats the end of the order, not its start",
       .property = "Padding",
       .says = "padding is the end of the order, not its start",
       .shows = [](const SamplingCase& c) { return IsTorch(c) && Pads(c); },
       .draws = PadFromTheEnd},
      {.name = "PadsBeforeTheShuffle",
       .bug = "torch: the data set is padded, then shuffled",
       .property = "Padding",
       .says = "the start of the data set: padded, then shuffled",
       .shows =
           [](const SamplingCase& c) {
             return IsTorch(c) && IsShuffled(c) && Pads(c);
           },
       .draws = PadFirst},
      {.name = "PadsAfterTheShuffle",
       .bug = "paddle: the order is shuffled, then padded",
       .property = "Padding",
       .says = "the start of the order: shuffled, then padded",
       .shows =
           [](const SamplingCase& c) {
             return IsPaddle(c) && IsShuffled(c) && Pads(c);
           },
       .draws = PadLast},
  };
}

std::vector<SamplingFault> LengthFaults() {
  return {
      {.name = "PadsOnlyOnce",
       .bug = "torch: padding does not go round a data set that is too small",
       .property = "Lengths",
       .says = "padding goes through the data set once and ends",
       .shows =
           [](const SamplingCase& c) {
             return IsTorch(c) && PaddingOf(c) > c.dataset_size && !c.drop_last;
           },
       .draws = PadOnce},
      {.name = "DropsTheTail",
       .bug = "the samples that do not go round the ranks are dropped",
       .property = "Lengths",
       .says = "the tail is dropped, not padded",
       .shows = [](const SamplingCase& c) { return IsTorch(c) && Pads(c); },
       .told = [](SamplingCase& c, int&) { c.drop_tail = true; }},
      {.name = "KeepsTheTail",
       .bug = "drop_last is ignored: the order is padded",
       .property = "Lengths",
       .says = "the tail is padded, not dropped",
       .shows =
           [](const SamplingCase& c) {
             return c.drop_tail && !IsDivided(c) && !c.drop_last;
           },
       .told = [](SamplingCase& c, int&) { c.drop_tail = false; }},
      {.name = "GivesTheTailToTheLastRank",
       .bug = "paddle: the tail is not split, the last rank takes it all",
       .property = "Lengths",
       .says = "the tail is not split",
       .shows =
           [](const SamplingCase& c) {
             const int64_t tail = LengthOf(c, 0) % c.batch_size * c.world_size;
             return IsPaddle(c) && c.world_size > 1 && !c.drop_last &&
                    tail > 0 && tail <= c.batch_size;
           },
       .draws = GiveTheTailToTheLast},
      {.name = "PadsInExact",
       .bug = "exact: samples come twice so that ranks are even",
       .property = "Lengths",
       .says = "the ranks are padded to be even",
       .shows =
           [](const SamplingCase& c) {
             return IsExact(c) && !IsDivided(c) && !c.drop_last;
           },
       .told = [](SamplingCase& c, int&) { c.semantics = Semantics::kTorch; }},
      {.name = "LosesASample",
       .bug = "exact: the last sample of the order is not drawn",
       .property = "Lengths",
       .says = "; lost: index ",
       .shows =
           [](const SamplingCase& c) { return IsExact(c) && !c.drop_last; },
       .draws = LoseTheLast},
  };
}

std::vector<SamplingFault> BatchFaults() {
  return {
      {.name = "KeepsThePartialBatch",
       .bug = "the last batch is kept under drop_last",
       .property = "Batches",
       .says = "a partial batch, which drop_last leaves out",
       .shows =
           [](const SamplingCase& c) {
             return c.drop_last && (LengthOf(c, 0) % c.batch_size != 0 ||
                                    Fewest(c) % c.batch_size != 0);
           },
       .told = [](SamplingCase& c, int&) { c.drop_last = false; }},
      {.name = "MakesBatchesTooLarge",
       .bug = "a batch has one sample more than was asked for",
       .property = "Batches",
       .says = ", 1 more than a batch of",
       .shows = [](const SamplingCase& c) { return Fewest(c) > c.batch_size; },
       .told =
           [](SamplingCase& c, int&) {
             if (c.batch_size > 0) ++c.batch_size;
           }},
      {.name = "PartsEarly",
       .bug = "a rank without samples left does not take part in the last step",
       .property = "Batches",
       .says = "it has no sample left, and must take an empty step",
       .shows =
           [](const SamplingCase& c) {
             return IsExact(c) && Fewest(c) % c.batch_size == 0 &&
                    Fewest(c) < LengthOf(c, 0) && !c.drop_last;
           },
       .draws = PartEarly},
      {.name = "NeverEnds",
       .bug = "empty batches come for ever after the last",
       .property = "Batches",
       .says = "does not end",
       .shows = [](const SamplingCase&) { return true; },
       .never_ends = true},
      {.name = "SaysOneBatchLess",
       .bug = "num_batches() leaves the last batch out",
       .property = "Batches",
       .says = "it leaves the last one out",
       .shows = [](const SamplingCase&) { return true; },
       .says_batches = [](int64_t batches) { return batches - 1; }},
  };
}

std::vector<SamplingFault> ShardFaults() {
  return {
      {.name = "DrawsAnothersSample",
       .bug = "exact: rank 1 draws rank 0's first sample, not its own",
       .property = "Disjointness",
       .says = "in place of its own",
       .shows =
           [](const SamplingCase& c) {
             // Of two samples on two ranks it is DrawsTheSameShard.
             return IsExact(c) && c.world_size > 1 && c.dataset_size > 1 &&
                    !(c.world_size == 2 && c.dataset_size == 2);
           },
       .draws = DrawAnothersFirst},
      {.name = "DrawsASampleTwice",
       .bug = "exact: rank 0 draws its first sample again, its second never",
       .property = "Coverage",
       .says = "comes 2 times in its place",
       .shows =
           [](const SamplingCase& c) {
             return IsExact(c) && LengthOf(c, 0) > 1 && !c.drop_last;
           },
       .draws = DrawTheFirstTwice},
      {.name = "DrawsTheNextIndex",
       .bug = "samples are counted from 1",
       .property = "Coverage",
       .says = "they go from 1 to n, not from 0 to n - 1",
       .shows =
           [](const SamplingCase& c) { return !c.drop_tail && !c.drop_last; },
       .draws = DrawTheNextIndex},
      {.name = "DrawsTheSameShard",
       .bug = "every rank draws rank 0's samples",
       .property = "Disjointness",
       .says = "all ranks draw the same",
       .shows =
           [](const SamplingCase& c) {
             return c.world_size > 1 && c.dataset_size > 1 &&
                    (!IsExact(c) || IsDivided(c));
           },
       .told =
           [](SamplingCase& c, int& rank) {
             if (IsOfGroup(c, rank)) rank = 0;
           }},
      {.name = "ReversesTheRanks",
       .bug = "the last rank draws what the first should",
       .property = "Deal",
       .says = "the last rank has what the first should",
       .shows =
           [](const SamplingCase& c) {
             return c.world_size > 1 && c.dataset_size >= c.world_size &&
                    (!IsExact(c) || IsDivided(c)) && HasCommonOrder(c);
           },
       .told =
           [](SamplingCase& c, int& rank) {
             if (IsOfGroup(c, rank)) rank = c.world_size - 1 - rank;
           }},
      {.name = "StridesByBlocks",
       .bug = "torch and exact: ranks take contiguous parts of the order",
       .property = "Deal",
       .says = "each rank has a contiguous part of the order",
       .shows =
           [](const SamplingCase& c) {
             return !IsPaddle(c) && c.world_size > 1 && Fewest(c) > 1 &&
                    !c.drop_last;
           },
       .draws = StrideByBlocks},
      {.name = "DealsOneByOne",
       .bug = "paddle: samples are dealt one by one, not by the batch",
       .property = "Deal",
       .says = "samples are dealt one by one, not by the batch",
       .shows =
           [](const SamplingCase& c) {
             return IsPaddle(c) && c.world_size > 1 && c.batch_size > 1 &&
                    Fewest(c) > 1 && !c.drop_last && HasCommonOrder(c);
           },
       .draws = DealOneByOne},
  };
}

std::vector<SamplingFault> ShuffleFaults() {
  return {
      {.name = "ForgetsTheEpoch",
       .bug = "every epoch is the first",
       .property = "EpochsDiffer",
       .says = "both are shuffled: by the same seed",
       .shows = IsShuffled,
       .sets_epoch = ForgetEpoch},
      {.name = "DoesNotShuffle",
       .bug = "every epoch is in order",
       .property = "EpochsDiffer",
       .says = "both are in order: not shuffled",
       .shows = IsShuffled,
       .told = [](SamplingCase& c, int&) { c.shuffle = Shuffle::kNone; }},
      {.name = "ForgetsTheSeed",
       .bug = "every seed is 0",
       .property = "SeedsDiffer",
       .says = "has the order of seed",
       .shows =
           [](const SamplingCase& c) { return !IsPaddle(c) && IsShuffled(c); },
       .told = [](SamplingCase& c, int&) { c.seed = 0; }},
      {.name = "SeedsByRank",
       .bug = "each rank shuffles with a seed of its own",
       .property = "Disjointness",
       .says = "each rank shuffles by a seed of its own",
       .shows =
           [](const SamplingCase& c) {
             return !IsPaddle(c) && IsShuffled(c) && c.dataset_size >= 20 &&
                    c.world_size > 1;
           },
       .told = [](SamplingCase& c, int& rank) { c.seed += rank; }},
      {.name = "LeavesTheLastInItsPlace",
       .bug = "the shuffle ends one place early",
       .property = "Order",
       .says = "the last sample stays in its place in every epoch",
       .shows =
           [](const SamplingCase& c) {
             return !IsPaddle(c) && IsShuffled(c) && c.shuffle == Shuffle::kOwn;
           },
       .draws = LeaveTheLast},
      {.name = "SeedsByTheNextEpoch",
       .bug = "paddle: the shuffle is seeded by epoch + 1",
       .property = "Order",
       .says = "as if it were epoch 1",
       .shows =
           [](const SamplingCase& c) { return IsPaddle(c) && IsShuffled(c); },
       .sets_epoch = SeedByTheNextEpoch},
      {.name = "ShufflesByKey",
       .bug = "the order is shuffled, but not as PyTorch does",
       .property = "Order",
       .says = "; it is the keyed shuffle",
       .shows =
           [](const SamplingCase& c) {
             return !IsPaddle(c) && IsShuffled(c) && c.shuffle == Shuffle::kOwn;
           },
       .told =
           [](SamplingCase& c, int&) {
             if (c.shuffle == Shuffle::kOwn) c.shuffle = Shuffle::kKeyed;
           }},
  };
}

std::vector<SamplingFault> RepeatedDrawFaults() {
  return {
      {.name = "DoesNotRefuseASecondDraw",
       .bug = "an epoch that nobody set is drawn again",
       .property = "RepeatedDraw",
       .says = "the second draw, by default, is not refused",
       .shows =
           [](const SamplingCase& c) { return !IsPaddle(c) && IsShuffled(c); },
       .told =
           [](SamplingCase& c, int&) {
             if (c.repeated_draw.value_or(RepeatedDraw::kRefuse) ==
                 RepeatedDraw::kRefuse) {
               c.repeated_draw = RepeatedDraw::kAllow;
             }
           }},
      {.name = "RefusesEverySecondDraw",
       .bug = "an epoch cannot be drawn again where that is asked for",
       .property = "RepeatedDraw",
       .says = "is refused: FAILED_PRECONDITION",
       .shows = IsShuffled,
       .told = [](SamplingCase& c,
                  int&) { c.repeated_draw = RepeatedDraw::kRefuse; }},
      {.name = "StaysInTheEpoch",
       .bug = "paddle: the epoch does not advance by itself",
       .property = "RepeatedDraw",
       .says = "the second draw, by default, is not epoch 1",
       .shows =
           [](const SamplingCase& c) { return IsPaddle(c) && IsShuffled(c); },
       .told =
           [](SamplingCase& c, int&) {
             if (!c.repeated_draw) c.repeated_draw = RepeatedDraw::kAllow;
           }},
  };
}

}  // namespace

std::vector<SamplingFault> EpochFaults() {
  std::vector<SamplingFault> all;
  for (const auto& some : {RepeatedDrawFaults(), BatchFaults(), LengthFaults(),
                           ShardFaults(), PaddingFaults(), ShuffleFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace lockstep
