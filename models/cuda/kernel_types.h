// The types of activations in the kernels of a training step. Only .cu files
// include this header.
#ifndef LOCKSTEP_MODELS_CUDA_KERNEL_TYPES_H_
#define LOCKSTEP_MODELS_CUDA_KERNEL_TYPES_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_elements.h"
#include "base/data_types.h"

namespace lockstep {

// Returns run(T{}) for the type T of activations. Kernels compute in float32
// and round once, when they store an activation. Errors: kUnimplemented for
// another type.
template <typename Function>
absl::Status WithActivations(DataType type, const Function& run) {
  switch (type) {
    case DataType::kFloat32:
      return run(float{});
    case DataType::kFloat16:
      return run(__half{});
    case DataType::kBFloat16:
      return run(__nv_bfloat16{});
    default:
      return absl::UnimplementedError(absl::StrCat(
          "a step on a GPU has no kernels for activations of ", Name(type),
          "; it has them for float32, float16 and bfloat16"));
  }
}

// Calls run(T{}) for each type of activations; returns the first error.
template <typename Function>
absl::Status ForActivations(const Function& run) {
  absl::Status status = run(float{});
  status.Update(run(__half{}));
  status.Update(run(__nv_bfloat16{}));
  return status;
}

// Returns the elements at an address.
template <typename T>
const T* Elements(const void* memory) {
  return static_cast<const T*>(memory);
}
template <typename T>
T* Elements(void* memory) {
  return static_cast<T*>(memory);
}

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_KERNEL_TYPES_H_
