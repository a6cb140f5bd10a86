#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "models/cuda/block_reduce.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/loss.h"

namespace lockstep {
namespace {

constexpr int kThreads = kMostReduceThreads;
constexpr int kBlocks = 6;  // On a multiprocessor, with 80 registers.

// One block a sample. losses[i] is its loss; losses[n + i] is 1 if the label's
// logit is the highest: higher than those before it, and no lower than the
// others.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    LossKernel(LossOperands of) {
  __shared__ double shared[kThreads];
  const int64_t i = blockIdx.x;
  const T* const logits = static_cast<const T*>(of.logits) + i * of.classes;
  T* const gradient = static_cast<T*>(of.gradient);
  const int32_t label = of.labels[i];
  const bool is_mixed = of.shares != nullptr;
  const int32_t other = is_mixed ? of.other_labels[i] : label;
  const double share = is_mixed ? of.shares[i] : 1.0;
  const bool in_range =
      label >= 0 && label < of.classes && other >= 0 && other < of.classes;
  const double wanted = in_range ? double{ToFloat(logits[label])} : NAN;

  double highest = -INFINITY;
  double wrong = in_range ? 0 : 1;
  for (int64_t k = threadIdx.x; k < of.classes; k += blockDim.x) {
    const double x = ToFloat(logits[k]);
    highest = Highest()(highest, x);
    // The comparisons are false if either side is a NaN.
    if (!(k < label ? x < wanted : x <= wanted)) wrong = 1;
  }
  highest = CombineBlock(highest, shared, Highest());
  wrong = CombineBlock(wrong, shared, Plus());
  double sum = 0;
  for (int64_t k = threadIdx.x; k < of.classes; k += blockDim.x) {
    sum += exp(ToFloat(logits[k]) - highest);
  }
  sum = CombineBlock(sum, shared, Plus());
  if (gradient != nullptr) {
    const double inverse = 1 / sum;
    const double scale = of.loss_scale == nullptr
                             ? of.gradient_scale
                             : double{of.gradient_scale} * *of.loss_scale;
    for (int64_t k = threadIdx.x; k < of.classes; k += blockDim.x) {
      double target = k == label ? share : 0;
      if (k == other) target += 1 - share;
      const double p = exp(ToFloat(logits[k]) - highest) * inverse;
      gradient[i * of.classes + k] =
          RoundTo<T>(static_cast<float>(scale * (p - target)));
    }
  }
  if (threadIdx.x != 0) return;
  const double log_sum = log(sum) + highest;
  double loss = log_sum - wanted;
  if (share != 1 && in_range) {
    loss = share * loss + (1 - share) * (log_sum - ToFloat(logits[other]));
  }
  of.sample_losses[i] = loss;
  of.sample_losses[of.n + i] = wrong > 0 ? 0 : 1;
}

// One block, which adds all samples.
__global__ void __launch_bounds__(kThreads)
    AddSamplesKernel(int64_t n, const double* losses, DeviceMetrics* metrics) {
  __shared__ double shared[kThreads];
  double loss = 0;
  double correct = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    loss += losses[i];
    correct += losses[n + i];
  }
  loss = CombineBlock(loss, shared, Plus());
  correct = CombineBlock(correct, shared, Plus());
  if (threadIdx.x != 0) return;
  metrics->loss_sum += loss;
  metrics->correct += static_cast<int64_t>(correct);
  metrics->samples += n;
}

}  // namespace

absl::Status LoadLossKernels() {
  absl::Status status = LoadKernels(AddSamplesKernel);
  status.Update(
      ForActivations([]<typename T>(T) { return LoadKernels(LossKernel<T>); }));
  return status;
}

absl::Status SoftmaxCrossEntropyOnGpu(const LossOperands& operands,
                                      DeviceMetrics* metrics,
                                      cudaStream_t stream) {
  if (operands.n == 0) return absl::OkStatus();
  const absl::Status status =
      WithActivations(operands.type, [&]<typename T>(T) {
        return LaunchGrid(dim3(static_cast<unsigned>(operands.n)),
                          ReduceThreads(operands.classes), stream,
                          "LossKernel launch", LossKernel<T>, operands);
      });
  if (!status.ok()) return status;
  return LaunchGrid(dim3(1), ReduceThreads(operands.n), stream,
                    "AddSamplesKernel launch", AddSamplesKernel, operands.n,
                    static_cast<const double*>(operands.sample_losses),
                    metrics);
}

}  // namespace lockstep
