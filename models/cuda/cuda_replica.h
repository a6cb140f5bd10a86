// A network on a GPU. A step only enqueues work: the host waits for the GPU
// where it reads numbers, and nowhere else.
#ifndef LOCKSTEP_MODELS_CUDA_CUDA_REPLICA_H_
#define LOCKSTEP_MODELS_CUDA_CUDA_REPLICA_H_

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/convolution.h"
#include "models/cuda/fused_attention.h"
#include "models/cuda/loss.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/optimizer.h"
#include "models/cuda/plan.h"
#include "models/cuda/product.h"
#include "models/cuda/step_numbers.h"
#include "models/cuda/weight_layout.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/optimizer.h"
#include "models/program/program.h"
#include "models/program/step_memory.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_status.h"

namespace lockstep {

struct CudaReplicaOptions {
  uint64_t seed = 0;  // The seed of the first weights.
  // The type of activations and of their gradients, or kTf32: float32, whose
  // products may round their factors to TF32. Parameters, their gradients, the
  // buffers, and all sums are float32 in any case. With a 16-bit type, products
  // read a copy of the parameters in that type, which each step makes first.
  // For kFloat16 the loss's gradient is scaled (loss_scale.h).
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  OptimizerOptions optimizer = {};             // Accepted by CheckOptimizer.
  float first_loss_scale = LossScale::kFirst;  // A power of two.
  // If false, no two buffers of a step share memory, which helps to find
  // faults.
  bool share_memory = true;
};

// One replica, on one GPU and one stream. Not thread safe. The calling thread's
// current device must be the stream's.
class CudaReplica {
 public:
  // Creates the replica with its first weights. Borrows the stream. Errors: the
  // network's status; kInvalidArgument for a network that does not end in one
  // value per class; those of CUDA, cuDNN and cuBLASLt.
  static absl::StatusOr<std::unique_ptr<CudaReplica>> Create(
      Network network, cudaStream_t stream,
      const CudaReplicaOptions& options = {});

  // Waits for the stream.
  ~CudaReplica();

  const Network& network() const { return network_; }

  // The parameters, their gradients and the float32 buffers are in device
  // memory, in the GPU's order (weight_layout.h). Names and shapes are the
  // network's; each parameter begins at a multiple of 64 bytes. Gaps between
  // gradients are 0. The counters of the buffers are in host memory.
  Parameters& parameters() { return parameters_; }
  Buffers& buffers() { return buffers_; }

  // Upload copies the host's parameters and buffers of this network to the GPU,
  // and Download copies them back, without the gradients. The other functions
  // copy one part. The host's objects are in the host's order. All wait for the
  // stream.
  absl::Status Upload(const Parameters& parameters, const Buffers& buffers);
  absl::Status Download(Parameters& parameters, Buffers& buffers);
  absl::Status UploadBuffers(const Buffers& buffers);
  absl::Status DownloadBuffers(Buffers& buffers);
  absl::Status DownloadGradients(Parameters& parameters);
  // Copy the optimizer's state to the GPU and back. The host's arrays are in
  // the order of the network's parameters, as those of Optimizer. Both wait for
  // the stream. Error of UploadOptimizer: kInvalidArgument for a state of
  // another optimizer or network.
  absl::Status UploadOptimizer(const OptimizerState& state);
  absl::StatusOr<OptimizerState> DownloadOptimizer();
  // Returns float16's loss scale and the number of skipped steps. Waits for the
  // stream. For other types: LossScale().
  absl::StatusOr<LossScale> DownloadLossScale();

  // Does what Model::ConvertSyncBatchNorm does. The group takes device memory,
  // and its calls are made on this stream.
  int ConvertSyncBatchNorm(Communicator& group);

  // Enqueues a training step: overwrites the gradients with those of
  // gradient_scale * (sum of the batch's losses), and for float16 * the loss
  // scale, until EnqueueUpdate or DownloadGradients. Updates the buffers, and
  // adds the batch's loss to the metrics. The batch is device memory, which
  // must not change before the stream has reached the end of the step. The
  // images are aligned to 16 bytes; a label out of range makes the loss NaN.
  // Calls `ready` for each parameter once the work that computes its gradient
  // is enqueued. The first step of a batch size makes its plans, and waits for
  // the stream if the memory has to grow; with more than eight sizes plans are
  // made again. Errors: kInvalidArgument for sizes that do not match, and for
  // images that are not aligned; those of CUDA, cuDNN, cuBLASLt and the group.
  absl::Status Enqueue(const DeviceBatch& batch, float gradient_scale,
                       Model::GradientReady ready);

  // Enqueues the forward pass of an evaluation, which changes no buffer, and
  // adds the batch's loss to the metrics.
  absl::Status EnqueueEvaluation(const DeviceBatch& batch);

  // Waits for the stream; returns the sums over all batches since the last
  // call.
  absl::StatusOr<Metrics> TakeMetrics();

