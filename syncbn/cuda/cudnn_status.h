// cuDNN's errors as absl::Status, its names for data types, and owners of its
// handles and descriptors.
#ifndef LOCKSTEP_SYNCBN_CUDA_CUDNN_STATUS_H_
#define LOCKSTEP_SYNCBN_CUDA_CUDNN_STATUS_H_

#include <cudnn.h>

#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"

namespace lockstep {

// Returns OK for CUDNN_STATUS_SUCCESS. Otherwise returns "<what>: cuDNN error
// 3000: <cuDNN's name for it>". The code is kUnimplemented if cuDNN does not
// support the call (error category 3; the thousands of an error are its
// category), and kInternal otherwise.
inline absl::Status CudnnStatus(cudnnStatus_t error, absl::string_view what) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": cuDNN error ", static_cast<int>(error), ": ",
                   cudnnGetErrorString(error));
  return static_cast<int>(error) / 1000 == 3 ? absl::UnimplementedError(message)
                                             : absl::InternalError(message);
}

// Returns cuDNN's name of the type. Error: kUnimplemented for a type that no
// activation on a GPU has.
inline absl::StatusOr<cudnnDataType_t> CudnnTypeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return CUDNN_DATA_FLOAT;
    case DataType::kFloat16:
      return CUDNN_DATA_HALF;
    case DataType::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return absl::UnimplementedError(
          absl::StrCat("cuDNN is not used with ", Name(type),
                       " but with float32, float16 and bfloat16"));
  }
}

struct DestroyCudnn {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
  void operator()(cudnnTensorDescriptor_t descriptor) const {
    cudnnDestroyTensorDescriptor(descriptor);
  }
};
template <typename Handle>
using CudnnOwner = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCudnn>;

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDNN_STATUS_H_
