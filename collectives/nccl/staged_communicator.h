// Collectives of host memory that run on NCCL: for a trainer whose gradients
// are on the CPU, on hosts whose GPUs have the faster connection.
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

// Supports all of Communicator on host memory of any alignment. A call copies
// its input to the device, runs there, and copies its output back, all before
// it returns. The results are the device group's, including the order of
// additions. The output is written only if the call succeeds.
//
// Cost, in addition to the device's call: two copies over PCIe, the input
// before and the output after the call, without overlap. Memory from Allocate
// is copied at some 25 GB/s over PCIe 4; other memory at half of that, since
// the CUDA runtime copies it through pinned memory of its own. Each call has
// two host waits. Device memory grows to the largest call's input and output,
// and is kept.
class StagedCommunicator : public Communicator {
 public:
  // Takes a group on device memory. The group's device must be the current
  // device, as it is after NcclCommunicator::Create. stream: the group's
  // NcclOptions::stream. Errors: CudaStatus's.
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(
      std::unique_ptr<Communicator> device_group,
      cudaStream_t stream = nullptr);

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  // Errors: the device group's. If a rank has no memory for a call, every rank
  // gets its error.
  absl::Status Run(const Collective& call) override;
  // Allocates pinned host memory, which is copied twice as fast. Errors: as
  // Run's.
  absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) override;
  // Splits as NcclCommunicator does: every rank must begin the calls of both
  // groups in the same order. A trainer that reduces gradients on one thread,
  // and runs SyncBatchNorm on the new group on another thread, would wait
  // without end.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) override;

 private:
  StagedCommunicator(std::unique_ptr<Communicator> group, int device,
                     cudaStream_t stream)
      : group_(std::move(group)), device_(device), stream_(stream) {}

  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(
      int64_t bytes) const;
  // Returns the same call on device memory, after starting the copy of its
  // input.
  absl::StatusOr<Collective> Stage(const Collective& call);

  DeviceMemory memory_;  // Outlives group_, whose calls use it until they end.
  int64_t capacity_ = 0;
  const std::unique_ptr<Communicator> group_;
  const int device_;
  const cudaStream_t stream_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_STAGED_COMMUNICATOR_H_
