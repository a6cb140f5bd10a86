// The stand-in's CUDA types, its launches of kernels, and its device code: the
// keywords, the built-in variables and the barrier. A wait records its source
// line, so that threads waiting in different places are told apart.
#ifndef LOCKSTEP_STANDIN_INCLUDE_DEVICE_CODE_H_
#define LOCKSTEP_STANDIN_INCLUDE_DEVICE_CODE_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#define LOCKSTEP_CUDA_STANDIN 1

// The types of the CUDA runtime that the project needs, with CUDA's names and
// error numbers.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
};

enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeMode = 20,
  cudaDevAttrL2CacheSize = 38,
};

enum cudaComputeMode {
  cudaComputeModeDefault = 0,
  cudaComputeModeExclusiveProcess = 3,
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaEventRecordDefault = 0;
inline constexpr unsigned cudaEventRecordExternal = 1;
inline constexpr unsigned long long cudaGraphInstantiateFlagUseNodePriority = 8;

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int multiProcessorCount;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
};

enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  size_t localSizeBytes;
  int maxThreadsPerBlock;
  int numRegs;
};

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

struct uint3 {
  unsigned x, y, z;
};

struct float2 {
  float x, y;
};

inline float2 make_float2(float x, float y) { return {x, y}; }

struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
      : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}

  unsigned x, y, z;
};

struct cudaLaunchAttribute;  // No attribute is modelled.

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;  // Must be 0: no kernel here uses dynamic memory.
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace lockstep::standin {

// Limits of a launch: those of every GPU since compute capability 7.0.
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kMaxBlockZ = 64;
inline constexpr int kMaxGridX = 0x7fffffff;
inline constexpr int kMaxGridYz = 65535;

// Puts a launch on its stream: `thread` runs once for each thread of each
// block. One kernel runs at a time, on the host thread that made it possible.
// If the stream is idle, that is the calling thread, before Launch returns.
//
// Returns the error of a bad configuration. If threads wait for threads that
// never arrive, the kernel has a fault: the launch ends, standard error
// describes it, and the next call that waits returns the error.
cudaError_t Launch(const cudaLaunchConfig_t& config,
                   std::function<void()> thread);

// The place in the source where a device thread waits.
struct Site {
  const char* file;
  int line;
};

// Waits for all threads of the block. Only device threads may call it.
void SyncThreads(Site site);

// Waits for all threads of the block, and until the `is_ready` of each of them
// returns true. Only device threads may call it. `is_ready` reads memory that
// the host, other kernels or other blocks write.
//
// Meanwhile other blocks and kernels run, so shared memory, which all blocks
// have in common here, does not keep its contents over the wait. The code
// before a launch's first wait must bear running twice: only then is the launch
// moved to a thread on which its blocks can be suspended.
void WaitForMemory(std::function<bool()> is_ready, Site site);

// Loads a word of pinned host memory, and counts the load (control.h).
int LoadPinned(const volatile int* from);

// Ends the kernel in a fault. Only device threads may call it.
[[noreturn]] void EndInFault(std::string what);

// Returns x * y + z of 16-bit floats, in float32, rounded to odd. Rounding this
// result to 16 bits gives the same number as rounding the exact result.
inline float FmaToOdd(float x, float y, float z) {
  const double product = double{x} * y;  // Exact.
  const double sum = product + z;
  const double z_part = sum - product;
  const double lost = (product - (sum - z_part)) + (z - z_part);
  const float result = static_cast<float>(sum);
  const double rest = (sum - result) + lost;
  if (!(rest < 0 || rest > 0) || std::bit_cast<uint32_t>(result) % 2 == 1) {
    return result;  // Exact, odd, infinite or NaN.
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return std::nextafter(result, rest > 0 ? kInfinity : -kInfinity);
}

}  // namespace lockstep::standin

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
// Blocks run one after the other, so one copy serves all of them. The copy is
// not thread-local, so that AddressSanitizer puts red zones around it.
#define __shared__ static

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

// Empty: kernels and blocks run one after the other, in program order.
inline void __threadfence() {}
inline void __threadfence_system() {}

// Operations that the compiler must not fuse, each rounded to nearest.
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __dsub_rn(double x, double y) { return x - y; }

// Adds one to a counter, or sets it to 0 if it has reached `last`. Returns the
// value before. One device thread runs at a time, and calls end before the next
// thread runs.
inline unsigned atomicInc(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}

inline void __syncthreads(::lockstep::standin::Site site = {__builtin_FILE(),
                                                            __builtin_LINE()}) {
  lockstep::standin::SyncThreads(site);
}

#endif  // LOCKSTEP_STANDIN_INCLUDE_DEVICE_CODE_H_
