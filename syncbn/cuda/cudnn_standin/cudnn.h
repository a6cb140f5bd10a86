// A stand-in for the part of cuDNN that CudnnBatchNorm calls: names and
// meanings are cuDNN's, memory and streams those of the CUDA runtime's
// stand-in.
#ifndef LOCKSTEP_SYNCBN_CUDA_CUDNN_STANDIN_CUDNN_H_
#define LOCKSTEP_SYNCBN_CUDA_CUDNN_STANDIN_CUDNN_H_

#include <cuda_runtime.h>

struct cudnnContext;
using cudnnHandle_t = cudnnContext*;
struct cudnnTensorStruct;
using cudnnTensorDescriptor_t = cudnnTensorStruct*;

enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_BAD_PARAM = 2000,
};
enum cudnnDataType_t {
  CUDNN_DATA_FLOAT = 0,
  CUDNN_DATA_HALF = 2,
  CUDNN_DATA_BFLOAT16 = 9,
};
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 };
enum cudnnBatchNormMode_t { CUDNN_BATCHNORM_SPATIAL = 1 };

const char* cudnnGetErrorString(cudnnStatus_t status);

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
// Calls wait for what the stream holds, and are finished when they return.
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c,
                                         int h, int w);
cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived,
                                            cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t mode);

// All: alpha is 1 and beta 0; the descriptors of activations are one. Running
// statistics become (1 - factor) * running + factor * batch, of the unbiased
// variance, also where factor is 1.
cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
    const void* beta, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t y_descriptor, void* y,
    cudnnTensorDescriptor_t channels, const void* scale, const void* bias,
    double factor, void* running_mean, void* running_variance, double epsilon,
    void* saved_mean, void* saved_inverse);
cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha,
    const void* beta, cudnnTensorDescriptor_t x_descriptor, const void* x,
    cudnnTensorDescriptor_t y_descriptor, void* y,
    cudnnTensorDescriptor_t channels, const void* scale, const void* bias,
    const void* mean, const void* variance, double epsilon);
cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha_data,
    const void* beta_data, const void* alpha_parameters,
    const void* beta_parameters, cudnnTensorDescriptor_t x_descriptor,
    const void* x, cudnnTensorDescriptor_t dy_descriptor, const void* dy,
    cudnnTensorDescriptor_t dx_descriptor, void* dx,
    cudnnTensorDescriptor_t channels, const void* scale, void* dscale,
    void* dbias, double epsilon, const void* saved_mean,
    const void* saved_inverse);

#endif  // LOCKSTEP_SYNCBN_CUDA_CUDNN_STANDIN_CUDNN_H_
