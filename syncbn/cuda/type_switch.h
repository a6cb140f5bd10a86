// From a DataType to the type of device code. Included by .cu files alone.
#ifndef LOCKSTEP_SYNCBN_CUDA_TYPE_SWITCH_H_
#define LOCKSTEP_SYNCBN_CUDA_TYPE_SWITCH_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/data_type.h"

namespace lockstep {

// run(T{}) of an activation type T; kUnimplemented for those that kernels lack.
template <typename Function>
absl::Status SwitchType(DataType type, const Function& run) {
  switch (type) {
    case DataType::kFloat32:
      return run(float{});
    case DataType::kFloat16:
      return run(__half{});
    case DataType::kBFloat16:
      return run(__nv_bfloat16{});
    default:
      return absl::UnimplementedError(
          absl::StrCat("batch norm on a GPU has no kernels for ", Name(type),
                       "; it has them for float32, float16 and bfloat16"));
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_TYPE_SWITCH_H_
