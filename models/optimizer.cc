// Updates of SGD and AdamW, compiled without contraction of a * b + c: see
// BUILD.bazel.
#include "models/optimizer.h"

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

struct NamedOption {
  const char* name;
  double value;
  double standard = 0;  // The default.
};

absl::Status OptionError(const NamedOption& option, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat(option.name, "=", option.value, ": ", what));
}

// Returns base^exponent. exponent >= 0.
double Power(double base, int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power *= base;
    base *= base;
  }
  return power;
}

void MomentumUpdate(const StepFactors& factors, size_t count,
                    float* __restrict value, const float* __restrict gradient,
                    float* __restrict buffer) {
  const StepFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    float g = gradient[i];
    if (f.weight_decay != 0) g += f.weight_decay * value[i];
    buffer[i] = f.momentum * buffer[i] + g;
    value[i] -= f.rate * buffer[i];
  }
}

void DecayedUpdate(const StepFactors& factors, size_t count,
                   float* __restrict value, const float* __restrict gradient) {
  const StepFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    value[i] -= f.rate * (gradient[i] + f.weight_decay * value[i]);
  }
}

void AdamWUpdate(const StepFactors& factors, size_t count,
                 float* __restrict value, const float* __restrict gradient,
                 float* __restrict first, float* __restrict second) {
  const StepFactors f = factors;
  for (size_t i = 0; i < count; ++i) {
    const float g = gradient[i];
    const float m = f.beta1 * first[i] + f.rest1 * g;
    const float v = f.beta2 * second[i] + f.rest2 * g * g;
    const float scale = std::sqrt(v) / f.root + f.epsilon;
    first[i] = m;
    second[i] = v;
    value[i] = f.keep * value[i] - f.step_size * m / scale;
  }
}

}  // namespace

const char* Name(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW ? "adamw" : "sgd";
}

bool OptimizerOptions::IsPlainSgd() const {
  return kind == OptimizerKind::kSgd && momentum == 0 && weight_decay == 0;
}

absl::Status CheckOptimizer(const OptimizerOptions& options) {
  const OptimizerOptions standard;
  const NamedOption momentum = {"momentum", options.momentum};
  const NamedOption weight_decay = {"weight_decay", options.weight_decay};
  const NamedOption beta1 = {"adam_beta1", options.beta1, standard.beta1};
  const NamedOption beta2 = {"adam_beta2", options.beta2, standard.beta2};
  const NamedOption epsilon = {"adam_epsilon", options.epsilon,
                               standard.epsilon};
  for (const NamedOption& option :
       {momentum, weight_decay, beta1, beta2, epsilon}) {
    if (!(option.value >= 0) ||
        !std::isfinite(static_cast<float>(option.value))) {
      return OptionError(option, "must be at least 0 and finite");
    }
  }
  for (const NamedOption& option : {beta1, beta2}) {
    if (option.value >= 1) return OptionError(option, "must be below 1");
  }
  const bool is_sgd = options.kind == OptimizerKind::kSgd;
  const std::vector<NamedOption> others =
      is_sgd ? std::vector{beta1, beta2, epsilon} : std::vector{momentum};
  for (const NamedOption& option : others) {
    if (option.value != option.standard) {
      return OptionError(option, is_sgd ? "is an option of adamw alone"
                                        : "is an option of sgd alone");
    }
  }
  return absl::OkStatus();
}

std::vector<const char*> StateNames(const OptimizerOptions& options) {
  if (options.kind == OptimizerKind::kAdamW) return {"exp_avg", "exp_avg_sq"};
  if (options.momentum > 0) return {"momentum_buffer"};
  return {};
}

absl::Status CheckState(const OptimizerOptions& options, int64_t count,
                        const OptimizerState& state) {
  const size_t arrays = StateNames(options).size();
  bool fits = state.arrays.size() == arrays && state.steps >= 0;
  for (const std::vector<float>& array : state.arrays) {
    fits = fits && std::ssize(array) == count;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the state has ", state.steps, " steps and ", state.arrays.size(),
      " arrays, but must have ", arrays, " of ", count, " elements"));
}

StepFactors FactorsOf(const OptimizerOptions& options, float rate,
                      int64_t step) {
  const double wide_rate = rate;
  StepFactors factors;
  factors.rate = rate;
  factors.momentum = static_cast<float>(options.momentum);
  factors.weight_decay = static_cast<float>(options.weight_decay);
  factors.keep = static_cast<float>(1 - wide_rate * options.weight_decay);
  factors.beta1 = static_cast<float>(options.beta1);
  factors.beta2 = static_cast<float>(options.beta2);
  factors.rest1 = static_cast<float>(1 - options.beta1);
  factors.rest2 = static_cast<float>(1 - options.beta2);
  if (options.kind == OptimizerKind::kAdamW) {
    factors.step_size =
        static_cast<float>(wide_rate / (1 - Power(options.beta1, step)));
    factors.root =
        static_cast<float>(std::sqrt(1 - Power(options.beta2, step)));
  }
  factors.epsilon = static_cast<float>(options.epsilon);
  return factors;
}

void SgdUpdate(std::span<float> values, std::span<const float> gradients,
               float learning_rate) {
  assert(values.size() == gradients.size());
  float* __restrict value = values.data();
  const float* __restrict gradient = gradients.data();
  for (size_t i = 0; i < values.size(); ++i) {
    value[i] -= learning_rate * gradient[i];
  }
}

Optimizer::Optimizer(const OptimizerOptions& options, int64_t count)
    : options_(options), count_(count) {
  state_.arrays.resize(StateNames(options).size());
  for (std::vector<float>& array : state_.arrays) array.resize(count);
}

void Optimizer::BeginStep(float learning_rate) {
  if (!state_.arrays.empty()) ++state_.steps;
  factors_ = FactorsOf(options_, learning_rate, state_.steps);
}

void Optimizer::Update(int64_t begin, std::span<float> values,
                       std::span<const float> gradients) {
  assert(values.size() == gradients.size());
  const auto part = [&](int array) {
    return state_.arrays[array].data() + begin;
  };
  if (options_.kind == OptimizerKind::kAdamW) {
    AdamWUpdate(factors_, values.size(), values.data(), gradients.data(),
                part(0), part(1));
  } else if (options_.momentum > 0) {
    MomentumUpdate(factors_, values.size(), values.data(), gradients.data(),
                   part(0));
  } else if (options_.weight_decay > 0) {
    DecayedUpdate(factors_, values.size(), values.data(), gradients.data());
  } else {
    SgdUpdate(values, gradients, factors_.rate);
  }
}

absl::Status Optimizer::SetState(OptimizerState state) {
  LOCKSTEP_RETURN_IF_ERROR(CheckState(options_, count_, state));
  state_ = std::move(state);
  return absl::OkStatus();
}

}  // namespace lockstep
