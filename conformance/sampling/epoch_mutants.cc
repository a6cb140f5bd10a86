// Mutants of whole epochs: of the indices, their ranks and their order. The
// first part draws wrong epochs, each wrong in one respect that no option
// offers.
#include "conformance/sampling/epoch_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

Batches RealEpoch(const SamplingCase& c, int rank, int64_t epoch) {
  const auto sampler = MakeTestedSampler(c, rank).value();
  sampler->SetEpoch(epoch);
  return DrawEpoch(*sampler).value();
}

// Returns the order in which one rank draws so many samples.
std::vector<int64_t> RealOrder(SamplingCase c, int64_t epoch) {
  c = OneRank(c);
  c.batch_size = c.dataset_size;
  return RealEpoch(c, 0, epoch)[0];
}

// Cuts a list into as many steps as the case has. The last steps may be partial
// or empty.
Batches CutOne(const SamplingCase& c, const std::vector<int64_t>& list) {
  Batches batches(static_cast<size_t>(StepsOf(c)));
  const auto batch = static_cast<size_t>(c.batch_size);
  for (size_t i = 0; i < std::min(list.size(), batches.size() * batch); ++i) {
    batches[i / batch].push_back(list[i]);
  }
  return batches;
}

// Pads with the end of the order, the last sample first.
Batches PadFromTheEnd(const SamplingCase& c, int rank, int64_t epoch) {
  std::vector<int64_t> order = RealOrder(c, epoch);
  const size_t n = order.size();
  for (size_t i = 0; i < static_cast<size_t>(PaddingOf(c)); ++i) {
    order.push_back(order[n - 1 - i % n]);
  }
  return DealPart(c, order, rank);
}

// Ends the padding where the order ends, so that it is too short if it must go
// round again.
Batches PadOnce(const SamplingCase& c, int rank, int64_t epoch) {
  std::vector<int64_t> order = RealOrder(c, epoch);
  const size_t n = order.size();
  const size_t padding = std::min(n, static_cast<size_t>(PaddingOf(c)));
  for (size_t i = 0; i < padding; ++i) order.push_back(order[i]);
  return DealPart(c, order, rank);
}

// Pads the data set, then shuffles it.
Batches PadFirst(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase padded = c;
  padded.dataset_size += PaddingOf(c);
  std::vector<int64_t> order = RealOrder(padded, epoch);
  for (int64_t& index : order) index %= c.dataset_size;
  return DealPart(c, order, rank);
}

// Shuffles the data set, then pads it.
Batches PadLast(const SamplingCase& c, int rank, int64_t epoch) {
  return DealPart(c, PadOrCut(c, RealOrder(c, epoch)), rank);
}

// Deals each rank a contiguous part of the order.
Batches StrideByBlocks(const SamplingCase& c, int rank, int64_t epoch) {
  const std::vector<int64_t> order = PadOrCut(c, RealOrder(c, epoch));
  int64_t begin = 0;
  for (int other = 0; other < rank; ++other) begin += LengthOf(c, other);
  return CutOne(
      c, {order.begin() + begin, order.begin() + begin + LengthOf(c, rank)});
}

// Deals single samples, with Paddle's sampler.
Batches DealOneByOne(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase single = c;
  single.batch_size = 1;
  single.drop_last = false;
  std::vector<int64_t> list;
  for (const auto& batch : RealEpoch(single, rank, epoch)) {
    list.push_back(batch[0]);
  }
  return CutOne(c, list);
}

// Gives the whole tail to the last rank, with Paddle's sampler. Precondition:
// the tail fits in a batch.
Batches GiveTheTailToTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  const std::vector<int64_t> order = ReferenceOrder(c, epoch);
  const int64_t whole = LengthOf(c, 0) / c.batch_size * c.batch_size;
  std::vector<int64_t> list = Deal(c, order)[static_cast<size_t>(rank)];
  list.resize(static_cast<size_t>(whole));
  if (rank == c.world_size - 1) {
    list.insert(list.end(), order.begin() + whole * c.world_size, order.end());
  }
  return CutOne(c, list);
}

