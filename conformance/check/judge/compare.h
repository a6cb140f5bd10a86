// Compares what N ranks have with what one rank has: how far they may be apart,
// which tensors differ, and whether a factor explains it.
//
// N ranks add up the same numbers in another order, so they round differently.
// By how much depends on the trainer's own kernels, which nobody outside knows,
// so the trainer is asked: one rank runs again with the samples of every step
// in another order (ReorderedStarts), which may change rounding and nothing
// else. The *spread* of a tensor is its largest difference between these runs
// and the first.
//
//   allowed(tensor) = max(8 * spread, 4 units in the last place for each rank)
//
// - The factor 8: the spread is the largest difference of many elements, so two
//   reordered runs nearly meet the worst that an order can do. But N ranks
//   round once more for each rank (a partial sum each, and the sum of those),
//   and differences add up over the steps of a case. A mutant is off by at
//   least a part in the world size: thousands of times as much.
// - The units in the last place of the tensor's largest value: reordered runs
//   may happen to round to the same bits (two samples of a sum commute, or a
//   kernel adds up in float64) where N parts and N partial sums do not, and the
//   parts may be a few times as large as their sum. For parameters and buffers
//   the units are those of the change since the start, which is what was
//   computed, and 4 units of the value itself.
// - bfloat16: 8 units of bfloat16 (of the change, for parameters, which stay in
//   float32). A rank divides its loss by another number of samples than one
//   rank does, so every gradient is rounded anew in every layer of the backward
//   pass, which no order of samples shows.
// - A scalar, such as a loss, is not the largest of many elements: its spread
//   is taken over all steps, and 16 units of float32 are allowed, in which
//   means are computed; and 8 of bfloat16 where the samples' losses have that
//   type.
// - A layer's gradient carries the rounding of all layers behind it, even where
//   its own reordered runs agree (a kernel that adds up in float64 hides the
//   order of samples, but not that N ranks round N times). So a tensor's spread
//   counts as no smaller, relative to its magnitude, than that of any tensor
//   behind it in the forward pass.
//
// A tolerance is not used if it is too large to find anything: above 1% of the
// tensor's magnitude (10% for bfloat16; of the change since the start, for
// parameters and buffers) the tensor cannot be judged, which is a failure that
// says so.
//
// But a tensor may itself be rounding, as the gradient of a bias in front of a
// batch norm is, which is mathematically 0. It counts as that if its spread is
// more than a tenth of its magnitude, or its change is below the units of its
// value. It is then held to the magnitude of the other tensors of its layer (of
// all tensors, if it is in no layer): 64 units of that magnitude and 64 times
// the spread are allowed, up to 10% of the magnitude. For what cancels over all
// samples does not cancel over a rank's, and it is the ranks' large parts that
// are rounded, which no order on one rank shows. In bfloat16 it is 8 units of
// bfloat16 and 8 times the spread.
//
// A change below a hundredth of its layer's may be such rounding, too, even if
// the reordered runs agree (a kernel hid the order), or it may be a number. It
// is rounding if 8 times the spread, or the units of its layer, are more than
// 0.4 of it. Else it is held to itself: it is allowed what rounding in its
// layer is, but at most 0.4 of the change, so that zero or the double is found.
// In bfloat16 a hundredth is within the units of the layer, and nothing is
// found: there, PyTorch's biases in front of a batch norm are 0.3% of their
// layer's gradient, reordered runs agree to 0.2% of them, and ranks differ by
// the whole of them.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"

namespace lockstep::conformance {

// Of one tensor.
struct Allowed {
  double error = 0;
  bool meaningful = true;  // Else too large to find anything.
  double magnitude = 0;    // Of what it is held to.
  double spread = 0;       // The largest difference of the reordered runs.
};
using AllowedErrors = std::map<std::string, Allowed>;

// For one rank's tensors `want` and those of its reordered runs. start: where
// parameters and buffers began; empty for gradients, which are a change
// themselves.
AllowedErrors AllowedErrorsOf(const CheckCase& check, const Tensors& start,
                              const Tensors& want,
                              std::span<const Tensors> reordered);

// For a scalar. reordered: its differences from `want` in the reordered runs.
Allowed AllowedScalarError(const CheckCase& check, double want,
                           std::span<const double> reordered);

// Binary digits of the type that the case computes in.
int DigitsOf(const CheckCase& check);

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
std::string Describe(const CheckCase& check, const Difference& difference);

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

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
