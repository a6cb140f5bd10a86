// Devices, and owners of streams, events and device memory.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_CUDA_HANDLES_H_
#define LOCKSTEP_COLLECTIVES_NCCL_CUDA_HANDLES_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"

namespace lockstep {

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct FreeDeviceMemory {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};

// Destroying a stream or an event waits for nothing; freeing memory waits for
// the work of its device.
using Stream =
    std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using DeviceMemory = std::unique_ptr<std::byte, FreeDeviceMemory>;

// The device of a rank among those of its host: they are dealt out in turn.
// Errors: kNotFound where there is no GPU.
absl::StatusOr<int> DeviceOfRank(int local_rank);

// All of the current device. Errors: CudaStatus of what the runtime says.

// Does not wait for the default stream.
absl::StatusOr<Stream> MakeStream();
// Cannot be timed.
absl::StatusOr<Event> MakeEvent();
// Aligned to 256. Not set to anything.
absl::StatusOr<DeviceMemory> AllocateDeviceMemory(int64_t bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_CUDA_HANDLES_H_
