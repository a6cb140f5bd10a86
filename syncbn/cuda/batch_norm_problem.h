// A batch, and what one float64 layer makes of it: the reference of tests over
// several ranks.
#ifndef LOCKSTEP_SYNCBN_CUDA_BATCH_NORM_PROBLEM_H_
#define LOCKSTEP_SYNCBN_CUDA_BATCH_NORM_PROBLEM_H_

#include <vector>

#include "collectives/data_type.h"
#include "syncbn/activations.h"

namespace lockstep {

struct ProblemOptions {
  ActivationShape shape;  // Of the whole batch.
  DataType type = DataType::kFloat32;
  bool relu = true;  // There is always a residual.
  double mean = 3;   // Of x, whose deviation is 1.
  double epsilon = 1e-3;
};

// All but the statistics are in `type`, as rounded; weight and bias are [c].
struct Problem {
  ActivationShape shape;
  std::vector<double> x, residual, dy, weight, bias;
  std::vector<double> mean, inverse, variance;
  std::vector<double> y;  // No output before ReLU is within 0.1 of 0.
  std::vector<double> g;  // dy behind ReLU, which is dresidual too.
  std::vector<double> dx;
};
Problem MakeProblem(const ProblemOptions& options);

// The largest absolute value; 0 of none.
double Largest(const std::vector<double>& values);

// Errors of float32 as they go through the formulas. Of some tens of values a
// mean has gone through at most 16 additions and 8 merges of 6 errors each (see
// statistics_test.cc): 64 round-offs of the largest x. M2 through 4 for each,
// and 2 errors of the mean for a deviation, of which its root takes half.
struct ProblemErrors {
  explicit ProblemErrors(const Problem& p);

  double mean;
  double scale;       // Of the inverse deviation, relative.
  double normalized;  // Of x.
  double y;
  double dx;
  double gradient;  // Of weight and bias.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_BATCH_NORM_PROBLEM_H_
