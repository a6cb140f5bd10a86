// Judges which samples were drawn.
#include "conformance/check/judge/sample_claim.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

using Indices = std::vector<int64_t>;

// One rank's samples in an epoch, step by step.
using RankDraws = std::vector<Indices>;
// The samples of all ranks in an epoch, by rank.
using EpochDraws = std::vector<RankDraws>;

Indices Flat(const RankDraws& draws) {
  Indices all;
  for (const Indices& step : draws) {
    all.insert(all.end(), step.begin(), step.end());
  }
  return all;
}

Indices Sorted(Indices indices) {
  std::ranges::sort(indices);
  return indices;
}

EpochDraws DrawsOf(const TrainerRun& run, int64_t epoch) {
  EpochDraws draws;
  for (const TrainerRun::Rank& rank : run.ranks) {
    draws.emplace_back();
    for (const StepOutput& step : rank.output.steps) {
      if (step.epoch == epoch) draws.back().push_back(step.indices);
    }
  }
  return draws;
}

size_t StepCount(const EpochDraws& draws) {
  size_t most = 0;
  for (const RankDraws& rank : draws) most = std::max(most, rank.size());
  return most;
}

// Returns the samples of all ranks in a step, sorted.
Indices SortedDrawsOfStep(const EpochDraws& draws, size_t step) {
  Indices all;
  for (const RankDraws& rank : draws) {
    if (step >= rank.size()) continue;
    all.insert(all.end(), rank[step].begin(), rank[step].end());
  }
  return Sorted(std::move(all));
}

// The samples that an epoch does not draw exactly once.
struct Miscount {
  Indices missing;
  Indices repeated;
  bool any() const { return !missing.empty() || !repeated.empty(); }
};

Miscount MiscountOf(const EpochDraws& draws, int64_t size) {
  std::vector<int64_t> counts(size);
  for (const RankDraws& rank : draws) {
    for (const int64_t index : Flat(rank)) ++counts[index];
  }
  Miscount miscount;
  for (int64_t i = 0; i < size; ++i) {
    if (counts[i] == 0) miscount.missing.push_back(i);
    if (counts[i] > 1) miscount.repeated.push_back(i);
  }
  return miscount;
}

std::string FirstOf(const Indices& indices) {
  constexpr size_t kShown = 4;
  const std::span<const int64_t> shown(indices.data(),
                                       std::min(indices.size(), kShown));
  return absl::StrCat(absl::StrJoin(shown, ", "),
                      indices.size() > kShown ? ", ..." : "");
}

std::string Describe(const Miscount& miscount) {
  std::vector<std::string> parts;
  const auto add = [&parts](const Indices& indices, const char* how) {
    if (indices.empty()) return;
    parts.push_back(absl::StrCat(indices.size(), " of the samples (",
                                 FirstOf(indices), ") are drawn ", how));
  };
  add(miscount.repeated, "more than once");
  add(miscount.missing, "never");
  return absl::StrJoin(parts, " and ");
}

// Returns whether every rank draws the whole set, or every rank draws the
// beginning of one common sequence.
bool RanksDrawAlike(const EpochDraws& draws, int64_t size) {
  if (draws.size() < 2) return false;
  bool whole = true, prefix = true;
  Indices longest;
  for (const RankDraws& rank : draws) {
    Indices flat = Flat(rank);
    if (flat.size() > longest.size()) longest = std::move(flat);
  }
  for (const RankDraws& rank : draws) {
    const Indices flat = Flat(rank);
    prefix = prefix && !flat.empty() &&
             std::equal(flat.begin(), flat.end(), longest.begin());
    whole = whole && !MiscountOf({rank}, size).any();
  }
  return whole || prefix;
}

// Returns whether all repeats are in the last step: without that step, no
// sample repeats.
bool RepeatsOnlyAtEnd(EpochDraws draws, int64_t size) {
  const size_t steps = StepCount(draws);
  for (RankDraws& rank : draws) {
    if (rank.size() == steps) rank.pop_back();
  }
  return MiscountOf(draws, size).repeated.empty();
}

