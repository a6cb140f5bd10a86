// A stand-in for the older functions of cuDNN that CudnnBatchNorm calls, and
// for the graph API that cudnn_graph.h declares. Names and meanings are
// cuDNN's. Memory and streams are those of the CUDA runtime's stand-in. Batch
// norm is computed from its definition, in float64. Its calls wait for the work
// of the stream and are finished when they return.
#ifndef LOCKSTEP_STANDIN_CUDNN_CUDNN_H_
#define LOCKSTEP_STANDIN_CUDNN_CUDNN_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"
#include "standin/elements.h"

enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 };
enum cudnnBatchNormMode_t {
  CUDNN_BATCHNORM_SPATIAL = 1,
  CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2,
};
enum cudnnBatchNormOps_t { CUDNN_BATCHNORM_OPS_BN = 0 };
using cudnnActivationDescriptor_t = struct cudnnActivationStruct*;  // Null.

// The calls that enqueue work. Tests read and clear this list.
struct cudnnStandinCall {
  const char* name;
  cudnnBatchNormMode_t mode;
  size_t workspace = 0;  // Bytes that the caller gave.
  size_t reserve = 0;
};
inline std::vector<cudnnStandinCall>& cudnnStandinCalls() {
  static std::vector<cudnnStandinCall> calls;
  return calls;
}

// Waits for the stream. Accepts only alpha = 1 and beta = 0, which all calls
// here pass.
inline bool cudnnStandinAccepts(cudnnHandle_t handle, const void* alpha,
                                const void* beta) {
  return cudaStreamSynchronize(handle->stream) == cudaSuccess &&
         *static_cast<const float*>(alpha) == 1 &&
         *static_cast<const float*>(beta) == 0;
}

struct cudnnTensorStruct {
  int64_t size() const { return int64_t{n} * c * hw; }
  int64_t values() const { return int64_t{n} * hw; }
  int64_t ChannelOf(int64_t i) const {
    return format == CUDNN_TENSOR_NCHW ? i / hw % c : i % c;
  }
  double Read(const void* data, int64_t i) const {
    return lockstep::standin::ReadElement(
        lockstep::standin::cudnn::TypeOf(type), data, i);
  }
  void Write(double value, void* data, int64_t i) const {
    lockstep::standin::WriteElement(lockstep::standin::cudnn::TypeOf(type),
                                    value, data, i);
  }
  // Returns the mean of each channel's values.
  template <typename Value>
  std::vector<double> Means(Value value) const {
    std::vector<double> sums(static_cast<size_t>(c));
    for (int64_t i = 0; i < size(); ++i) {
      sums[static_cast<size_t>(ChannelOf(i))] += value(i);
    }
    for (double& sum : sums) sum /= static_cast<double>(values());
    return sums;
  }

  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0;
  int c = 0;
  int hw = 0;
  // The mode of a derived descriptor.
  cudnnBatchNormMode_t mode = CUDNN_BATCHNORM_SPATIAL;
};
using cudnnTensorDescriptor_t = cudnnTensorStruct*;

inline cudnnStatus_t cudnnCreateTensorDescriptor(
    cudnnTensorDescriptor_t* descriptor) {
  *descriptor = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t cudnnDestroyTensorDescriptor(
    cudnnTensorDescriptor_t descriptor) {
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t cudnnSetTensor4dDescriptor(
    cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
    cudnnDataType_t type, int n, int c, int h, int w) {
  if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  *descriptor = {format, type, n, c, h * w, CUDNN_BATCHNORM_SPATIAL};
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t cudnnDeriveBNTensorDescriptor(
    cudnnTensorDescriptor_t derived, cudnnTensorDescriptor_t x,
    cudnnBatchNormMode_t mode) {
  *derived = {CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, x->c, 1, mode};
  return CUDNN_STATUS_SUCCESS;
}

// Returns the size of the memory of the Ex calls; the stand-in checks that the
// caller gave this much. Forward stores its batch in the reserve, where
// backward looks for it. The workspace is overwritten.
inline size_t cudnnStandinSize(cudnnBatchNormMode_t mode, int c,
                               bool backward) {
  return 64u * static_cast<size_t>(mode) +
         (backward ? 16u : 8u) * static_cast<size_t>(c);
}
struct cudnnStandinReserve {
  cudnnTensorStruct t;
  const void* x;
};

inline cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t,
    cudnnTensorDescriptor_t t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
    cudnnTensorDescriptor_t, cudnnActivationDescriptor_t, size_t* bytes) {
  *bytes = cudnnStandinSize(mode, t->c, /*backward=*/false);
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t,
    cudnnTensorDescriptor_t t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
    cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
    cudnnActivationDescriptor_t, size_t* bytes) {
  *bytes = cudnnStandinSize(mode, t->c, /*backward=*/true);
  return CUDNN_STATUS_SUCCESS;
}

inline cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t,
    cudnnActivationDescriptor_t, cudnnTensorDescriptor_t, size_t* bytes) {
  *bytes = sizeof(cudnnStandinReserve);
  return CUDNN_STATUS_SUCCESS;
}

// All calls: alpha is 1 and beta is 0; the descriptors of all activations are
// the same.
inline cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
    const void* beta, cudnnTensorDescriptor_t t, const void* x,
    cudnnTensorDescriptor_t, void* y, cudnnTensorDescriptor_t channels,
    const void* scale, const void* bias, const void* mean, const void* variance,
    double epsilon) {
  if (!cudnnStandinAccepts(handle, alpha, beta)) return CUDNN_STATUS_BAD_PARAM;
  cudnnStandinCalls().push_back({"Inference", mode});
  for (int64_t i = 0; i < t->size(); ++i) {
    const int64_t k = t->ChannelOf(i);
    const double inverse = 1 / std::sqrt(channels->Read(variance, k) + epsilon);
    t->Write((t->Read(x, i) - channels->Read(mean, k)) * inverse *
                     channels->Read(scale, k) +
                 channels->Read(bias, k),
             y, i);
  }
  return CUDNN_STATUS_SUCCESS;
}

