// The plans of operations on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_PLAN_H_
#define LOCKSTEP_MODELS_CUDA_PLAN_H_

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>

#include "base/data_types.h"
#include "models/cuda/convolution.h"
#include "models/cuda/dropout.h"
#include "models/cuda/fused_attention.h"
#include "models/cuda/step_numbers.h"
#include "models/model.h"
#include "models/program/operation_plan.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// The state shared by the plans of one replica. All pointers outlive every
// plan. Activations and their gradients are of TypeOf(precision), channels
// last. Parameters, their gradients and buffers are float32 in the GPU's
// memory, in the order of weight_layout.h, each aligned to 16 bytes.
struct CudaPlanContext {
  cudaStream_t stream = nullptr;
  cudnnHandle_t cudnn = nullptr;  // Of this stream.
  cublasLtHandle_t cublas = nullptr;
  const CudnnDevice* card = nullptr;
  FusedAttentionPlans* attention_plans = nullptr;
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  Parameters* parameters = nullptr;
  // All parameters, rounded to the 16-bit type of activations, at the same
  // places as in `parameters`; null if activations are float32.
  const void* rounded = nullptr;
  Buffers* buffers = nullptr;
  BatchNormKernels* batch_norm_kernels = nullptr;  // Of this stream.
  // The replica's pointer to the numbers of the step that it enqueues, in
  // device memory; null: masks take the batch's.
  const StepNumbers* const* numbers = nullptr;
  // The group over which batch norm normalises in training, whose calls are
  // made on this stream; null: this rank's batch alone.
  Communicator* batch_norm_group = nullptr;

  DataType type() const { return TypeOf(precision); }
  bool is_float32() const { return type() == DataType::kFloat32; }
  // Returns a parameter in the type of activations: a factor of their products,
  // or the bias that is added to the products.
  const void* Factor(int parameter) const {
    if (is_float32()) return parameters->value(parameter).data();
    const int64_t offset = parameters->specs()[parameter].offset;
    return static_cast<const char*>(rounded) + offset * SizeOf(type());
  }
};

// Returns the key of a layer's masks in the step that is enqueued.
DeviceMaskKey DeviceMaskKeyOf(const CudaPlanContext& context,
                              const Batch& batch, int layer, double rate);

// Creates the plan of an operation. For n = 0 the plan only sets gradients to
// zero, except that a batch norm still takes part in the group's messages. A
// call takes milliseconds or more. Errors: those of ConvolutionPlan::Create and
// Product::Create.
PlanOr CreateCudaPlan(const CudaPlanContext& context,
                      const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_PLAN_H_
