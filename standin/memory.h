// Device memory, and the memory of NCCL's windows. memory.cc also implements
// pinned memory and copies (include/cuda_runtime.h).
#ifndef LOCKSTEP_STANDIN_MEMORY_H_
#define LOCKSTEP_STANDIN_MEMORY_H_

#include <cstddef>

#include "standin/include/device_code.h"

namespace lockstep::standin {

// Returns whether the range lies in one allocation of device memory.
bool IsDeviceRange(const void* pointer, size_t bytes);

// Allocate, free and recognise device memory for NCCL's windows. Memory of
// cudaMalloc cannot be registered as a window.
cudaError_t AllocateForWindows(void** pointer, size_t bytes);
cudaError_t FreeForWindows(void* pointer);
bool IsForWindows(const void* pointer, size_t bytes);

// Records, until Forget, that an object of the stand-in counts as memory of the
// current device. The object must not be copied from or to.
void RecordDeviceObject(const void* object, size_t bytes);
void ForgetDeviceObject(const void* object);

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_MEMORY_H_
