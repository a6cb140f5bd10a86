// Batch norm by its definition, in float64.
#include "syncbn/cuda/cudnn_standin/cudnn.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

struct cudnnTensorStruct {
  int64_t size() const { return int64_t{n} * c * hw; }
  int64_t values() const { return int64_t{n} * hw; }
  int64_t ChannelOf(int64_t i) const {
    return format == CUDNN_TENSOR_NCHW ? i / hw % c : i % c;
  }

  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0;
  int c = 0;
  int hw = 0;
};

namespace {

template <typename T>
T At(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(T),
              sizeof(T));
  return value;
}

template <typename T>
void Put(T value, void* data, int64_t i) {
  std::memcpy(static_cast<std::byte*>(data) + i * sizeof(T), &value, sizeof(T));
}

double Read(const cudnnTensorStruct& t, const void* data, int64_t i) {
  switch (t.type) {
    case CUDNN_DATA_HALF:
      return __half2float(At<__half>(data, i));
    case CUDNN_DATA_BFLOAT16:
      return __bfloat162float(At<__nv_bfloat16>(data, i));
    default:
      return At<float>(data, i);
  }
}

void Write(const cudnnTensorStruct& t, double value, void* data, int64_t i) {
  const float narrow = static_cast<float>(value);
  switch (t.type) {
    case CUDNN_DATA_HALF:
      return Put(__float2half_rn(narrow), data, i);
    case CUDNN_DATA_BFLOAT16:
      return Put(__float2bfloat16_rn(narrow), data, i);
    default:
      return Put(narrow, data, i);
  }
}

// Means over a channel's values.
template <typename Value>
std::vector<double> Means(const cudnnTensorStruct& t, Value value) {
  std::vector<double> sums(static_cast<size_t>(t.c));
  for (int64_t i = 0; i < t.size(); ++i) {
    sums[static_cast<size_t>(t.ChannelOf(i))] += value(i);
  }
  for (double& sum : sums) sum /= static_cast<double>(t.values());
  return sums;
}

void Blend(double factor, double batch, void* running, int64_t channel) {
  const double old = At<float>(running, channel);
  Put(static_cast<float>((1 - factor) * old + factor * batch), running,
      channel);
}

bool IsPlain(cudnnHandle_t handle, const void* alpha, const void* beta) {
  return cudaStreamSynchronize(handle->stream) == cudaSuccess &&
         At<float>(alpha, 0) == 1 && At<float>(beta, 0) == 0;
}

}  // namespace

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "a bad parameter";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  *descriptor = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c,
                                         int h, int w) {
  if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
  *descriptor = {format, type, n, c, h * w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived,
                                            cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t) {
  *derived = {CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, x->c, 1};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
    const void* beta, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t y_descriptor, void* y,
    cudnnTensorDescriptor_t channels, const void* scale, const void* bias,
    double factor, void* running_mean, void* running_variance, double epsilon,
    void* saved_mean, void* saved_inverse) {
  const cudnnTensorStruct& t = *x_descriptor;
  if (!IsPlain(handle, alpha, beta) || t.values() < 2) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const std::vector<double> mean =
      Means(t, [&](int64_t i) { return Read(t, x, i); });
  const std::vector<double> variance = Means(t, [&](int64_t i) {
    const double d = Read(t, x, i) - mean[static_cast<size_t>(t.ChannelOf(i))];
    return d * d;
  });
  const double n = static_cast<double>(t.values());
  std::vector<float> rounded[2];
  for (size_t k = 0; k < mean.size(); ++k) {
    const auto channel = static_cast<int64_t>(k);
    rounded[0].push_back(static_cast<float>(mean[k]));
    rounded[1].push_back(static_cast<float>(variance[k]));
    Put(rounded[0][k], saved_mean, channel);
    Put(static_cast<float>(1 / std::sqrt(variance[k] + epsilon)), saved_inverse,
        channel);
    if (running_mean == nullptr) continue;
    Blend(factor, mean[k], running_mean, channel);
    Blend(factor, variance[k] * n / (n - 1), running_variance, channel);
  }
  return cudnnBatchNormalizationForwardInference(
      handle, mode, alpha, beta, x_descriptor, x, y_descriptor, y, channels,
      scale, bias, rounded[0].data(), rounded[1].data(), epsilon);
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t, const void* alpha,
    const void* beta, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t, void* y, cudnnTensorDescriptor_t,
    const void* scale, const void* bias, const void* mean, const void* variance,
    double epsilon) {
  const cudnnTensorStruct& t = *x_descriptor;
  if (!IsPlain(handle, alpha, beta)) return CUDNN_STATUS_BAD_PARAM;
  for (int64_t i = 0; i < t.size(); ++i) {
    const int64_t k = t.ChannelOf(i);
    const double inverse = 1 / std::sqrt(At<float>(variance, k) + epsilon);
    Write(t,
          (Read(t, x, i) - At<float>(mean, k)) * inverse * At<float>(scale, k) +
              At<float>(bias, k),
          y, i);
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t, const void* alpha_data,
    const void* beta_data, const void* alpha_parameters,
    const void* beta_parameters, cudnnTensorDescriptor_t x_descriptor,
    const void* x, cudnnTensorDescriptor_t, const void* dy,
    cudnnTensorDescriptor_t, void* dx, cudnnTensorDescriptor_t,
    const void* scale, void* dscale, void* dbias, double,
    const void* saved_mean, const void* saved_inverse) {
  const cudnnTensorStruct& t = *x_descriptor;
  if (!IsPlain(handle, alpha_data, beta_data) ||
      !IsPlain(handle, alpha_parameters, beta_parameters)) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  const auto normalized = [&](int64_t i) {
    const int64_t k = t.ChannelOf(i);
    return (Read(t, x, i) - double{At<float>(saved_mean, k)}) *
           At<float>(saved_inverse, k);
  };
  const std::vector<double> g =
      Means(t, [&](int64_t i) { return Read(t, dy, i); });
  const std::vector<double> gx =
      Means(t, [&](int64_t i) { return Read(t, dy, i) * normalized(i); });
  const double n = static_cast<double>(t.values());
  for (int64_t i = 0; i < t.size(); ++i) {
    const int64_t channel = t.ChannelOf(i);
    const auto k = static_cast<size_t>(channel);
    Write(t,
          At<float>(scale, channel) * At<float>(saved_inverse, channel) *
              (Read(t, dy, i) - g[k] - normalized(i) * gx[k]),
          dx, i);
  }
  for (size_t k = 0; k < g.size(); ++k) {
    Put(static_cast<float>(n * gx[k]), dscale, static_cast<int64_t>(k));
    Put(static_cast<float>(n * g[k]), dbias, static_cast<int64_t>(k));
  }
  return CUDNN_STATUS_SUCCESS;
}