// Returns the first rank without samples in step `steps`, the last, if other
// ranks have some; -1 if there is none.
int RankWithoutLastStep(const EpochDraws& draws, size_t steps) {
  const auto has = [steps](const RankDraws& rank) {
    return rank.size() >= steps && !rank[steps - 1].empty();
  };
  const auto without = std::ranges::find_if_not(draws, has);
  if (without == draws.end() || std::ranges::none_of(draws, has)) return -1;
  return static_cast<int>(without - draws.begin());
}

// Returns whether only the end of the epoch is missing.
bool MissesOnlyEnd(const EpochDraws& draws, const EpochDraws& one) {
  const size_t steps = StepCount(one);
  for (size_t step = 0; step + 1 < steps; ++step) {
    if (SortedDrawsOfStep(draws, step) != SortedDrawsOfStep(one, step))
      return false;
  }
  return true;
}

Diagnosis DiagnoseMiscount(const Evidence& evidence, const EpochDraws& draws,
                           const EpochDraws& one, int64_t size) {
  const Miscount miscount = MiscountOf(draws, size);
  if (miscount.missing.empty()) {
    if (RanksDrawAlike(draws, size)) return {.cause = Cause::kRanksDrawTheSame};
    return {.cause = RepeatsOnlyAtEnd(draws, size) ? Cause::kPadded
                                                   : Cause::kUnknown};
  }
  if (miscount.repeated.empty()) {
    const int64_t batch = evidence.c.global_batch();
    const auto steps = static_cast<size_t>((size + batch - 1) / batch);
    if (draws.size() > 1 && !MissesOnlyEnd(draws, one)) {
      return {.cause = Cause::kUnknown};
    }
    const int without = RankWithoutLastStep(draws, steps);
    return without >= 0 ? Diagnosis{.cause = Cause::kRankSkipsLastBatch,
                                    .facts = {.rank = without}}
                        : Diagnosis{.cause = Cause::kDropsLastBatch};
  }
  if (RanksDrawAlike(draws, size)) return {.cause = Cause::kRanksDrawTheSame};
  const bool no_rank_repeats =
      std::ranges::all_of(draws, [size](const RankDraws& rank) {
        return MiscountOf({rank}, size).repeated.empty();
      });
  const bool apart = evidence.c.shuffle && no_rank_repeats;
  return {.cause = apart ? Cause::kRanksShuffleApart : Cause::kUnknown};
}

// Returns where a resumed run begins wrongly, if its first step draws the
// samples of another step of the same epoch: the epoch's first step, the one
// before the checkpoint, or the one after the next.
std::optional<Cause> CauseOfResume(const Evidence& evidence) {
  const CasePlan& plan = evidence.check.all_ranks;
  const auto at = static_cast<size_t>(plan.c.stop_after);
  const std::vector<StepOutput>& one = evidence.one_rank().steps;
  if (!plan.resumed.has_value() || at >= one.size()) return std::nullopt;
  size_t begin = at;
  while (begin > 0 && one[begin - 1].epoch == one[at].epoch) --begin;
  if (begin == at) return std::nullopt;  // An epoch begins there anyway.
  Indices drawn;
  for (int r = 0; r < evidence.world_size(); ++r) {
    const std::vector<StepOutput>& steps = evidence.rank(r).steps;
    if (at >= steps.size()) continue;
    drawn.insert(drawn.end(), steps[at].indices.begin(),
                 steps[at].indices.end());
  }
  const auto is = [&](size_t step) {
    return step < one.size() && one[step].epoch == one[at].epoch &&
           Sorted(drawn) == Sorted(one[step].indices);
  };
  if (is(begin)) return Cause::kResumesAtStart;
  if (is(at - 1)) return Cause::kResumeRepeatsBatch;
  if (is(at + 1)) return Cause::kResumeSkipsBatch;
  return std::nullopt;
}

