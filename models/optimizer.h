// Optimizers on flat float32 arrays: stochastic gradient descent (SGD), with
// or without momentum, and AdamW. Their formulas are PyTorch's.
#ifndef LOCKSTEP_MODELS_OPTIMIZER_H_
#define LOCKSTEP_MODELS_OPTIMIZER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

enum class OptimizerKind { kSgd, kAdamW };

// Returns "sgd" or "adamw".
const char* Name(OptimizerKind kind);

// The options of torch.optim.SGD and torch.optim.AdamW, besides the learning
// rate, which is an argument of each step. Not supported: dampening, Nesterov
// momentum, AMSGrad. The decay applies to all parameters, as PyTorch's default
// does.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0;  // SGD's; 0: without momentum.
  double weight_decay = 0;
  double beta1 = 0.9;  // The last three are AdamW's.
  double beta2 = 0.999;
  double epsilon = 1e-8;

  // Returns whether this is SGD without momentum and decay.
  bool IsPlainSgd() const;

  friend bool operator==(const OptimizerOptions&,
                         const OptimizerOptions&) = default;
};

// Returns kInvalidArgument, as "momentum=-1: must be ..." and with the names of
// the trainer's flags (adam_beta1), for a number that is negative or not
// finite, for a beta that is not in [0, 1), and for an option of the other kind
// that differs from its default.
absl::Status CheckOptimizer(const OptimizerOptions& options);

// Returns PyTorch's names of the arrays that an optimizer keeps from step to
// step. Each array has an element for each element of the parameters.
//   SGD with momentum: momentum_buffer
//   AdamW: exp_avg, exp_avg_sq
//   SGD without momentum: none
std::vector<const char*> StateNames(const OptimizerOptions& options);

// The numbers that an optimizer keeps from step to step.
struct OptimizerState {
  int64_t steps = 0;  // The steps taken; 0 without arrays.
  // By StateNames, each in the order of the flat parameters; 0 at first.
  std::vector<std::vector<float>> arrays;

  friend bool operator==(const OptimizerState&,
                         const OptimizerState&) = default;
};

// Returns kInvalidArgument unless the state has the number of arrays of such an
// optimizer, each of `count` elements, and a number of steps that is not
// negative.
absl::Status CheckState(const OptimizerOptions& options, int64_t count,
                        const OptimizerState& state);

// The numbers of one step that all elements share. They are computed in
// float64, in the order of the comments, and rounded to float32 at the end.
struct StepFactors {
  float rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  float keep = 0;  // 1 - rate * weight_decay
  float beta1 = 0;
  float beta2 = 0;
  float rest1 = 0;      // 1 - beta1
  float rest2 = 0;      // 1 - beta2
  float step_size = 0;  // rate / (1 - beta1^step)
  float root = 0;       // sqrt(1 - beta2^step)
  float epsilon = 0;
};

// step: the number of this step, from 1. The powers are products of the squares
// beta, beta^2, beta^4, ..., multiplied from the lowest, so every machine has
// the same bits.
StepFactors FactorsOf(const OptimizerOptions& options, float rate,
                      int64_t step);

// Takes a step of plain stochastic gradient descent:
// values[i] -= learning_rate * gradients[i]. The product is rounded to float32,
// then the difference. The two are never fused, so the bits do not depend on
// the machine or on the vector width.
//
// Host float32 spans of the same size (a precondition), 0 allowed; they must
// not overlap.
void SgdUpdate(std::span<float> values, std::span<const float> gradients,
               float learning_rate);

// One replica's optimizer and its state, on host memory. Not thread safe.
//
// Every operation on an element is rounded to float32, in the order that the
// parentheses show, and no two are fused. The bits therefore depend neither on
// the machine nor on the ranges of a step. With w, g for a value and its
// gradient, an element of SGD becomes
//
//   g' = g + (weight_decay * w)            if weight_decay > 0, otherwise g
//   b  = (momentum * b) + g'               if momentum > 0, otherwise g'
//   w  = w - (rate * b)
//
// and one of AdamW, with the moments m, v
//
//   m = (beta1 * m) + (rest1 * g)
//   v = (beta2 * v) + ((rest2 * g) * g)
//   w = (keep * w) - ((step_size * m) / ((sqrt(v) / root) + epsilon))
//
// Sources: torch.optim.SGD; torch.optim.AdamW (Loshchilov & Hutter 2019).
class Optimizer {
 public:
  // options: accepted by CheckOptimizer. count: the elements of the flat
  // parameters. Allocates the state.
  Optimizer(const OptimizerOptions& options, int64_t count);

  const OptimizerOptions& options() const { return options_; }

  // Begins a step. Calls of Update belong to the step that was begun last.
  void BeginStep(float learning_rate);

  // Updates elements [begin, begin + values.size()) of the flat parameters.
  // `values` and `gradients` are these elements: host float32 spans of the same
  // size, which do not overlap. A step updates each element once, in ranges of
  // any size and order.
  void Update(int64_t begin, std::span<float> values,
              std::span<const float> gradients);

  const OptimizerState& state() const { return state_; }
  OptimizerState& state() { return state_; }

  // Replaces the state. Errors: CheckState's. The state is then unchanged.
  absl::Status SetState(OptimizerState state);

 private:
  const OptimizerOptions options_;
  const int64_t count_;
  OptimizerState state_;
  StepFactors factors_;  // Of the step that was begun last.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_OPTIMIZER_H_
