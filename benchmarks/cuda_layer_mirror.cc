// One allocation for each part.
#include "benchmarks/cuda_layer_mirror.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

namespace lockstep {

absl::Status CudaLayerMirror::Add(std::span<float> host) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DeviceMemory device,
      AllocateDeviceMemory(static_cast<int64_t>(host.size_bytes())));
  parts_.push_back({.host = host, .device = std::move(device)});
  return absl::OkStatus();
}

void* CudaLayerMirror::Of(const float* host) const {
  for (const Part& part : parts_) {
    if (part.host.data() == host) return part.device.get();
  }
  return nullptr;
}

absl::Status CudaLayerMirror::Upload() {
  for (const Part& part : parts_) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(part.device.get(), part.host.data(),
                                   part.host.size_bytes(),
                                   cudaMemcpyHostToDevice, stream_),
                   "copying a layer's tensors to the GPU"));
  }
  return CudaStatus(cudaStreamSynchronize(stream_),
                    "copying a layer's tensors to the GPU");
}

absl::Status CudaLayerMirror::Download() {
  for (const Part& part : parts_) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(part.host.data(), part.device.get(),
                                   part.host.size_bytes(),
                                   cudaMemcpyDeviceToHost, stream_),
                   "copying a layer's tensors from the GPU"));
  }
  return CudaStatus(cudaStreamSynchronize(stream_),
                    "copying a layer's tensors from the GPU");
}

}  // namespace lockstep