Batches LoseTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == (c.dataset_size - 1) % c.world_size) batches.back().pop_back();
  return batches;
}

// Draws rank 0's first sample on rank 1, instead of rank 1's own.
Batches DrawAnothersFirst(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == 1) batches[0][0] = RealEpoch(c, 0, epoch)[0][0];
  return batches;
}

Batches DrawTheFirstTwice(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == 0) {
    (c.batch_size > 1 ? batches[0][1] : batches[1][0]) = batches[0][0];
  }
  return batches;
}

Batches LeaveTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase shorter = c;
  --shorter.dataset_size;
  std::vector<int64_t> order = RealOrder(shorter, epoch);
  order.push_back(shorter.dataset_size);
  return DealPart(c, PadOrCut(c, order), rank);
}

Batches DrawTheNextIndex(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  for (std::vector<int64_t>& batch : batches) {
    for (int64_t& index : batch) ++index;
  }
  return batches;
}

Batches PartEarly(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  while (!batches.empty() && batches.back().empty()) batches.pop_back();
  return batches;
}

bool IsTorch(const SamplingCase& c) { return c.semantics == Semantics::kTorch; }
bool IsDivided(const SamplingCase& c) {
  return c.dataset_size % c.world_size == 0;
}
bool IsNotDivided(const SamplingCase& c) { return !IsDivided(c); }
// Every rank draws the same number of samples.
bool IsEven(const SamplingCase& c) { return !IsExact(c) || IsDivided(c); }
// The samples are shuffled by PyTorch's own shuffle.
bool IsTorchShuffled(const SamplingCase& c) {
  return !IsPaddle(c) && IsShuffled(c) && c.shuffle == Shuffle::kOwn;
}
// The padding does not contain every sample, and all of it is drawn.
bool Pads(const SamplingCase& c) {
  return PaddingOf(c) > 0 && c.dataset_size > c.world_size && !c.drop_last;
}
// One rank's order determines what the other ranks draw.
bool HasCommonOrder(const SamplingCase& c) {
  return !IsPaddle(c) || c.shuffle == Shuffle::kNone || PaddingOf(c) == 0;
}
int64_t Fewest(const SamplingCase& c) { return LengthOf(c, c.world_size - 1); }
// Every rank draws at least two samples.
bool HasTwoSamples(const SamplingCase& c) { return Fewest(c) > 1; }

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

}  // namespace

