// The precision of a network on a GPU. This header needs no CUDA.
#ifndef LOCKSTEP_MODELS_CUDA_PRECISION_H_
#define LOCKSTEP_MODELS_CUDA_PRECISION_H_

#include <cstddef>

#include "base/data_types.h"

namespace lockstep {

// The data type of all tensors, and the type to which factors may be rounded.
// Sums are in float32.
enum class ConvolutionPrecision {
  kFloat32,  // Excludes engines that round their inputs.
  kTf32,     // float32 in memory; engines may use TF32 products.
  kFloat16,
  kBFloat16,
};

// Returns "float32", "tf32", "float16" or "bfloat16".
constexpr const char* Name(ConvolutionPrecision precision) {
  constexpr const char* kNames[] = {"float32", "tf32", "float16", "bfloat16"};
  return kNames[static_cast<size_t>(precision)];
}

// Returns the data type of tensors.
constexpr DataType TypeOf(ConvolutionPrecision precision) {
  return precision == ConvolutionPrecision::kFloat16    ? DataType::kFloat16
         : precision == ConvolutionPrecision::kBFloat16 ? DataType::kBFloat16
                                                        : DataType::kFloat32;
}

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_PRECISION_H_