std::optional<Judgement> MiscountVerdict(const Evidence& evidence,
                                         const TrainerRun& run, int64_t epoch) {
  const CheckCase& check = evidence.check;
  const int64_t size = SampleCount(check.files, "train");
  const EpochDraws draws = DrawsOf(run, epoch);
  const Miscount miscount = MiscountOf(draws, size);
  if (!miscount.any()) return std::nullopt;
  const EpochDraws one = DrawsOf(evidence.runs.one_rank, epoch);
  Diagnosis diagnosis = DiagnoseMiscount(evidence, draws, one, size);
  if (run.world_size > 1) {
    diagnosis.cause = CauseOfResume(evidence).value_or(diagnosis.cause);
  }
  return Failed(absl::StrCat(WithRanks(run.world_size), ", in epoch ", epoch,
                             ", ", Describe(miscount)),
                diagnosis);
}

// Finds two consecutive epochs in which a run draws the same samples, rank by
// rank and step by step.
std::optional<Judgement> SameOrderVerdict(const Evidence& evidence,
                                          const TrainerRun& run) {
  const Case& c = evidence.c;
  for (int64_t epoch = 1; c.shuffle && epoch < c.epochs; ++epoch) {
    if (DrawsOf(run, epoch) != DrawsOf(run, epoch - 1)) continue;
    return Failed(
        absl::StrCat(WithRanks(run.world_size), ", epoch ", epoch,
                     " draws the samples in the order of epoch ", epoch - 1),
        {.cause = Cause::kSameOrderEveryEpoch});
  }
  return std::nullopt;
}

std::optional<Judgement> StepVerdict(const Evidence& evidence, int64_t epoch) {
  const EpochDraws draws = DrawsOf(evidence.runs.all_ranks, epoch);
  const EpochDraws one = DrawsOf(evidence.runs.one_rank, epoch);
  const size_t steps = std::max(StepCount(draws), StepCount(one));
  for (size_t step = 0; step < steps; ++step) {
    const Indices got = SortedDrawsOfStep(draws, step),
                  want = SortedDrawsOfStep(one, step);
    if (got == want) continue;
    return Failed(absl::StrCat("In epoch ", epoch, ", step ", step + 1,
                               ", the ranks draw ", got.size(), " samples (",
                               FirstOf(got), ") and one rank ", want.size(),
                               " (", FirstOf(want), ")"),
                  {.cause = Cause::kOrderDependsOnWorldSize});
  }
  return std::nullopt;
}

// Checks that without shuffling one rank takes the samples in their order.
std::optional<Judgement> InOrderVerdict(const Evidence& evidence,
                                        int64_t epoch) {
  if (evidence.check.one_rank.c.shuffle) return std::nullopt;
  const EpochDraws one = DrawsOf(evidence.runs.one_rank, epoch);
  int64_t next = 0;
  for (size_t step = 0; step < StepCount(one); ++step) {
    for (const int64_t index : SortedDrawsOfStep(one, step)) {
      if (index == next++) continue;
      return Failed(
          absl::StrCat("With 1 rank, in epoch ", epoch, ", step ", step + 1,
                       ", sample ", index,
                       " is drawn where the data's order has ", next - 1),
          {.cause = Cause::kUnknown});
    }
  }
  return std::nullopt;
}

}  // namespace

Judgement JudgeSamples(Evidence& evidence) {
  const int64_t epochs = evidence.c.epochs;
  for (const TrainerRun* run :
       {&evidence.runs.one_rank, &evidence.runs.all_ranks}) {
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      if (const auto wrong = MiscountVerdict(evidence, *run, epoch)) {
        return *wrong;
      }
    }
    if (const auto wrong = SameOrderVerdict(evidence, *run)) return *wrong;
  }
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    if (const auto verdict = InOrderVerdict(evidence, epoch)) return *verdict;
    if (const auto verdict = StepVerdict(evidence, epoch)) return *verdict;
  }
  return Passed();
}

}  // namespace lockstep::conformance
