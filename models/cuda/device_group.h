// Collectives of a GPU's memory over a group of host memory.
#ifndef LOCKSTEP_MODELS_CUDA_DEVICE_GROUP_H_
#define LOCKSTEP_MODELS_CUDA_DEVICE_GROUP_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Passes every call on to a group of host memory. Buffers are device memory;
// each call waits for the stream and copies them through the host. The bits are
// those of the host's group. For ranks without NCCL. Not thread safe.
class DeviceGroup : public ForwardingCommunicator {
 public:
  // Borrows the group and the stream.
  DeviceGroup(Communicator& host_group, cudaStream_t stream)
      : ForwardingCommunicator(host_group), stream_(stream) {}

  // Errors: the group's; those of the copies, which the other ranks receive
  // too.
  absl::Status Run(const Collective& call) override;

 private:
  absl::Status CopyIn(const Collective& call, Collective& on_host);

  const cudaStream_t stream_;
  std::vector<std::byte> input_, output_;  // On the host.
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_DEVICE_GROUP_H_
