// Compares the tensors of N ranks with those of one rank: how far the two may
// differ, which tensors differ more, and whether a factor explains the
// difference.
//
// N ranks add up the same numbers in another order, so they round differently.
// The size of that difference depends on the trainer's kernels, which the
// checker does not know. The checker therefore measures it: one rank runs again
// with the samples of every step in another order (ReorderedStarts). Reordering
// can change only rounding. The *spread* of a tensor is its largest difference
// between these runs and the first.
//
//   allowed(tensor) = max(8 * spread, 4 units in the last place for each rank)
//
// - The factor 8: the spread is the largest difference of many elements, so two
//   reordered runs nearly reach the worst case over all orders. However, N
//   ranks round once more for each rank (each partial sum, and the sum of
//   partial sums), and differences add up over the steps of a case. A mutant is
//   off by at least one part in the world size, which is thousands of times as
//   much.
// - The units in the last place refer to the tensor's largest value. Reordered
//   runs may happen to round to the same bits (two samples of a sum commute, or
//   a kernel adds up in float64) while N partial sums do not. The partial sums
//   may also be a few times as large as their total. For parameters and
//   buffers, the allowance is the units of the change since the start, which is
//   the computed quantity, plus 4 units of the value itself.
// - bfloat16: 8 units of bfloat16, of the change for parameters, which stay in
//   float32. A rank divides its loss by another number of samples than one rank
//   alone does. Every gradient is therefore rounded anew in every layer of the
//   backward pass, and no order of samples shows this rounding.
// - A scalar, such as a loss, is not the largest of many elements. Its spread
//   is taken over all steps, and 16 units of float32 are allowed, because means
//   are computed in float32. If the samples' losses are bfloat16, 8 units of
//   bfloat16 are allowed in addition.
// - A layer's gradient carries the rounding of all later layers, even if its
//   own reordered runs agree. A kernel that adds up in float64 hides the order
//   of samples, but not that N ranks round N times. Relative to its magnitude,
//   a tensor's spread therefore counts as at least that of any tensor behind it
//   in the forward pass.
//
// - A synchronised batch norm merges the means of N parts, which rounds once
// more
//   for each rank. The rounding shifts all normalised values of a channel
//   alike, by some units of 1 if the mean is at most some standard deviations.
//   The gradient of the scale then moves by these units times the gradient of
//   the shift, which may be the larger one. No order of samples shows this on
//   one rank. The layer's tensors are therefore allowed the units of the
//   layer's largest value in addition.
//
// A tolerance that is too large to find anything is not used. The limit is 1%
// of the tensor's magnitude (10% for bfloat16); for parameters and buffers, of
// the change since the start. Above this limit the tensor cannot be judged, and
// the claim fails with that message.
//
// A tensor may itself be rounding. An example is the gradient of a bias in
// front of a batch norm, which is mathematically 0. A tensor counts as rounding
// if its spread is more than a tenth of its magnitude, or if its change is
// below the units of its value. Such a tensor is compared with the magnitude of
// the other tensors of its layer (of all tensors, if it is in no layer). The
// allowance is 64 units of that magnitude and 64 times the spread, up to 10% of
// the magnitude. The reason: parts that cancel over all samples do not cancel
// over one rank's samples. The ranks' large parts are rounded, and no order on
// one rank shows this. In bfloat16 the allowance is 8 units of bfloat16 and 8
// times the spread.
//
// A change below a hundredth of its layer's may be such rounding too, even if
// the reordered runs agree (a kernel hid the order), or it may be a real
// number. It counts as rounding if 8 times the spread, or the units of its
// layer, exceed 0.4 of the change. Otherwise the tensor is compared with
// itself. Its allowance is that of rounding in its layer, but at most 0.4 of
// the change, so that a zero or doubled tensor is found. In bfloat16 a
// hundredth is within the units of the layer, so no such error is found. There,
// PyTorch's biases in front of a batch norm are 0.3% of their layer's gradient.
// Reordered runs agree to 0.2% of these biases, and ranks differ by their whole
// value.
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

