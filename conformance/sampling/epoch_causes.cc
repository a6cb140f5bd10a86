// Tries causes until one explains the drawn indices.
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
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {
namespace {

// The largest number of indices that a message writes out.
constexpr size_t kWrittenOut = 6;

bool AllIndicesExist(const DrawnEpoch& drawn) {
  for (const Batches& batches : drawn.ranks) {
    for (const int64_t index : Flat(batches)) {
      if (index < 0 || index >= drawn.c.dataset_size) return false;
    }
  }
  return true;
}

// Returns, for example, "; index 7 is drawn by no rank", if every index must be
// drawn.
std::string DescribeUndrawn(const DrawnEpoch& drawn) {
  if (drawn.c.drop_last || drawn.c.drop_tail || !AllIndicesExist(drawn))
    return "";
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

// Whether `rank` draws its part of the whole turns and the entire tail, and the
// other ranks draw only their parts of the whole turns.
bool HasTheTail(const DrawnEpoch& drawn, size_t rank) {
  const SamplingCase& c = drawn.c;
  // If the padding is shuffled too, one rank's order does not tell the group's
  // order.
  const std::vector<int64_t> order = c.semantics == Semantics::kPaddle
                                         ? ReferenceOrder(c, drawn.epoch)
                                         : PadOrCut(c, drawn.one_rank);
  const int64_t turn = c.semantics == Semantics::kPaddle ? c.batch_size : 1;
  const int64_t whole = LengthOf(c, c.world_size - 1) / turn * turn;
  int64_t size = 0;
  for (int of = 0; of < c.world_size; ++of) size += LengthOf(c, of);
  // A single rank may lack samples too, and the case may have no tail.
  if (std::ssize(order) != size || size == whole * c.world_size) return false;
  Lists lists = Deal(c, order);
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i].resize(static_cast<size_t>(whole));
    if (i == rank) {
      lists[i].insert(lists[i].end(), order.begin() + whole * c.world_size,
                      order.end());
    }
    if (Flat(drawn.ranks[i]) != lists[i]) return false;
  }
  return true;
}

// Returns each rank's samples as if `order` were dealt.
std::vector<Batches> DealtAs(const DrawnEpoch& drawn,
                             const std::vector<int64_t>& order) {
  return Cut(drawn.c, Deal(drawn.c, PadOrCut(drawn.c, order)));
}

// Whether every index comes once, and those in `again` once more.
bool RepeatsOnly(const DrawnEpoch& drawn, std::span<const int64_t> again) {
  std::vector<int64_t> counts(static_cast<size_t>(drawn.c.dataset_size), 1);
  for (const int64_t index : again) ++counts[static_cast<size_t>(index)];
  return counts == CountsOf(drawn);
}

// Returns the cause of wrong lengths if the world size does not divide the data
// set.
std::string CauseOfTail(const DrawnEpoch& drawn) {
  const SamplingCase& c = drawn.c;
  // A single rank may lack samples too. Its order then does not tell what must
  // be dealt.
  if (std::ssize(drawn.one_rank) != c.dataset_size) return "";
  const auto is_dealt_as = [&drawn](const SamplingCase& other) {
    return drawn.ranks ==
           Cut(other, Deal(other, PadOrCut(other, drawn.one_rank)));
  };
  SamplingCase other = c;
  other.drop_tail = !c.drop_tail;
  if (PaddingOf(c) > 0 && is_dealt_as(other)) {
    return "; the tail is dropped, not padded" + DescribeUndrawn(drawn);
  }
  if (c.drop_tail && is_dealt_as(other)) {
    return "; the tail is padded, not dropped";
  }
  other = c;
  other.semantics = Semantics::kTorch;
  if (c.semantics == Semantics::kExact && is_dealt_as(other)) {
    return "; the ranks are padded to be even, so that indices come twice";
  }
  // With kPaddle, Deal accepts only orders that the world size divides.
  if (c.semantics != Semantics::kTorch || PaddingOf(c) <= c.dataset_size) {
    return "";
  }
  std::vector<int64_t> once = drawn.one_rank;
  once.insert(once.end(), drawn.one_rank.begin(), drawn.one_rank.end());
  return drawn.ranks == Cut(c, Deal(c, once))
             ? "; padding goes through the data set once and ends, not round it"
             : "";
}

// Returns, for example, "; rank 1 draws 0 in place of its own 1, and all else
// is right".
std::string DescribeSingleReplacement(const DrawnEpoch& drawn) {
  const std::vector<Batches> want = DealtAs(drawn, drawn.one_rank);
  std::string found;
  for (size_t rank = 0; rank < want.size(); ++rank) {
    if (drawn.ranks[rank].size() != want[rank].size()) return "";
    for (size_t step = 0; step < want[rank].size(); ++step) {
      const std::vector<int64_t>& got = drawn.ranks[rank][step];
      const std::vector<int64_t>& due = want[rank][step];
      if (got.size() != due.size()) return "";
      for (size_t i = 0; i < due.size(); ++i) {
        if (got[i] == due[i]) continue;
        if (!found.empty()) return "";
        found = absl::StrCat("; rank ", rank, " draws ", got[i],
                             " in place of its own ", due[i],
                             ", and all else is right");
      }
    }
  }
  return found;
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
  if (drawn.c.dataset_size % drawn.c.world_size != 0) {
    const std::string cause = CauseOfTail(drawn);
    if (!cause.empty()) return cause;
  }
  for (size_t rank = 0; rank < drawn.ranks.size(); ++rank) {
    if (!HasTheTail(drawn, rank)) continue;
    return absl::StrCat("; rank ", rank, " draws ",
                        Flat(drawn.ranks[rank]).size(),
                        ", with what the others lack: the tail is not split");
  }
  const std::string undrawn = DescribeUndrawn(drawn);
  return undrawn.empty() ? "" : "; lost: " + undrawn.substr(2);
}

std::string CauseOfSharing(const DrawnEpoch& drawn) {
  if (std::ranges::count(drawn.ranks, drawn.ranks[0]) ==
      std::ssize(drawn.ranks)) {
    return "; all ranks draw the same";
  }
  const std::string one_wrong = DescribeSingleReplacement(drawn);
  if (!one_wrong.empty()) return one_wrong;
  SamplingCase one = OneRank(drawn.c);
  for (size_t rank = 0; rank < drawn.ranks.size(); ++rank, ++one.seed) {
    const auto order = DrawRanks(drawn.make, one, drawn.epoch);
    if (!order.ok() ||
        drawn.ranks[rank] != DealtAs(drawn, Flat((*order)[0]))[rank]) {
      return "";
    }
  }
  return "; each rank shuffles by a seed of its own, its number more";
}

std::string CauseOfIndex(const DrawnEpoch& drawn) {
  std::vector<int64_t> sorted = drawn.one_rank;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> from_one(static_cast<size_t>(drawn.c.dataset_size));
  std::iota(from_one.begin(), from_one.end(), 1);
  if (sorted != from_one) return "";
  std::vector<int64_t> all;
  for (const Batches& batches : drawn.ranks) {
    const std::vector<int64_t> own = Flat(batches);
    all.insert(all.end(), own.begin(), own.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all == from_one ? "; they go from 1 to n, not from 0 to n - 1" : "";
}

std::string CauseOfAbsence(const DrawnEpoch& drawn) {
  const std::vector<int64_t> counts = CountsOf(drawn);
  const auto again = std::ranges::max_element(counts);
  if (*again < 2) return "";
  const bool in_its_place = std::ranges::count(counts, 0) == 1 &&
                            std::ranges::count(counts, 2) == 1 && *again == 2;
  return absl::StrCat(", but ", again - counts.begin(), " comes ", *again,
                      " times", in_its_place ? " in its place" : "");
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

std::string CauseOfOrder(const DrawnEpoch& drawn) {
  if (drawn.c.semantics == Semantics::kPaddle ||
      drawn.c.dataset_size < kManySamples) {
    return "";
  }
  SamplingCase keyed = OneRank(drawn.c);
  keyed.shuffle = Shuffle::kKeyed;
  // No reference defines the keyed shuffle, so its own code is used.
  const auto order = DrawRanks(MakeTestedSampler, keyed, drawn.epoch);
  return order.ok() && Flat((*order)[0]) == drawn.one_rank
             ? "; it is the keyed shuffle"
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

}  // namespace lockstep::conformance
