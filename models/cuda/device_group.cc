#include "models/cuda/device_group.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// Copies, and waits for the stream.
absl::Status CopyAndWait(void* to, const void* from, size_t bytes,
                         cudaMemcpyKind kind, cudaStream_t stream) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync"));
  return CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace

absl::Status DeviceGroup::CopyIn(const Collective& call, Collective& on_host) {
  input_.resize(static_cast<size_t>(call.input.size_bytes()));
  output_.resize(static_cast<size_t>(call.output.size_bytes()));
  on_host.input.data = input_.data();
  on_host.output.data = output_.data();
  if (input_.empty()) return absl::OkStatus();
  return CopyAndWait(input_.data(), call.input.data, input_.size(),
                     cudaMemcpyDeviceToHost, stream_);
}

absl::Status DeviceGroup::Run(const Collective& call) {
  Collective on_host = call;
  if (const absl::Status copied = CopyIn(call, on_host); !copied.ok()) {
    return inner().Run(Collective::Refused(call.operation, copied, call.site));
  }
  // In place on the device is out of place on the host, except for a broadcast,
  // which has one buffer.
  if (call.operation == Operation::kBroadcast) {
    on_host.output.data = input_.data();
  }
  LOCKSTEP_RETURN_IF_ERROR(inner().Run(on_host));
  if (output_.empty()) return absl::OkStatus();
  return CopyAndWait(call.output.data, on_host.output.data, output_.size(),
                     cudaMemcpyHostToDevice, stream_);
}

}  // namespace lockstep