  // Takes a step alone on this number of samples, so that later steps of as
  // many neither plan, allocate nor load kernels. Changes gradients and
  // buffers, but no parameter and no metrics. Waits for the stream. copy: on
  // this GPU, not in use; may be used again afterwards. Errors: those of
  // Enqueue.
  absl::Status WarmUp(int64_t samples, BatchCopy& copy);

  // Enqueues the optimizer's step at numbers->learning_rate for all parameters,
  // in the order of roundings of models/optimizer.h. numbers: device memory,
  // until the stream has reached the end of the update. For float16 the
  // gradients are first divided by the loss scale. If one of them is not
  // finite, neither a parameter nor the optimizer's state changes: the step is
  // skipped. Then the next loss scale is chosen. Ranks that call this with the
  // same gradients decide alike.
  absl::Status EnqueueUpdate(const StepNumbers* numbers);

  // The optimizer's arrays, by StateNames and each of the size and order of
  // parameters().values(), and its count of steps: device memory. For plain SGD
  // there are none.
  std::vector<std::span<float>> optimizer_arrays();
  std::span<int64_t> optimizer_steps();

  // Does what the first step of n samples does besides its work on the stream:
  // makes the plans and room for them. Errors: as for Enqueue.
  absl::Status Plan(int64_t n);

  // Returns the owner of everything that the enqueued work of training steps of
  // n samples uses, besides the batch and this object: a graph that has
  // captured a step keeps it. Call it after such a step or Plan.
  std::shared_ptr<const void> WorkOf(int64_t n) const;

 private:
  CudaReplica(Network network, cudaStream_t stream,
              const CudaReplicaOptions& options);

  absl::Status AllocateTensors(const CudaReplicaOptions& options);
  absl::Status AllocateOptimizer(int64_t count);
  absl::Status OpenLibraries();
  // Checks the sizes and the alignment, but not the labels.
  absl::Status CheckOnDevice(const Batch& batch) const;
  void ClearPrograms();
  absl::StatusOr<Program*> Prepare(int64_t n, bool training);
  absl::StatusOr<Program> MakeProgram(int64_t n);
  // Return the bytes of the losses of n samples, and of 16-bit images, which
  // begin memory_.
  static int64_t LossBytes(int64_t n) { return AlignedBytes(n * 16); }
  int64_t ImageBytes(int64_t n) const;
  Program::Operands OperandsOf(const Batch& batch) const;
  // Enqueues the rounding of the parameters and the images to a 16-bit type of
  // activations. Does nothing for float32.
  absl::Status RoundInputs(const Batch& batch);
  LossScale* loss_scale() const {
    return reinterpret_cast<LossScale*>(loss_scale_.get());
  }
  DeviceOptimizerStep* optimizer_step() const {
    return reinterpret_cast<DeviceOptimizerStep*>(optimizer_step_.get());
  }
  // Divides the gradients by the loss scale, unless that is done.
  absl::Status Unscale();
  // Enqueues the optimizer's step on the gradients as they are.
  absl::Status Update(const float* learning_rate);
  // Prepares the step and enqueues the forward pass.
  absl::StatusOr<Program*> Forward(const Batch& batch, bool training);
  absl::Status EnqueueLoss(const Batch& batch, float gradient_scale,
                           const Program& program, bool training);
  absl::Status Copy(std::span<float> device, std::span<const float> host);
  absl::Status CopyBack(std::span<const float> device, std::span<float> host);
  // Waits for the copy of all parameters' values or gradients, and calls
  // store(index, part) for each parameter's part in the GPU's order.
  template <typename Store>
  absl::Status CopyParameters(std::span<const float> device,
                              const Store& store);

  const Network network_;
  const cudaStream_t stream_;
  const bool share_memory_;
  const OptimizerOptions optimizer_;
  const std::vector<WeightLayout> layouts_;
  Parameters parameters_;
  Buffers buffers_;
  CudnnOwner<cudnnHandle_t> cudnn_;
  CublasLtOwner<cublasLtHandle_t> cublas_;
  std::unique_ptr<CudnnDevice> card_;
  FusedAttentionPlans attention_plans_;
  std::unique_ptr<CudaBatchNormKernels> batch_norm_kernels_;
  CudaPlanContext context_;
  std::map<int64_t, std::shared_ptr<Program>> programs_;  // By batch size.
  const StepNumbers* numbers_ = nullptr;  // Of the step that is enqueued.
  DeviceMemory metrics_;                  // One DeviceMetrics.
  DeviceMemory loss_scale_;  // One LossScale; null: the type is not float16.
  DeviceMemory optimizer_step_;  // One DeviceOptimizerStep; null: plain SGD.
  // By StateNames, each with an element for each of the parameters' values.
  std::vector<DeviceMemory> optimizer_arrays_;
  // Whether the gradients hold the loss scale as a factor.
  bool gradients_are_scaled_ = false;
  DeviceMemory rounded_;  // The parameters in a 16-bit type; null: none.
  // The losses of samples, 16-bit images, then a program's memory.
  std::shared_ptr<std::byte> memory_;
  int64_t memory_bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CUDA_REPLICA_H_