std::vector<SamplingMutant> EpochMutants() {
  return {
      // Mutants of repeated draws.
      {{"DoesNotRefuseASecondDraw", "an epoch that nobody set is drawn again",
        "RepeatedDraw", "the second draw, by default, is not refused"},
       {.shows = {IsNotPaddle, IsShuffled},
        .told =
            [](SamplingCase& c, int&) {
              if (c.repeated_draw.value_or(RepeatedDraw::kRefuse) ==
                  RepeatedDraw::kRefuse) {
                c.repeated_draw = RepeatedDraw::kAllow;
              }
            }}},
      {{"RefusesEverySecondDraw",
        "an epoch cannot be drawn again where that is asked for",
        "RepeatedDraw", "is refused: FAILED_PRECONDITION"},
       {.shows = {IsShuffled},
        .told = Set<&SamplingCase::repeated_draw, RepeatedDraw::kRefuse>}},
      {{"StaysInTheEpoch", "paddle: the epoch does not advance by itself",
        "RepeatedDraw", "the second draw, by default, is not epoch 1"},
       {.shows = {IsPaddle, IsShuffled},
        .told =
            [](SamplingCase& c, int&) {
              if (!c.repeated_draw) c.repeated_draw = RepeatedDraw::kAllow;
            }}},
      // Mutants of batches.
      {{"KeepsThePartialBatch", "the last batch is kept under drop_last",
        "Batches", "a partial batch, which drop_last leaves out"},
       {.shows = {[](const SamplingCase& c) {
          return c.drop_last && (LengthOf(c, 0) % c.batch_size != 0 ||
                                 Fewest(c) % c.batch_size != 0);
        }},
        .told = Set<&SamplingCase::drop_last, false>}},
      {{"MakesBatchesTooLarge",
        "a batch has one sample more than was asked for", "Batches",
        ", 1 more than a batch of"},
       {.shows = {[](const SamplingCase& c) {
          return Fewest(c) > c.batch_size;
        }},
        .told =
            [](SamplingCase& c, int&) {
              if (c.batch_size > 0) ++c.batch_size;
            }}},
      {{"PartsEarly",
        "a rank without samples left does not take part in the last step",
        "Batches", "it has no sample left, and must take an empty step"},
       {.shows = {IsExact, KeepsLast,
                  [](const SamplingCase& c) {
                    return Fewest(c) % c.batch_size == 0 && !IsDivided(c);
                  }},
        .draws = PartEarly}},
      {{"NeverEnds", "empty batches come for ever after the last", "Batches",
        "does not end"},
       {.never_ends = true}},
      {{"SaysOneBatchLess", "num_batches() leaves the last batch out",
        "Batches", "it leaves the last one out"},
       {.says_batches = [](int64_t batches) { return batches - 1; }}},
      // Mutants of lengths.
      {{"PadsOnlyOnce",
        "torch: padding does not go round a data set that is too small",
        "Lengths", "padding goes through the data set once and ends"},
       {.shows = {IsTorch, KeepsLast,
                  [](const SamplingCase& c) {
                    return PaddingOf(c) > c.dataset_size;
                  }},
        .draws = PadOnce}},
      {{"DropsTheTail",
        "the samples that do not go round the ranks are dropped", "Lengths",
        "the tail is dropped, not padded"},
       {.shows = {IsTorch, Pads}, .told = Set<&SamplingCase::drop_tail, true>}},
      {{"KeepsTheTail", "drop_last is ignored: the order is padded", "Lengths",
        "the tail is padded, not dropped"},
       {.shows = {IsNotDivided, KeepsLast,
                  [](const SamplingCase& c) { return c.drop_tail; }},
        .told = Set<&SamplingCase::drop_tail, false>}},
      {{"GivesTheTailToTheLastRank",
        "paddle: the tail is not split, the last rank takes it all", "Lengths",
        "the tail is not split"},
       {.shows = {IsPaddle, HasSeveralRanks, KeepsLast,
                  [](const SamplingCase& c) {
                    const int64_t tail =
                        LengthOf(c, 0) % c.batch_size * c.world_size;
                    return tail > 0 && tail <= c.batch_size;
                  }},
        .draws = GiveTheTailToTheLast}},
      {{"PadsInExact", "exact: samples come twice so that ranks are even",
        "Lengths", "the ranks are padded to be even"},
       {.shows = {IsExact, IsNotDivided, KeepsLast},
        .told = Set<&SamplingCase::semantics, Semantics::kTorch>}},
      {{"LosesASample", "exact: the last sample of the order is not drawn",
        "Lengths", "; lost: index "},
       {.shows = {IsExact, KeepsLast}, .draws = LoseTheLast}},
      // Mutants of shards.
      {{"DrawsAnothersSample",
        "exact: rank 1 draws rank 0's first sample, not its own",
        "Disjointness", "in place of its own"},
       {.shows = {IsExact, HasSeveralRanks, HasSeveralSamples,
                  [](const SamplingCase& c) {
                    // In this case the mutant equals DrawsTheSameShard.
                    return c.world_size != 2 || c.dataset_size != 2;
                  }},
        .draws = DrawAnothersFirst}},
      {{"DrawsASampleTwice",
        "exact: rank 0 draws its first sample again, its second never",
        "Coverage", "comes 2 times in its place"},
       {.shows = {IsExact, KeepsLast,
                  [](const SamplingCase& c) { return LengthOf(c, 0) > 1; }},
        .draws = DrawTheFirstTwice}},
      {{"DrawsTheNextIndex", "samples are counted from 1", "Coverage",
        "they go from 1 to n, not from 0 to n - 1"},
       {.shows = {KeepsAll}, .draws = DrawTheNextIndex}},
      {{"DrawsTheSameShard", "every rank draws rank 0's samples",
        "Disjointness", "all ranks draw the same"},
       {.shows = {HasSeveralRanks, HasSeveralSamples, IsEven},
        .told =
            [](SamplingCase& c, int& rank) {
              if (IsOfGroup(c, rank)) rank = 0;
            }}},
      {{"ReversesTheRanks", "the last rank draws what the first should", "Deal",
        "the last rank has what the first should"},
       {.shows = {HasSeveralRanks, IsEven, HasCommonOrder,
                  [](const SamplingCase& c) {
                    return c.dataset_size >= c.world_size;
                  }},
        .told =
            [](SamplingCase& c, int& rank) {
              if (IsOfGroup(c, rank)) rank = c.world_size - 1 - rank;
            }}},
      {{"StridesByBlocks",
        "torch and exact: ranks take contiguous parts of the order", "Deal",
        "each rank has a contiguous part of the order"},
       {.shows = {IsNotPaddle, HasSeveralRanks, HasTwoSamples, KeepsLast},
        .draws = StrideByBlocks}},
      {{"DealsOneByOne",
        "paddle: samples are dealt one by one, not by the batch", "Deal",
        "samples are dealt one by one, not by the batch"},
       {.shows = {IsPaddle, HasSeveralRanks, HasTwoSamples, KeepsLast,
                  HasCommonOrder,
                  [](const SamplingCase& c) { return c.batch_size > 1; }},
        .draws = DealOneByOne}},
      // Mutants of padding.
      {{"PadsFromTheEnd", "padding repeats the end of the order, not its start",
        "Padding", "padding is the end of the order, not its start"},
       {.shows = {IsTorch, Pads}, .draws = PadFromTheEnd}},
      {{"PadsBeforeTheShuffle", "torch: the data set is padded, then shuffled",
        "Padding", "the start of the data set: padded, then shuffled"},
       {.shows = {IsTorch, IsShuffled, Pads}, .draws = PadFirst}},
      {{"PadsAfterTheShuffle", "paddle: the order is shuffled, then padded",
        "Padding", "the start of the order: shuffled, then padded"},
       {.shows = {IsPaddle, IsShuffled, Pads}, .draws = PadLast}},
      // Mutants of shuffles.
      {{"ForgetsTheEpoch", "every epoch is the first", "EpochsDiffer",
        "both are shuffled: by the same seed"},
       {.shows = {IsShuffled}, .sets_epoch = ForgetEpoch}},
      {{"DoesNotShuffle", "every epoch is in order", "EpochsDiffer",
        "both are in order: not shuffled"},
       {.shows = {IsShuffled},
        .told = Set<&SamplingCase::shuffle, Shuffle::kNone>}},
      {{"ForgetsTheSeed", "every seed is 0", "SeedsDiffer",
        "has the order of seed"},
       {.shows = {IsNotPaddle, IsShuffled},
        .told = Set<&SamplingCase::seed, 0>}},
      {{"SeedsByRank", "each rank shuffles with a seed of its own",
        "Disjointness", "each rank shuffles by a seed of its own"},
       {.shows = {IsNotPaddle, IsShuffled, HasSeveralRanks,
                  [](const SamplingCase& c) { return c.dataset_size >= 20; }},
        .told = [](SamplingCase& c, int& rank) { c.seed += rank; }}},
      {{"LeavesTheLastInItsPlace", "the shuffle ends one place early", "Order",
        "the last sample stays in its place in every epoch"},
       {.shows = {IsTorchShuffled}, .draws = LeaveTheLast}},
      {{"SeedsByTheNextEpoch", "paddle: the shuffle is seeded by epoch + 1",
        "Order", "as if it were epoch 1"},
       {.shows = {IsPaddle, IsShuffled}, .sets_epoch = SeedByTheNextEpoch}},
      {{"ShufflesByKey", "the order is shuffled, but not as PyTorch does",
        "Order", "; it is the keyed shuffle"},
       {.shows = {IsTorchShuffled},
        .told = Set<&SamplingCase::shuffle, Shuffle::kKeyed>}},
  };
}

}  // namespace lockstep::conformance
