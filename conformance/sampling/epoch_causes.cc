// Tries mistakes until one gives what was drawn.
#include "conformance/sampling/epoch_causes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {
namespace {

// So many indices are written out.
constexpr size_t kWrittenOut = 6;

std::vector<int64_t> LengthsOf(const DrawnEpoch& drawn) {
  std::vector<int64_t> lengths;
  for (const Batches& batches : drawn.ranks) {
    lengths.push_back(std::ssize(Flat(batches)));
  }
  return lengths;
}

bool Exist(const DrawnEpoch& drawn) {
  for (const Batches& batches : drawn.ranks) {
    for (const int64_t index : Flat(batches)) {
      if (index < 0 || index >= drawn.c.dataset_size) return false;
    }
  }
  return true;
}

// "; index 7 is drawn by no rank", where all should be drawn.
std::string Undrawn(const DrawnEpoch& drawn) {
  if (drawn.c.drop_last || drawn.c.drop_tail || !Exist(drawn)) return "";
  std::vector<int64_t> undrawn;
  const std::vector<int64_t> counts = CountsOf(drawn);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) undrawn.push_back(static_cast<int64_t>(i));
  }
  if (undrawn.empty()) return "";
  return absl::StrCat("; ", Indices(undrawn),
                      undrawn.size() == 1 ? " is" : " are",
                      " drawn by no rank");
}

// Whether one rank alone draws more than it should, and so many as the others
// lack.
bool OneHasTheOthers(const DrawnEpoch& drawn,
                     const std::vector<int64_t>& lengths) {
  int64_t balance = 0;
  int more = 0;
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    const int64_t off =
        lengths[rank] - LengthOf(drawn.c, static_cast<int>(rank));
    balance += off;
    more += off > 0 ? 1 : 0;
  }
  return balance == 0 && more == 1;
}

// What each rank's samples would be, were the order what `order` says.
std::vector<Batches> DealtAs(const DrawnEpoch& drawn,
                             const std::vector<int64_t>& order) {
  return Cut(drawn.c, Deal(drawn.c, PadOrCut(drawn.c, order)));
}

// Whether every index comes once, and those once more.
bool RepeatsOnly(const DrawnEpoch& drawn, std::span<const int64_t> again) {
  std::vector<int64_t> counts(static_cast<size_t>(drawn.c.dataset_size), 1);
  for (const int64_t index : again) ++counts[static_cast<size_t>(index)];
  return counts == CountsOf(drawn);
}

// Of lengths where the data set does not go round the ranks.
std::string CauseOfTail(const DrawnEpoch& drawn,
                        const std::vector<int64_t>& lengths) {
  const SamplingCase& c = drawn.c;
  const auto all_are = [&lengths](int64_t length) {
    return std::count(lengths.begin(), lengths.end(), length) ==
           std::ssize(lengths);
  };
  const int64_t whole = c.dataset_size / c.world_size;
  if (all_are(whole) && PaddingOf(c) > 0) {
    return "; the tail is dropped, not padded" + Undrawn(drawn);
  }
  if (all_are(whole + 1) && c.drop_tail) {
    return "; the tail is padded, not dropped";
  }
  if (all_are(whole + 1) && c.semantics == Semantics::kExact) {
    return "; the ranks are padded to be even, so that indices come twice";
  }
  const int64_t once = std::min<int64_t>(2 * c.dataset_size, c.world_size);
  if (PaddingOf(c) > c.dataset_size &&
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == once) {
    return "; padding goes through the data set once and ends, not round it";
  }
  return "";
}

}  // namespace

std::vector<int64_t> Flat(const Batches& batches) {
  std::vector<int64_t> all;
  for (const auto& batch : batches) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

std::string Indices(const std::vector<int64_t>& indices) {
  if (indices.size() == 1) return absl::StrCat("index ", indices[0]);
  if (indices.size() <= kWrittenOut) {
    return absl::StrCat("indices ", absl::StrJoin(indices, ", "));
  }
  return absl::StrCat(indices.size(), " indices, the first ", indices[0], ",");
}

std::vector<int64_t> CountsOf(const DrawnEpoch& drawn) {
  std::vector<int64_t> counts(static_cast<size_t>(drawn.c.dataset_size), 0);
  for (const Batches& batches : drawn.ranks) {
    for (const int64_t index : Flat(batches)) {
      ++counts[static_cast<size_t>(index)];
    }
  }
  return counts;
}

std::string CauseOfLengths(const DrawnEpoch& drawn) {
  if (drawn.c.drop_last) return "";
  const std::vector<int64_t> lengths = LengthsOf(drawn);
  if (drawn.c.dataset_size % drawn.c.world_size != 0) {
    const std::string cause = CauseOfTail(drawn, lengths);
    if (!cause.empty()) return cause;
  }
  if (OneHasTheOthers(drawn, lengths)) {
    const auto most = std::max_element(lengths.begin(), lengths.end());
    return absl::StrCat("; rank ", most - lengths.begin(), " draws ", *most,
                        ", with what the others lack: the tail is not split");
  }
  return Undrawn(drawn);
}

std::string CauseOfSharing(const DrawnEpoch& drawn) {
  const bool is_same =
      std::all_of(drawn.ranks.begin(), drawn.ranks.end(),
                  [&](const Batches& own) { return own == drawn.ranks[0]; });
  if (is_same) return "; all ranks draw the same";
  SamplingCase one = drawn.c;
  one.world_size = 1;
  one.drop_last = false;
  for (size_t rank = 1; rank < drawn.ranks.size(); ++rank) {
    ++one.seed;
    const auto order = DrawRanks(drawn.make, one, drawn.epoch);
    if (!order.ok() ||
        drawn.ranks[rank] != DealtAs(drawn, Flat((*order)[0]))[rank]) {
      return "";
    }
  }
  return "; each rank shuffles by a seed of its own, its number more";
}

std::string CauseOfPadding(const DrawnEpoch& drawn) {
  const auto padding = static_cast<size_t>(PaddingOf(drawn.c));
  const std::span<const int64_t> order(drawn.one_rank);
  if (padding > order.size()) return "";
  std::vector<int64_t> first(padding);
  std::iota(first.begin(), first.end(), 0);
  if (RepeatsOnly(drawn, order.last(padding))) {
    return "; padding is the end of the order, not its start";
  }
  if (drawn.c.semantics == Semantics::kPaddle) {
    return RepeatsOnly(drawn, order.first(padding))
               ? "; padding is the start of the order: shuffled, then padded"
               : "";
  }
  return RepeatsOnly(drawn, first)
             ? "; padding is the start of the data set: padded, then shuffled"
             : "";
}

std::string CauseOfDeal(const DrawnEpoch& drawn) {
  std::vector<Batches> reversed = DealtAs(drawn, drawn.one_rank);
  std::reverse(reversed.begin(), reversed.end());
  if (drawn.ranks == reversed) {
    return "; the last rank has what the first should, and so on";
  }
  const std::vector<int64_t> order = PadOrCut(drawn.c, drawn.one_rank);
  std::vector<int64_t> in_turn;
  bool one_by_one = true;
  for (size_t rank = 0; rank < drawn.ranks.size(); ++rank) {
    const std::vector<int64_t> own = Flat(drawn.ranks[rank]);
    in_turn.insert(in_turn.end(), own.begin(), own.end());
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t at = i * drawn.ranks.size() + rank;
      one_by_one = one_by_one && at < order.size() && own[i] == order[at];
    }
  }
  if (in_turn == order) return "; each rank has a contiguous part of the order";
  return one_by_one ? "; samples are dealt one by one, not by the batch" : "";
}

}  // namespace lockstep
