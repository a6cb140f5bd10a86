// A stand-in for the CUDA runtime: .cu files that include <cuda_runtime.h>
// compile for the host and run there, in tests without a GPU. Names and
// meanings are the CUDA runtime's; standin/README.md says what is modelled.
#ifndef LOCKSTEP_STANDIN_INCLUDE_CUDA_RUNTIME_H_
#define LOCKSTEP_STANDIN_INCLUDE_CUDA_RUNTIME_H_

#ifdef CUDART_VERSION
#error "the CUDA runtime and its stand-in are in one translation unit"
#endif

#include <cstddef>
#include <tuple>
#include <utility>

#include "standin/include/device_code.h"

cudaError_t cudaGetLastError();  // This thread's error; clears it.
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

// There is one device, number 0, unless a test sets more (control.h). Every
// device can access all memory.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device);
cudaError_t cudaDeviceSynchronize();

// Device memory is heap memory, so AddressSanitizer sees overruns and use after
// free. Fresh memory is filled with bytes 0xff: NaN in every floating-point
// type.
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
// Pinned host memory is heap memory too, aligned to 256 bytes and filled with
// 0xff bytes.
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
// The type is cudaMemoryTypeDevice, cudaMemoryTypeHost for pinned memory, or
// cudaMemoryTypeUnregistered.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                     const void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind);
// Host memory that is not pinned is read, or has been written, before
// cudaMemcpyAsync returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t stream = nullptr);

// The work of a call on a stream is finished when the call returns, with three
// exceptions: work behind a wait for an event of another stream; work behind an
// NCCL operation that waits for other ranks; and work that a test holds back
// (control.h). The default stream is the legacy one of the current device. The
// default stream and the device's streams without cudaStreamNonBlocking wait
// for each other.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
// Streams of higher priority (the lower number) run first. Priorities are
// clamped to the range from 0 to -5.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags = 0);

// While a stream is captured, the work put on it is recorded: kernels, copies,
// memsets, events and groups of NCCL's stand-in. Calls that CUDA forbids during
// a capture fail with CUDA's error and invalidate the capture.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status);
// Counts the nodes; `nodes` must be null. An NCCL group is one node. Events are
// not nodes, unless they are recorded with cudaEventRecordExternal.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                              size_t* count);
// flags: cudaGraphInstantiateFlagUseNodePriority gives each node the priority
// of its stream; otherwise all have that of the stream of the launch.
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags = 0);
// The nodes run in an order that the recorded waits allow. The schedule
// (control.h) chooses among these orders. A launch waits for the previous
// launch of the same executable graph.
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
// With cudaEventRecordExternal the record is a node of the stream's capture,
// and each replay records the event. Without a capture this flag is an error.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                 cudaEvent_t end);

template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}

template <typename T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}

// Needs no loading: all kernels are loaded from the start.
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = lockstep::standin::kMaxThreadsPerBlock;
  return cudaSuccess;
}

// Runs the kernel before it returns, if nothing on the stream waits. As on a
// GPU, a fault in the kernel is the error of the next call that waits.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<Parameters...> copies(std::forward<Arguments>(arguments)...);
  return lockstep::standin::Launch(
      *config, [kernel, copies] { std::apply(kernel, copies); });
}

#endif  // LOCKSTEP_STANDIN_INCLUDE_CUDA_RUNTIME_H_