// The tolerance of one tensor.
struct Allowed {
  double error = 0;
  bool meaningful = true;  // False if it is too large to find anything.
  double magnitude = 0;    // The scale of `error`: the tensor or its layer.
  double spread = 0;       // The largest difference between reordered runs.
};
using AllowedErrors = std::map<std::string, Allowed>;

// Returns the tolerances of one rank's tensors `want`. reordered: the same
// tensors in the reordered runs. start: the initial parameters and buffers;
// empty for gradients, which are a change themselves.
AllowedErrors AllowedErrorsOf(const CheckCase& check, const Tensors& start,
                              const Tensors& want,
                              std::span<const Tensors> reordered);

// Returns the tolerance of a scalar. reordered: its differences from `want` in
// the reordered runs.
Allowed AllowedScalarError(const CheckCase& check, double want,
                           std::span<const double> reordered);

// Returns whether the layer is a batch norm, by the names of its buffers.
bool IsBatchNorm(const NamedLayer& layer);

// Returns the number of binary digits of the type that the case computes in.
int DigitsOf(const CheckCase& check);

// A tensor that differs by more than is allowed, or that cannot be judged.
struct Difference {
  std::string name;
  size_t element = 0;  // The element that is furthest off.
  double want = 0, got = 0;
  double error = 0;
  Allowed allowed;
};

struct Compared {
  std::vector<Difference> differing;  // In the order of the forward pass.
  double error_over_allowed = 0;  // The largest ratio; NaN if any error is NaN.
};

// Compares the tensors of `want` with those of `got`. A tensor that is missing
// in `got` counts as zeros. A tensor that is missing in `allowed` may not
// differ.
Compared Compare(const CheckCase& check, const Tensors& want,
                 const Tensors& got, const AllowedErrors& allowed);

// Returns whether every tensor in `names` is the same in `got` as in
// `candidate`, within the allowed error times max(1, slack). Returns false if a
// tolerance is too large to judge by, because any value would fit it.
bool Fits(const std::vector<std::string>& names, const Tensors& candidate,
          const Tensors& got, const AllowedErrors& allowed, double slack = 1);

std::vector<std::string> NamesOf(const Compared& compared);

// Returns the first difference whose tolerance is too large to judge by; null
// if there is none.
const Difference* FirstNotJudged(const Compared& compared);

// Describes a difference: "W2 (the second convolution) is off by 1.2e-3 at
// element 17: it is 0.25, one rank has 0.2512 (relative 0.0048, 4.03e+04 units
// in the last place; 1e-07 is allowed)".
std::string Describe(const CheckCase& check, const Difference& difference);

// Returns the k that minimises |got - k * want|^2 over the tensors in `names`;
// 0 if `want` is zero in all of them.
double FittedFactor(const std::vector<std::string>& names, const Tensors& want,
                    const Tensors& got);

// A factor with a known cause: N, 1/N, A, 1/A, or a product of these. N is the
// world size and A the number of accumulated micro-batches.
struct NamedFactor {
  double k;
  Cause cause;
};

// Returns the named factors in the order in which they are tried. A count (N or
// A) of 1 adds no factor.
std::vector<NamedFactor> NamedFactors(int world_size, int64_t accumulate);

// Returns the factors of a step in which the ranks' `counts` of samples are
// fewer than a `full` global batch. The factors: a sum that is divided by the
// size of a full batch, of all ranks or of one; and a mean over all ranks
// although some have no sample. Returns none if the batch is full.
std::vector<NamedFactor> BatchFactors(const std::vector<double>& counts,
                                      double full);

struct FoundFactor {
  double k = 1;
  Cause cause = Cause::kUnknown;
  std::vector<std::string> names;  // The tensors that have it.
};

// Returns the factor that turns `want` into `got` within the allowed errors: a
// named one or, if `any`, the fitted one as kScaled. First tries one factor for
// all of `names`. If none fits, tries a factor for each tensor, and returns the
// first tensor's factor with all tensors that have it.
std::optional<FoundFactor> FactorOf(const std::vector<std::string>& names,
                                    const Tensors& want, const Tensors& got,
                                    const AllowedErrors& allowed,
                                    const std::vector<NamedFactor>& named,
                                    bool any);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_COMPARE_H_
