// Dynamic shared memory, named so that a kernel compiles with nvcc and on the
// stand-in runtime.
#ifndef LOCKSTEP_TOOLS_CUDA_DYNAMIC_SHARED_H_
#define LOCKSTEP_TOOLS_CUDA_DYNAMIC_SHARED_H_

#include <cuda_runtime.h>  // Of the target that includes this.

// Declares `T* name` in a kernel: the block's dynamic shared memory, aligned to
// 16 bytes, of the size that the launch gave (dynamicSmemBytes). Every use in
// one kernel names the same memory.
#ifdef LOCKSTEP_CUDA_STANDIN
#define LOCKSTEP_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::lockstep::standin::DynamicShared())
#else
#define LOCKSTEP_DYNAMIC_SHARED(T, name)                           \
  extern __shared__ __align__(16) unsigned char lockstep_shared[]; \
  T* const name = reinterpret_cast<T*>(lockstep_shared)
#endif

#endif  // LOCKSTEP_TOOLS_CUDA_DYNAMIC_SHARED_H_
