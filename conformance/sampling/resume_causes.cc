// Tries causes until one gives what was drawn.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/sampling/sampler_checker.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep {
namespace {

// Whether `got` is `whole` from a step on.
bool IsFrom(const Batches& whole, size_t step, const Batches& got) {
  return step <= whole.size() &&
         std::equal(got.begin(), got.end(),
                    whole.begin() + static_cast<ptrdiff_t>(step), whole.end());
}

// How the samples that were left, as a set, are wrongly dealt.
std::optional<std::string> WrongSamples(const SamplingCase& c,
                                        const std::vector<int64_t>& left,
                                        const std::vector<Batches>& got) {
  std::vector<int64_t> counts(static_cast<size_t>(c.dataset_size), -1);
  for (const int64_t index : left) counts[static_cast<size_t>(index)] = 0;
  int64_t drawn = 0;
  for (const Batches& batches : got) {
    for (const auto& batch : batches) {
      for (const int64_t index : batch) {
        if (index < 0 || index >= c.dataset_size) {
          return absl::StrCat("index ", index, " does not exist");
        }
        if (counts[static_cast<size_t>(index)]++ < 0) {
          return absl::StrCat("index ", index,
                              " was visited and is drawn again");
        }
        ++drawn;
      }
    }
  }
  const auto absent = std::find(counts.begin(), counts.end(), 0);
  const int64_t lost = std::count(counts.begin(), counts.end(), 0);
  const int64_t may_drop = c.drop_last   ? c.world_size * c.batch_size - 1
                           : c.drop_tail ? c.world_size - 1
                                         : 0;
  if (lost > may_drop) {
    return absl::StrCat("index ", absent - counts.begin(), " is lost, one of ",
                        lost);
  }
  const int64_t twice = drawn - (std::ssize(left) - lost);
  const bool pads = c.semantics != Semantics::kExact && !c.drop_tail;
  const int64_t most = pads ? c.world_size - 1 : 0;
  if (twice <= most) return std::nullopt;
  return absl::StrCat(twice, " indices are drawn twice, padding is at most ",
                      most);
}

std::string CauseOf(const TakeOver& of) {
  const EpochPlace last = of.start.TakenOverBy(of.last).After(of.steps);
  if (of.got == last.TakenOverBy(of.next).Rest()) {
    return "; as if only what the last ranks visited had been";
  }
  const EpochPlace anew = of.start.TakenOverBy(of.next);
  if (of.got == anew.Rest()) return "; as if the epoch began anew";
  if (of.last.batch_size == of.next.batch_size &&
      of.got == anew.After(of.steps).Rest()) {
    return absl::StrCat("; as if each of ", of.next.world_size,
                        " ranks had visited as many as each of ",
                        of.last.world_size);
  }
  return "";
}

}  // namespace

std::string CauseOfResume(const WrongResume& wrong) {
  const size_t step = wrong.step;
  if (step > 0 && IsFrom(wrong.whole, step - 1, wrong.got)) {
    return ", as if a batch came again";
  }
  if (IsFrom(wrong.whole, step + 1, wrong.got)) {
    return ", as if a batch were skipped";
  }
  for (const int64_t epoch : {wrong.epoch - 1, wrong.epoch + 1}) {
    if (epoch < 0) continue;
    const auto other = DrawRanks(wrong.make, wrong.c, epoch);
    if (other.ok() &&
        IsFrom((*other)[static_cast<size_t>(wrong.rank)], step, wrong.got)) {
      return absl::StrCat(", as if it were epoch ", epoch);
    }
  }
  return "";
}

std::string CauseOfNextEpoch(const WrongResume& wrong) {
  if (wrong.step > 0 && IsFrom(wrong.whole, wrong.step, wrong.got)) {
    return absl::StrCat(", as if it began at step ", wrong.step,
                        ", where the one before was stopped");
  }
  const auto before = DrawRanks(wrong.make, wrong.c, wrong.epoch - 1);
  if (before.ok() && wrong.got == (*before)[static_cast<size_t>(wrong.rank)]) {
    return absl::StrCat(", as if it were still epoch ", wrong.epoch - 1);
  }
  return "";
}

std::optional<std::string> WrongTakeOver(const TakeOver& take_over) {
  const auto& [start, last, steps, stopped, next, got] = take_over;
  std::optional<std::string> wrong;
  if (!stopped.IsContinuedBy(next)) {
    wrong = WrongSamples(next, stopped.Unvisited(), got);
  }
  if (!wrong.has_value()) {
    wrong = FirstDifference(got, stopped.TakenOverBy(next).Rest());
    if (wrong.has_value() && !stopped.IsContinuedBy(next)) {
      *wrong += ": those that were left, in another order than they had";
    }
  }
  if (wrong.has_value()) *wrong += CauseOf(take_over);
  return wrong;
}

}  // namespace lockstep
