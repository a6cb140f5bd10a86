// The properties of whole epochs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep {
namespace {

constexpr int64_t kEpochs = 3;

// What a sampler drew.
struct Drawn {
  const SamplerFactory& make;
  const SamplingCase& c;
  std::vector<std::vector<Batches>> ranks;     // By epoch.
  std::vector<std::vector<int64_t>> one_rank;  // By epoch, all of its indices.
};

using Property = std::optional<std::string> (*)(const Drawn& drawn,
                                                size_t epoch);

DrawnEpoch EpochOf(const Drawn& drawn, size_t epoch) {
  return {drawn.make, drawn.c, static_cast<int64_t>(epoch), drawn.ranks[epoch],
          drawn.one_rank[epoch]};
}

SamplingCase OneRank(SamplingCase c) {
  c.world_size = 1;
  c.drop_last = false;
  return c;
}

std::string CauseOfSize(const SamplingCase& c, int64_t size, bool is_last) {
  if (size > c.batch_size) {
    return absl::StrCat(", ", size - c.batch_size, " more than a batch of ",
                        c.batch_size);
  }
  return is_last ? ", a partial batch, which drop_last leaves out"
                 : absl::StrCat(", no batch of ", c.batch_size);
}

std::optional<std::string> WrongBatches(const Drawn& drawn, size_t epoch) {
  const std::vector<Batches>& ranks = drawn.ranks[epoch];
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

std::optional<std::string> WrongLengths(const Drawn& drawn, size_t epoch) {
  const SamplingCase& c = drawn.c;
  for (int rank = 0; rank < c.world_size; ++rank) {
    const int64_t got =
        std::ssize(Flat(drawn.ranks[epoch][static_cast<size_t>(rank)]));
    const int64_t want =
        c.drop_last ? StepsOf(c) * c.batch_size : LengthOf(c, rank);
    if (got != want) {
      return absl::StrCat("rank ", rank, " draws ", got, " indices, not ", want,
                          CauseOfLengths(EpochOf(drawn, epoch)));
    }
  }
  return std::nullopt;
}

std::optional<std::string> SharedIndex(const Drawn& drawn, size_t epoch) {
  std::map<int64_t, size_t> first;  // The first rank that draws the index.
  int64_t shared = 0;
  for (size_t rank = 0; rank < drawn.ranks[epoch].size(); ++rank) {
    std::vector<int64_t> own = Flat(drawn.ranks[epoch][rank]);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    for (const int64_t index : own) {
      const auto [at, is_first] = first.emplace(index, rank);
      if (is_first || ++shared <= PaddingOf(drawn.c)) continue;
      return absl::StrCat("index ", index, " is drawn by rank ", at->second,
                          " and by rank ", rank, ", and padding is ",
                          PaddingOf(drawn.c), " indices",
                          CauseOfSharing(EpochOf(drawn, epoch)));
    }
  }
  return std::nullopt;
}

bool IsPermutation(std::vector<int64_t> order, int64_t n) {
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return std::ssize(order) == n;
}

// How many indices come at least; given the lengths, exactly so many, but where
// padding is shuffled too and drop_last drops some.
int64_t FewestIndices(const SamplingCase& c) {
  if (!c.drop_last) {
    return c.drop_tail ? c.dataset_size / c.world_size * c.world_size
                       : c.dataset_size;
  }
  const int64_t drawn = StepsOf(c) * c.batch_size * c.world_size;
  // Where padding is shuffled too, any of it may come before what is dropped.
  return c.semantics == Semantics::kPaddle && c.shuffle != Shuffle::kNone
             ? drawn - PaddingOf(c)
             : std::min(drawn, c.dataset_size);
}

std::optional<std::string> Uncovered(const Drawn& drawn, size_t epoch) {
  for (const Batches& batches : drawn.ranks[epoch]) {
    for (const int64_t index : Flat(batches)) {
      if (index < 0 || index >= drawn.c.dataset_size) {
        return absl::StrCat("index ", index, " does not exist",
                            CauseOfIndex(EpochOf(drawn, epoch)));
      }
    }
  }
  const std::vector<int64_t> counts = CountsOf(EpochOf(drawn, epoch));
  const auto absent = std::find(counts.begin(), counts.end(), 0);
  const int64_t covered =
      std::ssize(counts) - std::count(counts.begin(), counts.end(), 0);
  if (covered >= FewestIndices(drawn.c)) {
    return IsPermutation(drawn.one_rank[epoch], drawn.c.dataset_size)
               ? std::nullopt
               : std::optional<std::string>("one rank draws no permutation");
  }
  return absl::StrCat("only ", covered, " indices are drawn, of ",
                      FewestIndices(drawn.c), "; not ", absent - counts.begin(),
                      CauseOfAbsence(EpochOf(drawn, epoch)));
}

// Which indices may come again: kPaddle pads the data set, the others its
// shuffled order.
std::vector<int64_t> PaddingCounts(const Drawn& drawn, size_t epoch) {
  std::vector<int64_t> order = drawn.one_rank[epoch];
  if (drawn.c.semantics == Semantics::kPaddle) {
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int64_t> counts(order.size(), 0);
  for (size_t i = 0; i < static_cast<size_t>(PaddingOf(drawn.c)); ++i) {
    ++counts[static_cast<size_t>(order[i % order.size()])];
  }
  return counts;
}

std::optional<std::string> WrongPadding(const Drawn& drawn, size_t epoch) {
  const std::vector<int64_t> counts = CountsOf(EpochOf(drawn, epoch));
  const std::vector<int64_t> again = PaddingCounts(drawn, epoch);
  for (size_t index = 0; index < counts.size(); ++index) {
    if (counts[index] <= 1 + again[index]) continue;
    return absl::StrCat("index ", index, " comes ", counts[index],
                        " times, and padding repeats it ", again[index],
                        " times", CauseOfPadding(EpochOf(drawn, epoch)));
  }
  return std::nullopt;
}

std::optional<std::string> WrongDeal(const Drawn& drawn, size_t epoch) {
  const SamplingCase& c = drawn.c;
  // kPaddle shuffles the padding too, so another number of ranks has another
  // order.
  if (c.semantics == Semantics::kPaddle && c.shuffle != Shuffle::kNone &&
      PaddingOf(c) > 0) {
    return std::nullopt;
  }
  const auto difference = FirstDifference(
      drawn.ranks[epoch], Cut(c, Deal(c, PadOrCut(c, drawn.one_rank[epoch]))));
  if (!difference.has_value()) return std::nullopt;
  return absl::StrCat(*difference, " as dealt from one rank's order",
                      CauseOfDeal(EpochOf(drawn, epoch)));
}

std::optional<std::string> SameEpochs(const Drawn& drawn, size_t epoch) {
  const bool must_differ =
      drawn.c.shuffle != Shuffle::kNone && drawn.c.dataset_size >= kManySamples;
  for (size_t earlier = 0; earlier < epoch; ++earlier) {
    const bool same = drawn.one_rank[epoch] == drawn.one_rank[earlier];
    if (must_differ && same) {
      return absl::StrCat("it has the order of epoch ", earlier,
                          std::is_sorted(drawn.one_rank[epoch].begin(),
                                         drawn.one_rank[epoch].end())
                              ? "; both are in order: not shuffled"
                              : "; both are shuffled: by the same seed");
    }
    if (drawn.c.shuffle == Shuffle::kNone && !same) {
      return absl::StrCat("it is unshuffled, and not as epoch ", earlier);
    }
  }
  return std::nullopt;
}

std::optional<std::string> SameSeeds(const Drawn& drawn, size_t epoch) {
  if (drawn.c.shuffle == Shuffle::kNone ||
      drawn.c.semantics == Semantics::kPaddle ||
      drawn.c.dataset_size < kManySamples) {
    return std::nullopt;
  }
  SamplingCase other = OneRank(drawn.c);
  other.seed += 1000;
  const auto ranks = DrawRanks(drawn.make, other, static_cast<int64_t>(epoch));
  if (!ranks.ok()) return ranks.status().ToString();
  if (Flat((*ranks)[0]) != drawn.one_rank[epoch]) return std::nullopt;
  return absl::StrCat("seed ", other.seed, " has the order of seed ",
                      drawn.c.seed);
}

std::optional<std::string> WrongOrder(const Drawn& drawn, size_t epoch) {
  const SamplingCase& c = drawn.c;
  if (c.shuffle == Shuffle::kKeyed) return std::nullopt;
  const auto of_epoch = [&c](int64_t which) {
    return Cut(c, Deal(c, PadOrCut(c, ReferenceOrder(c, which))));
  };
  const auto number = static_cast<int64_t>(epoch);
  std::optional<std::string> wrong =
      FirstDifference(drawn.ranks[epoch], of_epoch(number));
  if (!wrong.has_value()) return wrong;
  if (c.shuffle == Shuffle::kNone) return *wrong + ", not in order";
  for (int64_t other = std::max<int64_t>(0, number - 1); other <= number + 1;
       ++other) {
    if (other == number || drawn.ranks[epoch] != of_epoch(other)) continue;
    return absl::StrCat(*wrong, ", as if it were epoch ", other);
  }
  const bool last_stays =
      c.dataset_size >= kManySamples &&
      std::all_of(drawn.one_rank.begin(), drawn.one_rank.end(),
                  [&c](const std::vector<int64_t>& order) {
                    return order.back() == c.dataset_size - 1;
                  });
  return absl::StrCat(
      *wrong, ", shuffled otherwise than ",
      c.semantics == Semantics::kPaddle ? "Paddle" : "PyTorch", " does",
      last_stays ? "; the last sample stays in its place in every epoch"
                 : CauseOfOrder(EpochOf(drawn, epoch)));
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

// That num_batches() says, before and after it, how long an epoch is.
absl::Status CheckNumBatches(const Drawn& drawn) {
  const SamplingCase& c = drawn.c;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, drawn.make(c, 0));
  const int64_t before = sampler->num_batches();
  LOCKSTEP_ASSIGN_OR_RETURN(const Batches batches, DrawEpoch(*sampler));
  for (const int64_t said : {before, sampler->num_batches()}) {
    if (said == std::ssize(batches)) continue;
    return Breaks("Batches", c,
                  absl::StrCat("num_batches() says ", said, ", there are ",
                               batches.size(),
                               said == std::ssize(batches) - 1
                                   ? ": it leaves the last one out"
                                   : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckAll(const Drawn& drawn) {
  for (const auto& [name, wrong] : kProperties) {
    for (size_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::optional<std::string> how = wrong(drawn, epoch);
      if (how.has_value()) {
        return Breaks(name, drawn.c, absl::StrCat("epoch ", epoch, ": ", *how));
      }
    }
    if (wrong == WrongBatches) {
      LOCKSTEP_RETURN_IF_ERROR(CheckNumBatches(drawn));
    }
  }
  return CheckRepeatedDraw(drawn.make, drawn.c, drawn.ranks);
}

}  // namespace

absl::Status CheckEpochs(const SamplerFactory& make, const SamplingCase& c) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGuards(make, c));
  if (StepsOf(c) == 0) return absl::OkStatus();
  Drawn drawn = {make, c, {}, {}};
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto ranks, DrawRanks(make, c, epoch));
    drawn.ranks.push_back(std::move(ranks));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto one,
                              DrawRanks(make, OneRank(c), epoch));
    drawn.one_rank.push_back(Flat(one[0]));
  }
  return CheckAll(drawn);
}

}  // namespace lockstep
