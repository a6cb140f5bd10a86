#include "conformance/training/sample_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/training/trace.h"

namespace lockstep::conformance {
namespace {

using Multiset = std::map<std::string, int64_t>;

// Counts each sample, with its pixels and label as the key.
void Count(const Samples& samples, Multiset& out) {
  if (samples.size() == 0) return;
  const size_t pixels = samples.images.size() / samples.labels.size();
  for (size_t i = 0; i < samples.labels.size(); ++i) {
    std::string key(
        reinterpret_cast<const char*>(samples.images.data() + i * pixels),
        pixels * sizeof(float));
    key.push_back(static_cast<char>(samples.labels[i]));
    ++out[key];
  }
}

Multiset SamplesOfStep(std::span<const RankTrace> ranks, size_t s) {
  Multiset out;
  for (const RankTrace& trace : ranks) Count(trace.samples[s], out);
  return out;
}

// Returns how many samples of `a` are not in `b`; compares only images if
// `images_only`.
int64_t Missing(const Multiset& a, const Multiset& b, bool images_only) {
  std::map<std::string, int64_t> balance;
  const auto add = [&](const Multiset& samples, int64_t sign) {
    for (const auto& [key, count] : samples) {
      balance[images_only ? key.substr(0, key.size() - 1) : key] +=
          sign * count;
    }
  };
  add(a, 1);
  add(b, -1);
  int64_t missing = 0;
  for (const auto& [key, count] : balance) {
    if (count > 0) missing += count;
  }
  return missing;
}

// Returns how many samples occur more than once, and more often than in
// `expected`.
int64_t Repeated(const Multiset& expected, const Multiset& got) {
  return std::count_if(got.begin(), got.end(), [&](const auto& sample) {
    const auto want = expected.find(sample.first);
    return sample.second > 1 &&
           (want == expected.end() || want->second < sample.second);
  });
}

// Returns whether all ranks see the same samples. With uneven shards, a rank's
// last samples may be missing.
bool EveryRankHasTheSame(std::span<const RankTrace> ranks, size_t s) {
  const Samples& first = ranks[0].samples[s];
  for (const RankTrace& trace : ranks) {
    const Samples& own = trace.samples[s];
    const size_t labels = std::min(own.labels.size(), first.labels.size());
    const size_t pixels = std::min(own.images.size(), first.images.size());
    if (labels == 0 ||
        !std::equal(own.labels.begin(), own.labels.begin() + labels,
                    first.labels.begin()) ||
        !std::equal(own.images.begin(), own.images.begin() + pixels,
                    first.images.begin())) {
      return false;
    }
  }
  return ranks.size() > 1;
}

// Returns how many samples of the step's epoch more than one rank sees.
int64_t Shared(const Expectation& want, std::span<const RankTrace> ranks,
               size_t s) {
  Multiset holders;  // The number of ranks that have each sample.
  for (const RankTrace& trace : ranks) {
    Multiset own;
    for (size_t other = 0; other < want.steps.size(); ++other) {
      if (want.steps[other].epoch == want.steps[s].epoch) {
        Count(trace.samples[other], own);
      }
    }
    for (const auto& [key, count] : own) ++holders[key];
  }
  return std::count_if(holders.begin(), holders.end(),
                       [](const auto& holder) { return holder.second > 1; });
}

std::string DescribeSamples(const Expectation& want,
                            std::span<const RankTrace> ranks, size_t s,
                            const Multiset& expected, const Multiset& got) {
  if (EveryRankHasTheSame(ranks, s)) {
    return "every rank has the samples of rank 0: the same shard on every rank";
  }
  for (size_t earlier = 0; earlier < s; ++earlier) {
    if (want.steps[earlier].step != want.steps[s].step) continue;
    if (SamplesOfStep(ranks, earlier) != got) continue;
    return absl::StrCat("the ranks see the samples of epoch ",
                        want.steps[earlier].epoch, " again: epoch not set?");
  }
  const auto step = static_cast<size_t>(want.steps[s].step);
  Multiset in_order;
  if (step < want.unshuffled.size()) Count(want.unshuffled[step], in_order);
  if (!got.empty() && in_order == got) {
    return "the ranks see the samples in the data set's order: not shuffled?";
  }
  if (Missing(expected, got, true) == 0 && Missing(got, expected, true) == 0) {
    return absl::StrCat(Missing(expected, got, false),
                        " samples have another label than one rank sees");
  }
  std::string text =
      absl::StrCat(Missing(expected, got, false),
                   " samples that one rank sees are missing, ",
                   Missing(got, expected, false), " are too many");
  const int64_t again = Repeated(expected, got);
  if (again > 0) absl::StrAppend(&text, "; ", again, " come more than once");
  // A sampler that pads shares fewer samples.
  const int64_t shared = Shared(want, ranks, s);
  if (shared >= static_cast<int64_t>(ranks.size())) {
    absl::StrAppend(&text, "; in this epoch ", shared,
                    " come to several ranks: shuffled apart?");
  }
  return text;
}

}  // namespace

absl::Status CheckSamples(const Expectation& want,
                          std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  for (size_t s = 0; s < want.steps.size(); ++s) {
    Multiset expected;
    Count(want.steps[s].samples, expected);
    const Multiset got = SamplesOfStep(ranks, s);
    if (expected == got) continue;
    return absl::DataLossError(
        absl::StrCat(StepName(want, s), ": ",
                     DescribeSamples(want, ranks, s, expected, got)));
  }
  return absl::OkStatus();
}

absl::Status CheckEpochsDiffer(const Expectation& want,
                               std::span<const RankTrace> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes(want, ranks));
  std::map<std::vector<Multiset>, int64_t> seen;  // Maps an epoch's steps to
                                                  // the epoch.
  std::vector<Multiset> epoch;
  for (size_t s = 0; s < want.steps.size(); ++s) {
    epoch.push_back(SamplesOfStep(ranks, s));
    const int64_t number = want.steps[s].epoch;
    if (s + 1 < want.steps.size() && want.steps[s + 1].epoch == number) {
      continue;
    }
    const auto [at, added] = seen.emplace(std::move(epoch), number);
    epoch.clear();
    if (added) continue;
    return absl::DataLossError(
        absl::StrCat("epoch ", number, " deals the samples to the steps as ",
                     "epoch ", at->second, " did: epoch not set?"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
