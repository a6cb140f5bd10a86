// Tries mistakes until one gives what was drawn.
#include "conformance/sampling/resume_causes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {
namespace {

// Whether `got` is `whole` from a step on.
bool IsFrom(const Batches& whole, size_t step, const Batches& got) {
  return step <= whole.size() &&
         std::equal(got.begin(), got.end(),
                    whole.begin() + static_cast<ptrdiff_t>(step), whole.end());
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

}  // namespace lockstep
