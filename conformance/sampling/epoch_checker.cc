// Checks the properties of whole epochs.
#include "conformance/sampling/epoch_checker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/epoch_causes.h"
#include "conformance/sampling/refusal_checks.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {
namespace {

constexpr int64_t kEpochs = 3;

using Property = std::optional<std::string> (*)(const DrawnEpoch& drawn);

std::string CauseOfSize(const SamplingCase& c, int64_t size, bool is_last) {
  if (size > c.batch_size) {
    return absl::StrCat(", ", size - c.batch_size, " more than a batch of ",
                        c.batch_size);
  }
  return is_last ? ", a partial batch, which drop_last leaves out"
                 : absl::StrCat(", no batch of ", c.batch_size);
}

std::optional<std::string> WrongBatches(const DrawnEpoch& drawn) {
  const std::vector<Batches>& ranks = drawn.ranks;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Batches& batches = ranks[rank];
    if (batches.size() != ranks[0].size()) {
      const bool has_all = batches.size() < ranks[0].size() &&
                           std::ssize(Flat(batches)) ==
                               LengthOf(drawn.c, static_cast<int>(rank));
      return absl::StrCat("rank ", rank, " takes ", batches.size(),
                          " steps, rank 0 takes ", ranks[0].size(),
                          has_all ? "; it has no sample left, and must take "
                                    "an empty step"
                                  : "");
    }
    for (size_t step = 0; step < batches.size(); ++step) {
      const int64_t size = std::ssize(batches[step]);
      const bool may_be_partial =
          step + 1 == batches.size() && !drawn.c.drop_last;
      if (size == drawn.c.batch_size ||
          (may_be_partial && size < drawn.c.batch_size)) {
        continue;
      }
      return absl::StrCat(
          "rank ", rank, ", step ", step, " of ", batches.size(), ": ", size,
          " indices", CauseOfSize(drawn.c, size, step + 1 == batches.size()));
    }
  }
  return std::nullopt;
}

std::optional<std::string> WrongLengths(const DrawnEpoch& drawn) {
  const SamplingCase& c = drawn.c;
  for (int rank = 0; rank < c.world_size; ++rank) {
    const int64_t got =
        std::ssize(Flat(drawn.ranks[static_cast<size_t>(rank)]));
    const int64_t want =
        c.drop_last ? StepsOf(c) * c.batch_size : LengthOf(c, rank);
    if (got != want) {
      return absl::StrCat("rank ", rank, " draws ", got, " indices, not ", want,
                          CauseOfLengths(drawn));
    }
  }
  return std::nullopt;
}

std::optional<std::string> SharedIndex(const DrawnEpoch& drawn) {
  std::map<int64_t, size_t> first;  // The first rank that draws the index.
  int64_t shared = 0;
  for (size_t rank = 0; rank < drawn.ranks.size(); ++rank) {
    std::vector<int64_t> own = Flat(drawn.ranks[rank]);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    for (const int64_t index : own) {
      const auto [at, is_first] = first.emplace(index, rank);
      if (is_first || ++shared <= PaddingOf(drawn.c)) continue;
      return absl::StrCat("index ", index, " is drawn by rank ", at->second,
                          " and by rank ", rank, ", and padding is ",
                          PaddingOf(drawn.c), " indices",
                          CauseOfSharing(drawn));
    }
  }
  return std::nullopt;
}

// Returns the minimum number of distinct indices. Given the lengths, this
// number is exact, unless the padding is shuffled too and drop_last drops some
// of it.
int64_t FewestIndices(const SamplingCase& c) {
  if (!c.drop_last) {
    return c.drop_tail ? c.dataset_size / c.world_size * c.world_size
                       : c.dataset_size;
  }
  const int64_t drawn = StepsOf(c) * c.batch_size * c.world_size;
  // If the padding is shuffled too, all of it may come before the dropped part.
  return c.semantics == Semantics::kPaddle && c.shuffle != Shuffle::kNone
             ? drawn - PaddingOf(c)
             : std::min(drawn, c.dataset_size);
}

