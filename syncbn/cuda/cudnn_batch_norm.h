// Local batch norm through cuDNN.
#ifndef LOCKSTEP_SYNCBN_CUDA_CUDNN_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_CUDA_CUDNN_BATCH_NORM_H_

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_status.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {

// A BatchNorm of this rank's own batch, against which SyncBatchNorm is
// measured. All memory is the device's.
//
// cuDNN computes the plain case: no ReLU and no residual, y not over x, dx not
// over dy, at least two values per channel and at most 2^31 - 1 elements. It
// computes forward in training and in evaluation, and backward in training. Our
// kernels compute all other cases. If cuDNN does not support a case for a type,
// the layer returns kUnimplemented, as it does for Layout::kNchw16c.
//
// cuDNN is called as PyTorch calls it in training: the Ex functions, with a
// workspace and with a reserve that backward gets as forward left it. The mode
// is CUDNN_BATCHNORM_SPATIAL_PERSISTENT for channels last and
// CUDNN_BATCHNORM_SPATIAL otherwise, as in evaluation. The layer keeps a
// reserve for each memory that it was given as `saved`, until the layer is
// destroyed. cuDNN warns that the persistent mode may overflow on large values.
// For bfloat16, PyTorch up to about 2.4 does not call cuDNN but its own
// kernels, so for that type this is not PyTorch's batch norm.
//
// Not thread safe. The calling thread's current device must be the stream's.
class CudnnBatchNorm : public BatchNorm {
 public:
  // Borrows `kernels` and enqueues all work on its stream. Errors: those of
  // CheckBatchNormOptions; CudaStatus and cuDNN's.
  static absl::StatusOr<std::unique_ptr<CudnnBatchNorm>> Create(
      const BatchNormOptions& options, CudaBatchNormKernels& kernels);

  // Waits for the stream, which uses this layer's memory.
  ~CudnnBatchNorm() override;

  int64_t SavedBytes(DataType type) const override;
  absl::Status Forward(const ForwardBuffers& buffers) override;
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> gradients_ready) override;

 private:
  CudnnBatchNorm(const BatchNormOptions& options, CudaBatchNormKernels& kernels)
      : options_(options), kernels_(kernels) {}

  // [c] floats each of this layer's memory: ones, zeros, and two to write to.
  float* Ones() const { return reinterpret_cast<float*>(memory_.get()); }
  float* Zeros() const { return Ones() + options_.channels; }
  float* Scratch() const { return Zeros() + options_.channels; }
  size_t ScratchBytes() const {
    return 2 * static_cast<size_t>(options_.channels) * sizeof(float);
  }

  // Memory that grows.
  struct Space {
    DeviceMemory memory;
    size_t bytes = 0;
  };
  // The last forward pass in training with one `saved`.
  struct Trained {
    bool by_cudnn = false;
    ActivationShape shape = {};
    DataType type = DataType::kFloat32;
    Space reserve = {};
  };

  absl::Status FillMemory();
  // Describes the activations. mode: the mode of the channels' descriptor.
  absl::Status Describe(const ActivationShape& shape, DataType type,
                        cudnnBatchNormMode_t mode);
  // Makes the workspace and the reserve large enough for both passes over the
  // described activations. Allocates memory if they are too small, which may
  // wait for the device.
  absl::Status Reserve(cudnnBatchNormMode_t mode, Space& reserve);
  absl::Status Train(const ForwardBuffers& buffers);
  absl::Status Infer(const ForwardBuffers& buffers);
  absl::Status BackwardByKernels(const BackwardBuffers& buffers,
                                 absl::FunctionRef<void()> gradients_ready);

  const BatchNormOptions options_;
  CudaBatchNormKernels& kernels_;
  CudnnOwner<cudnnHandle_t> cudnn_;
  CudnnOwner<cudnnTensorDescriptor_t> activations_, channels_;
  DeviceMemory memory_;
  Space workspace_;
  std::map<const void*, Trained> trained_;       // Keyed by `saved`.
  std::unique_ptr<SyncBatchNorm> kernel_layer_;  // For the other cases.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDNN_BATCH_NORM_H_
