// Compares what N ranks have with what one rank has: which tensors differ, and
// whether a factor explains it.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/check/judge/tolerance.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

// A tensor that is off by more than is allowed, or that cannot be judged.
struct Difference {
  std::string name;
  size_t element = 0;  // The one furthest off.
  double want = 0, got = 0;
  double error = 0;
  Allowed allowed;
};

struct Compared {
  std::vector<Difference> differing;  // In the order of the forward pass.
  double error_over_allowed = 0;      // The largest; NaN if any error is.
};

// Compares the tensors of `want`. One that `got` lacks counts as zeros; for one
// that `allowed` lacks, no error is allowed.
Compared Compare(const CheckCase& check, const Tensors& want,
                 const Tensors& got, const AllowedErrors& allowed);

// Whether every tensor in `names` is the same in `got` as in `candidate`,
// within the allowed error times max(1, slack). False if a tolerance is too
// large to judge by, which anything would fit.
bool Fits(const std::vector<std::string>& names, const Tensors& candidate,
          const Tensors& got, const AllowedErrors& allowed, double slack = 1);

std::vector<std::string> NamesOf(const Compared& compared);

// The first difference whose tolerance is too large to judge by; else null.
const Difference* FirstNotJudged(const Compared& compared);

// "W2 (the second convolution) is off by 1.2e-3 at element 17 (0.25, one rank
// has 0.2512; 0.5% relative, 4711 units in the last place; 1e-7 is allowed)".
// `reference` stands in place of "one rank".
std::string Describe(const CheckCase& check, const Difference& difference,
                     const std::string& reference = "one rank");

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

// Factors of a step in which the ranks' `counts` of samples are not a `full`
// batch: a sum that is divided by the size of a full batch, of all ranks or of
// one, and a mean over all ranks though some have no sample. None if the batch
// is full.
std::vector<NamedFactor> BatchFactors(const std::vector<double>& counts,
                                      double full);

struct FoundFactor {
  double k = 1;
  Cause cause = Cause::kUnknown;
  std::vector<std::string> names;  // That have it.
};

// The factor that makes `got` of `want`, within the allowed errors: a named one
// or, if `any`, the fitted one, as kScaled. Tried over all of `names` together;
// then with a factor for each tensor, of which the first is returned, with the
// tensors that have it.
std::optional<FoundFactor> FactorOf(const std::vector<std::string>& names,
                                    const Tensors& want, const Tensors& got,
                                    const AllowedErrors& allowed,
                                    const std::vector<NamedFactor>& named,
                                    bool any);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
