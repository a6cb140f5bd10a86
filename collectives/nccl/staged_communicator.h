// Collectives of host memory that NCCL makes: for a trainer whose gradients are
// on the CPU, on hosts whose GPUs have the faster way to each other.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_STAGED_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_NCCL_STAGED_COMMUNICATOR_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// All of Communicator on host memory of any alignment: a call copies its input
// to the device, runs there, and copies its output back; it ends before it
// returns. The results are the device group's, order of additions included. The
// output is written only if the call succeeds.
//
// Cost, beside that of the device's call: the input over PCIe one way and the
// output the other, one after the other and not beside the call: some 25 GB/s
// of Allocate's memory over PCIe 4, and half of that of other, which the CUDA
// runtime copies through pinned memory of its own; two host waits; and device
// memory that grows to the largest call's input and output, and is kept.
class StagedCommunicator : public Communicator {
 public:
  // Takes a group of device memory, on the device that is current, where
  // NcclCommunicator::Create leaves it. stream: the group's
  // NcclOptions::stream. Errors: CudaStatus's.
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(
      std::unique_ptr<Communicator> device_group,
      cudaStream_t stream = nullptr);

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  // Errors: the device group's; of a rank that has no memory for a call every
  // rank is told.
  absl::Status Run(const Collective& call) override;
  // Pinned host memory, which is copied twice as fast. Errors: as Run's.
  absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) override;
  // As NcclCommunicator's, so that every rank must begin the calls of both
  // groups in one order: a trainer that reduces gradients on a thread beside
  // the one that runs SyncBatchNorm on the new group would wait for ever.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) override;

 private:
  StagedCommunicator(std::unique_ptr<Communicator> group, int device,
                     cudaStream_t stream)
      : group_(std::move(group)), device_(device), stream_(stream) {}

  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(
      int64_t bytes) const;
  // The same call of device memory, whose input is on its way there.
  absl::StatusOr<Collective> Stage(const Collective& call);

  DeviceMemory memory_;  // Outlives group_, whose calls use it to their end.
  int64_t capacity_ = 0;
  const std::unique_ptr<Communicator> group_;
  const int device_;
  const cudaStream_t stream_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_STAGED_COMMUNICATOR_H_
