// Which factor lies between what N ranks have and what one rank has.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/judge/numbers.h"
#include "conformance/check/judge/tolerance.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

// The k that minimises |got - k * want|^2 over the tensors in `names`; 0 if
// `want` is zero there.
double FittedFactor(const std::vector<std::string>& names, const Tensors& want,
                    const Tensors& got);

// A factor with a name: N, 1/N, A, 1/A, and what both make.
struct NamedFactor {
  double k;
  Cause cause;
};

// In the order in which they are tried. N = 1 or A = 1 have none.
std::vector<NamedFactor> NamedFactors(int world_size, int64_t accumulate);

// Those of a step in which the ranks have `counts` samples and not the `full`
// batch; none if they have it: a sum that is divided by a full batch's size,
// all ranks' or a rank's, and a mean over all ranks though some have no sample.
std::vector<NamedFactor> BatchFactors(const std::vector<double>& counts,
                                      double full);

struct FoundFactor {
  double k = 1;
  Cause cause = Cause::kUnknown;
  std::vector<std::string> names;  // That have it.
};

// The factor with which `got` is `want`, within the allowed errors: a named one
// or, if `any`, the fitted one, as kScaled; over all of `names` together, then
// with a factor for each tensor, of which the first is given and who has it.
std::optional<FoundFactor> FactorOf(const std::vector<std::string>& names,
                                    const Tensors& want, const Tensors& got,
                                    const AllowedErrors& allowed,
                                    const std::vector<NamedFactor>& named,
                                    bool any);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
