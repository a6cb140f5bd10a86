// The gradient behind a ReLU. Included by .cu files alone.
#ifndef LOCKSTEP_SYNCBN_CUDA_RELU_GRADIENT_H_
#define LOCKSTEP_SYNCBN_CUDA_RELU_GRADIENT_H_

namespace lockstep {

// dy where the output y is positive or NaN, else 0.
__device__ inline float ReluGradient(float dy, float y) {
  return y <= 0 ? 0 : dy;
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_RELU_GRADIENT_H_