// Running statistics become (1 - factor) * running + factor * batch, with the
// unbiased variance, even if factor is 1.
inline cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t,
    const void* alpha, const void* beta, cudnnTensorDescriptor_t t,
    const void* x, cudnnTensorDescriptor_t, const void* z,
    cudnnTensorDescriptor_t y_descriptor, void* y,
    cudnnTensorDescriptor_t channels, const void* scale, const void* bias,
    double factor, void* running_mean, void* running_variance, double epsilon,
    void* saved_mean, void* saved_inverse, cudnnActivationDescriptor_t,
    void* workspace, size_t workspace_bytes, void* reserve,
    size_t reserve_bytes) {
  const size_t needed = cudnnStandinSize(mode, t->c, /*backward=*/false);
  if (!cudnnStandinAccepts(handle, alpha, beta) || t->values() < 2 ||
      z != nullptr || channels->mode != mode || workspace_bytes < needed ||
      reserve_bytes < sizeof(cudnnStandinReserve)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  std::memset(workspace, 0xab, needed);
  *static_cast<cudnnStandinReserve*>(reserve) = {*t, x};
  const std::vector<double> mean =
      t->Means([&](int64_t i) { return t->Read(x, i); });
  const std::vector<double> variance = t->Means([&](int64_t i) {
    const double d = t->Read(x, i) - mean[static_cast<size_t>(t->ChannelOf(i))];
    return d * d;
  });
  const double n = static_cast<double>(t->values());
  const auto blend = [&](double batch, void* running, int64_t k) {
    channels->Write((1 - factor) * channels->Read(running, k) + factor * batch,
                    running, k);
  };
  for (int64_t k = 0; k < t->c; ++k) {
    const auto at = static_cast<size_t>(k);
    channels->Write(mean[at], saved_mean, k);
    channels->Write(1 / std::sqrt(variance[at] + epsilon), saved_inverse, k);
    if (running_mean == nullptr) continue;
    blend(mean[at], running_mean, k);
    blend(variance[at] * n / (n - 1), running_variance, k);
  }
  const std::vector<float> narrow_variance(variance.begin(), variance.end());
  const cudnnStatus_t status = cudnnBatchNormalizationForwardInference(
      handle, mode, alpha, beta, t, x, y_descriptor, y, channels, scale, bias,
      saved_mean, narrow_variance.data(), epsilon);
  cudnnStandinCalls().back() = {"ForwardTrainingEx", mode, workspace_bytes,
                                reserve_bytes};
  return status;
}

inline cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t,
    const void* alpha_data, const void* beta_data, const void* alpha_parameters,
    const void* beta_parameters, cudnnTensorDescriptor_t t, const void* x,
    cudnnTensorDescriptor_t, const void*, cudnnTensorDescriptor_t,
    const void* dy, cudnnTensorDescriptor_t, void* dz, cudnnTensorDescriptor_t,
    void* dx, cudnnTensorDescriptor_t channels, const void* scale, const void*,
    void* dscale, void* dbias, double, const void* saved_mean,
    const void* saved_inverse, cudnnActivationDescriptor_t, void* workspace,
    size_t workspace_bytes, void* reserve, size_t reserve_bytes) {
  const size_t needed = cudnnStandinSize(mode, t->c, /*backward=*/true);
  if (!cudnnStandinAccepts(handle, alpha_data, beta_data) ||
      !cudnnStandinAccepts(handle, alpha_parameters, beta_parameters) ||
      dz != nullptr || channels->mode != mode || workspace_bytes < needed ||
      reserve_bytes < sizeof(cudnnStandinReserve)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  std::memset(workspace, 0xab, needed);
  const auto* const left = static_cast<const cudnnStandinReserve*>(reserve);
  if (left->x != x || left->t.format != t->format || left->t.type != t->type ||
      left->t.n != t->n || left->t.c != t->c || left->t.hw != t->hw) {
    return CUDNN_STATUS_BAD_PARAM;  // The reserve is of another batch.
  }
  cudnnStandinCalls().push_back(
      {"BackwardEx", mode, workspace_bytes, reserve_bytes});
  const auto normalized = [&](int64_t i) {
    const int64_t k = t->ChannelOf(i);
    return (t->Read(x, i) - channels->Read(saved_mean, k)) *
           channels->Read(saved_inverse, k);
  };
  const std::vector<double> g =
      t->Means([&](int64_t i) { return t->Read(dy, i); });
  const std::vector<double> gx =
      t->Means([&](int64_t i) { return t->Read(dy, i) * normalized(i); });
  for (int64_t i = 0; i < t->size(); ++i) {
    const int64_t channel = t->ChannelOf(i);
    const auto k = static_cast<size_t>(channel);
    t->Write(channels->Read(scale, channel) *
                 channels->Read(saved_inverse, channel) *
                 (t->Read(dy, i) - g[k] - normalized(i) * gx[k]),
             dx, i);
  }
  const double n = static_cast<double>(t->values());
  for (int64_t k = 0; k < t->c; ++k) {
    channels->Write(n * gx[static_cast<size_t>(k)], dscale, k);
    channels->Write(n * g[static_cast<size_t>(k)], dbias, k);
  }
  return CUDNN_STATUS_SUCCESS;
}

#endif  // LOCKSTEP_STANDIN_CUDNN_CUDNN_H_
