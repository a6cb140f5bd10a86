// Products, sums, quotients and roots are intrinsics, which the compiler cannot
// fuse. Their order is that of models/optimizer.h.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/optimizer.h"
#include "models/optimizer.h"

namespace lockstep {
namespace {

constexpr int kThreads = kThreadsOver;

// Returns a * b + c, rounded twice.
__device__ inline float MultiplyAdd(float a, float b, float c) {
  return __fadd_rn(__fmul_rn(a, b), c);
}

// Returns base^exponent as FactorsOf does.
__device__ double Power(double base, int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) power = __dmul_rn(power, base);
    base = __dmul_rn(base, base);
  }
  return power;
}

// One thread.
__global__ void __launch_bounds__(1)
    BeginStepKernel(OptimizerOptions options, bool counts, const float* rate,
                    const LossScale* scale, DeviceOptimizerStep* step) {
  if (scale != nullptr && scale->overflows != 0) return;
  const int64_t steps = step->steps + (counts ? 1 : 0);
  const double wide_rate = *rate;
  StepFactors factors;
  factors.rate = *rate;
  factors.momentum = static_cast<float>(options.momentum);
  factors.weight_decay = static_cast<float>(options.weight_decay);
  factors.keep = static_cast<float>(
      __dsub_rn(1, __dmul_rn(wide_rate, options.weight_decay)));
  factors.beta1 = static_cast<float>(options.beta1);
  factors.beta2 = static_cast<float>(options.beta2);
  factors.rest1 = static_cast<float>(1 - options.beta1);
  factors.rest2 = static_cast<float>(1 - options.beta2);
  if (options.kind == OptimizerKind::kAdamW) {
    factors.step_size = static_cast<float>(
        wide_rate / __dsub_rn(1, Power(options.beta1, steps)));
    factors.root =
        static_cast<float>(sqrt(__dsub_rn(1, Power(options.beta2, steps))));
  }
  factors.epsilon = static_cast<float>(options.epsilon);
  step->steps = steps;
  step->factors = factors;
}

// SGD with momentum, unless arrays.first is null, and with decay, unless that
// is 0.
__global__ void __launch_bounds__(kThreads)
    MomentumKernel(OptimizerArrays arrays, const DeviceOptimizerStep* step,
                   const LossScale* scale) {
  if (scale != nullptr && scale->overflows != 0) return;
  const float rate = step->factors.rate;
  const float momentum = step->factors.momentum;
  const float decay = step->factors.weight_decay;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < arrays.count; i += stride) {
    const float value = arrays.values[i];
    float change = arrays.gradients[i];
    if (decay != 0) change = MultiplyAdd(decay, value, change);
    if (arrays.first != nullptr) {
      change = MultiplyAdd(momentum, arrays.first[i], change);
      arrays.first[i] = change;
    }
    arrays.values[i] = __fsub_rn(value, __fmul_rn(rate, change));
  }
}

__global__ void __launch_bounds__(kThreads)
    AdamWKernel(OptimizerArrays arrays, const DeviceOptimizerStep* step,
                const LossScale* scale) {
  if (scale != nullptr && scale->overflows != 0) return;
  const StepFactors f = step->factors;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < arrays.count; i += stride) {
    const float g = arrays.gradients[i];
    const float m =
        MultiplyAdd(f.beta1, arrays.first[i], __fmul_rn(f.rest1, g));
    const float v = MultiplyAdd(f.beta2, arrays.second[i],
                                __fmul_rn(__fmul_rn(f.rest2, g), g));
    const float scaled = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), f.root), f.epsilon);
    arrays.first[i] = m;
    arrays.second[i] = v;
    arrays.values[i] = __fsub_rn(__fmul_rn(f.keep, arrays.values[i]),
                                 __fdiv_rn(__fmul_rn(f.step_size, m), scaled));
  }
}

}  // namespace

absl::Status LoadOptimizerKernels() {
  return LoadKernels(BeginStepKernel, MomentumKernel, AdamWKernel);
}

absl::Status BeginOptimizerStep(const OptimizerOptions& options,
                                const float* learning_rate,
                                const LossScale* scale,
                                DeviceOptimizerStep* step,
                                cudaStream_t stream) {
  return LaunchGrid(dim3(1), 1, stream, "BeginStepKernel launch",
                    BeginStepKernel, options, !StateNames(options).empty(),
                    learning_rate, scale, step);
}

absl::Status UpdateOnGpu(OptimizerKind kind, const OptimizerArrays& arrays,
                         const DeviceOptimizerStep* step,
                         const LossScale* scale, cudaStream_t stream) {
  return kind == OptimizerKind::kAdamW
             ? LaunchOver(arrays.count, stream, "AdamWKernel launch",
                          AdamWKernel, arrays, step, scale)
             : LaunchOver(arrays.count, stream, "MomentumKernel launch",
                          MomentumKernel, arrays, step, scale);
}

}  // namespace lockstep