std::optional<std::string> Uncovered(const DrawnEpoch& drawn) {
  for (const Batches& batches : drawn.ranks) {
    for (const int64_t index : Flat(batches)) {
      if (index < 0 || index >= drawn.c.dataset_size) {
        return absl::StrCat("index ", index, " does not exist",
                            CauseOfIndex(drawn));
      }
    }
  }
  const std::vector<int64_t> counts = CountsOf(drawn);
  const auto absent = std::find(counts.begin(), counts.end(), 0);
  const int64_t covered = std::ssize(counts) - std::ranges::count(counts, 0);
  if (covered < FewestIndices(drawn.c)) {
    return absl::StrCat("only ", covered, " indices are drawn, of ",
                        FewestIndices(drawn.c), "; not ",
                        absent - counts.begin(), CauseOfAbsence(drawn));
  }
  std::vector<int64_t> all(counts.size());
  std::iota(all.begin(), all.end(), 0);
  if (std::ranges::is_permutation(drawn.one_rank, all)) return std::nullopt;
  return "one rank draws no permutation";
}

// Returns how often each index may come again. kPaddle pads the data set, the
// other semantics pad its shuffled order.
std::vector<int64_t> PaddingCounts(const DrawnEpoch& drawn) {
  std::vector<int64_t> order = drawn.one_rank;
  if (drawn.c.semantics == Semantics::kPaddle) {
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int64_t> counts(order.size(), 0);
  for (size_t i = 0; i < static_cast<size_t>(PaddingOf(drawn.c)); ++i) {
    ++counts[static_cast<size_t>(order[i % order.size()])];
  }
  return counts;
}

std::optional<std::string> WrongPadding(const DrawnEpoch& drawn) {
  const std::vector<int64_t> counts = CountsOf(drawn);
  const std::vector<int64_t> again = PaddingCounts(drawn);
  for (size_t index = 0; index < counts.size(); ++index) {
    if (counts[index] <= 1 + again[index]) continue;
    return absl::StrCat("index ", index, " comes ", counts[index],
                        " times, and padding repeats it ", again[index],
                        " times", CauseOfPadding(drawn));
  }
  return std::nullopt;
}

std::optional<std::string> WrongDeal(const DrawnEpoch& drawn) {
  const SamplingCase& c = drawn.c;
  // kPaddle shuffles the padding too, so that the order depends on the number
  // of ranks.
  if (c.semantics == Semantics::kPaddle && c.shuffle != Shuffle::kNone &&
      PaddingOf(c) > 0) {
    return std::nullopt;
  }
  const auto difference = FirstDifference(
      drawn.ranks, Cut(c, Deal(c, PadOrCut(c, drawn.one_rank))));
  if (!difference.has_value()) return std::nullopt;
  return absl::StrCat(*difference, " as dealt from one rank's order",
                      CauseOfDeal(drawn));
}

std::optional<std::string> SameEpochs(const DrawnEpoch& drawn) {
  const bool must_differ =
      drawn.c.shuffle != Shuffle::kNone && drawn.c.dataset_size >= kManySamples;
  for (int64_t earlier = 0; earlier < drawn.epoch; ++earlier) {
    const bool same =
        drawn.one_rank == drawn.epochs[static_cast<size_t>(earlier)];
    if (must_differ && same) {
      return absl::StrCat(
          "it has the order of epoch ", earlier,
          std::is_sorted(drawn.one_rank.begin(), drawn.one_rank.end())
              ? "; both are in order: not shuffled"
              : "; both are shuffled: by the same seed");
    }
    if (drawn.c.shuffle == Shuffle::kNone && !same) {
      return absl::StrCat("it is unshuffled, and not as epoch ", earlier);
    }
  }
  return std::nullopt;
}

std::optional<std::string> SameSeeds(const DrawnEpoch& drawn) {
  if (drawn.c.shuffle == Shuffle::kNone ||
      drawn.c.semantics == Semantics::kPaddle ||
      drawn.c.dataset_size < kManySamples) {
    return std::nullopt;
  }
  SamplingCase other = OneRank(drawn.c);
  other.seed += 1000;
  const auto ranks = DrawRanks(drawn.make, other, drawn.epoch);
  if (!ranks.ok()) return ranks.status().ToString();
  if (Flat((*ranks)[0]) != drawn.one_rank) return std::nullopt;
  return absl::StrCat("seed ", other.seed, " has the order of seed ",
                      drawn.c.seed);
}

std::optional<std::string> WrongOrder(const DrawnEpoch& drawn) {
  const SamplingCase& c = drawn.c;
  if (c.shuffle == Shuffle::kKeyed) return std::nullopt;
  const auto of_epoch = [&c](int64_t which) {
    return Cut(c, Deal(c, PadOrCut(c, ReferenceOrder(c, which))));
  };
  const int64_t number = drawn.epoch;
  std::optional<std::string> wrong =
      FirstDifference(drawn.ranks, of_epoch(number));
  if (!wrong.has_value()) return wrong;
  if (c.shuffle == Shuffle::kNone) return *wrong + ", not in order";
  for (int64_t other = std::max<int64_t>(0, number - 1); other <= number + 1;
       ++other) {
    if (other == number || drawn.ranks != of_epoch(other)) continue;
    return absl::StrCat(*wrong, ", as if it were epoch ", other);
  }
  const bool last_stays =
      c.dataset_size >= kManySamples &&
      std::ranges::all_of(drawn.epochs,
                          [&c](const std::vector<int64_t>& order) {
                            return order.back() == c.dataset_size - 1;
                          });
  return absl::StrCat(
      *wrong, ", shuffled otherwise than ",
      c.semantics == Semantics::kPaddle ? "Paddle" : "PyTorch", " does",
      last_stays ? "; the last sample stays in its place in every epoch"
                 : CauseOfOrder(drawn));
}

constexpr struct {
  SamplingProperty name;
  Property wrong;
} kProperties[] = {
    {"Batches", WrongBatches},     {"Lengths", WrongLengths},
    {"Disjointness", SharedIndex}, {"Coverage", Uncovered},
    {"Padding", WrongPadding},     {"Deal", WrongDeal},
    {"EpochsDiffer", SameEpochs},  {"SeedsDiffer", SameSeeds},
    {"Order", WrongOrder},
};

// Checks that num_batches() is the length of the epoch, before and after it.
absl::Status CheckNumBatches(const SamplerFactory& make,
                             const SamplingCase& c) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make(c, 0));
  const int64_t before = sampler->num_batches();
  LOCKSTEP_ASSIGN_OR_RETURN(const Batches batches, DrawEpoch(*sampler));
  for (const int64_t said : {before, sampler->num_batches()}) {
    if (said == std::ssize(batches)) continue;
    return PropertyError("Batches", c,
                         absl::StrCat("num_batches() says ", said,
                                      ", there are ", batches.size(),
                                      said == std::ssize(batches) - 1
                                          ? ": it leaves the last one out"
                                          : ""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEpochs(const SamplerFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGuards(make, c));
  if (StepsOf(c) == 0) return absl::OkStatus();
  std::vector<std::vector<Batches>> ranks;
  std::vector<std::vector<int64_t>> one_rank;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    LOCKSTEP_ASSIGN_OR_RETURN(ranks.emplace_back(), DrawRanks(make, c, epoch));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto one,
                              DrawRanks(make, OneRank(c), epoch));
    one_rank.push_back(Flat(one[0]));
  }
  for (const auto& [name, wrong] : kProperties) {
    for (size_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::optional<std::string> how =
          wrong({make, c, static_cast<int64_t>(epoch), ranks[epoch],
                 one_rank[epoch], one_rank});
      if (how.has_value()) {
        return PropertyError(name, c,
                             absl::StrCat("epoch ", epoch, ": ", *how));
      }
    }
    if (wrong == WrongBatches) {
      LOCKSTEP_RETURN_IF_ERROR(CheckNumBatches(make, c));
    }
  }
  return CheckRepeatedDraw(make, c, ranks);
}

}  // namespace lockstep::conformance
