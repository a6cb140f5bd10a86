// How far from one rank's numbers a run may be, and whether it is.
//
// What N ranks add up in another order differs by rounding, and how much
// depends on the trainer's own kernels, which nobody outside knows. So the
// trainer is asked: shadows are one-rank runs in which the samples of a step
// stand in another order, so that exactly what should not matter has changed.
//
//   allowed(tensor) = max(8 * the largest |difference| of its shadows,
//                         4 units in the last place for each rank)
//
// - 8: a tensor's difference is the largest of many elements, so two shadows
//   meet nearly the worst of an ordering; but N ranks round once more for every
//   rank (a partial sum each, and the sum of those), and over the steps of a
//   case differences add up. The bugs that are sought are off by at least a
//   part in the world size, thousands of times as much.
// - 4 units in the last place of the tensor's largest value for each rank:
//   where shadows happen to round to the same bits (two samples to a sum
//   commute, or a kernel adds up in float64), N parts and N partial sums need
//   not, and they may be a few times as large as what is left of them.
//   Parameters and buffers: this of the change, which is what was computed, and
//   4 units of the value.
// - In bfloat16, 8 units of bfloat16 (of the change, for parameters, which are
//   kept in float32): a rank divides its loss by another number of samples than
//   one rank does, so every gradient on its way back is rounded anew, layer by
//   layer, which no order of samples shows.
// - A scalar, a loss, has no largest of many elements: its shadows' differences
//   are the largest over all steps, and 16 units of float32 are allowed, in
//   which means are taken; and 8 of bfloat16 where samples' losses are that.
// - What a layer hands back carries the rounding of all layers behind it, even
//   where its own shadows happen to agree (a kernel that adds up in float64
//   hides the order of samples, and not that N ranks round N times). So a
//   tensor's spread counts as no smaller, relative to its magnitude, than that
//   of any tensor behind it in the forward pass.
//
// A tolerance that is too large to find anything is not used: where it exceeds
// 1% of the tensor's magnitude (10% for bfloat16; of the change since the start
// for parameters and buffers), it cannot be judged, which is a failure that
// says so. But a tensor may itself be rounding, as the gradient of a bias in
// front of a batch norm is, mathematically 0: shadows then differ by more than
// a tenth of its magnitude, or its change is below the units of its value. Such
// a tensor is held to the magnitude of the other tensors of its layer (of all,
// if it is in none): 64 units of that and 64 times the spread are allowed, and
// its tolerance may be 10% of it. For what cancels over all samples does not
// cancel over a rank's, and it is the ranks' large parts that are rounded,
// which no order on one rank shows. In bfloat16 it is 8 units of bfloat16 of
// that and 8 times the spread.
//
// A change below a hundredth of its layer's may be such rounding, too, even if
// shadows agree (a kernel hid the order), or may be a number. It is rounding if
// 8 times the spread, or the units of its layer, are more than 0.4 of it. Else
// it is held to itself: it is allowed what rounding in its layer is, but at
// most 0.4 of the change, so that zero or the double is found. In bfloat16 a
// hundredth is within the units of the layer, and nothing is found: PyTorch's
// biases before a batch norm are 0.3% of their layer's there, shadows agree to
// 0.2% of them, and ranks differ by the whole of them.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_TOLERANCE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_TOLERANCE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/numbers.h"

namespace lockstep {

// Of one tensor.
struct Allowed {
  double error = 0;
  bool meaningful = true;  // Else too large to find anything.
  double magnitude = 0;    // Of what it is held to.
  double spread = 0;       // The largest difference of the shadows.
};
using AllowedErrors = std::map<std::string, Allowed>;

// For the tensors `want` of one rank and the same of its shadows. start: where
// parameters and buffers began; empty for gradients, whose change they are.
AllowedErrors AllowedErrorsOf(const CheckCase& check, const Tensors& start,
                              const Tensors& want,
                              std::span<const Tensors> shadows);

// Of a scalar. shadows: its differences from `want` in the shadows.
Allowed AllowedScalarError(const CheckCase& check, double want,
                           std::span<const double> shadows);

// A tensor that is off by more than is allowed, or not to be judged.
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

// Compares the tensors of `want`; one that `got` lacks counts as zeros, and so
// does one that `allowed` lacks (then nothing is allowed).
Compared Compare(const CheckCase& check, const Tensors& want,
                 const Tensors& got, const AllowedErrors& allowed);

// Whether `got` is `candidate` for every tensor in `names`, within the allowed
// errors times max(1, slack). What fits a tolerance without meaning says
// nothing, so it does not count.
bool Fits(const std::vector<std::string>& names, const Tensors& candidate,
          const Tensors& got, const AllowedErrors& allowed, double slack = 1);

std::vector<std::string> NamesOf(const Compared& compared);

// "W2 (the second convolution) is off by 1.2e-3 at element 17 (0.25, one rank
// has 0.2512; 0.5% relative, 4711 units in the last place; 1e-7 is allowed)".
// `reference` stands in place of "one rank".
std::string Describe(const CheckCase& check, const Difference& difference,
                     const std::string& reference = "one rank");

// Binary digits of the type that the case computes in.
int DigitsOf(const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_TOLERANCE_H_
