// What the checks of a step are made of.
#include "conformance/syncbn/step_checks.h"

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/step_view.h"

namespace lockstep {

std::string OnRank(int rank, const std::string& what) {
  return absl::StrCat("rank ", rank, ": ", what);
}

std::optional<size_t> Worst(const StepView& view, std::span<const double> got,
                            const Bounded& want) {
  std::optional<size_t> worst;
  double most = 1;
  BoundedError largest = *view.largest;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - want.value[i]);
    // Quotients compared without dividing.
    if (off * largest.bound > largest.error * want.bound[i]) {
      largest = {off, want.bound[i]};
    }
    if (off <= want.bound[i]) continue;
    const double times = ErrorOverAllowed(off, want.bound[i]);
    if (times < most) continue;
    worst = i;
    most = times;
  }
  *view.largest = largest;
  return worst;
}

std::string Describe(const std::string& where, double got, double want,
                     double bound) {
  return absl::StrCat(where, " is ", got, ", wanted ", want, ", off by ",
                      std::fabs(got - want), ", bound ", bound);
}

}  // namespace lockstep
