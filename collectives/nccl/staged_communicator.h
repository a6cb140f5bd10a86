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
#include "collectives/pending_collective.h"

namespace lockstep {

// Supports all of Communicator on host memory of any alignment. A call copies
// its input to the device, runs there, and copies its output back, all before
// it returns. The results are the device group's, including the order of
// additions.
//
// Start only enqueues this if the device group enqueues, the input lies in
// memory from Allocate or other pinned memory, and the output too. (Otherwise
// CUDA copies the input through memory of its own, and the handle's Wait copies
// the output.) So one thread can start the calls of this group and make those
// of its parts (Split) in the program's order. Start waits for an earlier call
// if four are in progress.
//
// Cost, in addition to the device's call: two copies over PCIe, the input
// before and the output after the call, without overlap. Memory from Allocate
// is copied at some 25 GB/s over PCIe 4; other memory at half of that. Device
// memory grows to four times the largest call's input and output, and is kept.
class StagedCommunicator : public Communicator {
 public:
  // Takes a group on device memory. The group's device must be the current
  // device, as it is after NcclCommunicator::Create. stream: the group's
  // NcclOptions::stream. Errors: CudaStatus's.
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(
      std::unique_ptr<Communicator> device_group,
      cudaStream_t stream = nullptr);

  // Waits for calls that were started.
  ~StagedCommunicator() override;

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  // Errors: the device group's. If a rank has no memory for a call, every rank
  // gets its error.
  absl::Status Run(const Collective& call) override {
    return Start(call).Wait();
  }
  PendingCollective Start(const Collective& call) override;
  bool enqueues() const override { return group_->enqueues(); }
  // Allocates pinned host memory, which is copied twice as fast. Errors: as
  // Run's.
  absl::StatusOr<GroupBuffer> Allocate(
      int64_t bytes, CallSite site = CallSite::Here()) override;
  // Splits as NcclCommunicator does: every rank must begin the calls of both
  // groups in the same order, so one thread should begin them.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      int color, int key, CallSite site = CallSite::Here()) override;

 private:
  class InSlot;
  // The device memory of a call, its input and its output.
  struct Slot {
    DeviceMemory memory;
    int64_t capacity = 0;
    Event done;                    // After the copy of the output.
    std::shared_ptr<InSlot> call;  // The last call that used the slot,
    int64_t number = 0;            // and its number.
  };

  StagedCommunicator(std::unique_ptr<Communicator> group, int device,
                     cudaStream_t stream)
      : group_(std::move(group)), device_(device), stream_(stream) {}

  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(
      int64_t bytes) const;
  // Returns the same call on device memory, after starting the copy of its
  // input.
  absl::StatusOr<Collective> Stage(const Collective& call, Slot& slot);
  // Returns a slot whose call has ended. If there is none, waits for the oldest
  // call.
  Slot& TakeSlot();

  Slot slots_[4];  // Outlive group_, whose calls use them until they end.
  int64_t started_ = 0;
  const std::unique_ptr<Communicator> group_;
  const int device_;
  const cudaStream_t stream_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_STAGED_COMMUNICATOR_H_
