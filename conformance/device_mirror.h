// Host memory with a copy on the device. The copy lets suites and mutants that
// look at memory run unchanged over parts that need device memory.
#ifndef LOCKSTEP_CONFORMANCE_DEVICE_MIRROR_H_
#define LOCKSTEP_CONFORMANCE_DEVICE_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "conformance/rank_bytes.h"

namespace lockstep::conformance {

// The mirrored memory of one rank, on the current device. A call is
//
//   mirror.Begin(); status = Call(mirror.DeviceCopy(buffer), ...);
//   return mirror.End(status);
//
// Begin copies all areas to the device. End waits for the device and copies all
// areas back. Writes of the device beside its buffers therefore show in host
// memory. Not thread safe.
class DeviceMirror {
 public:
  // Allocates an area: host memory, aligned to 256 bytes like its twin on the
  // device. group: if set, its Allocate makes the twin. The area may outlive
  // the mirror.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes, Communicator* group = nullptr);

  absl::Status Begin();
  // Returns the device's copy of the buffer, at the same offset in the twin.
  // For memory outside all areas, returns a temporary copy that lives until
  // End.
  Buffer DeviceCopy(const Buffer& buffer);
  ConstBuffer DeviceCopy(const ConstBuffer& buffer);
  // Waits for the device and copies back; may also be called in the middle of a
  // call. Errors: `status`, the device's, DeviceCopy's.
  absl::Status CopyBack(absl::Status status);
  // The same at the end of a call.
  absl::Status End(absl::Status status);

 private:
  struct Area {
    std::byte* host = nullptr;
    int64_t size = 0;
    std::shared_ptr<std::byte> device;
    bool is_read = false;  // Nothing is copied back.

    bool Has(const std::byte* data) const {
      return data >= host && data < host + size;
    }
  };

  std::byte* DeviceCopyOf(const std::byte* data, int64_t size, bool is_read);

  // Shared with the areas' owners: freeing an area removes it from the list.
  std::shared_ptr<std::list<Area>> areas_ = std::make_shared<std::list<Area>>();
  std::list<Area> copies_;  // Of this call.
  absl::Status status_;
};

// A group on host memory. An NCCL group makes its calls on the mirror's device
// memory, and Allocate returns mirrored areas. Each call has ended when it
// returns.
class MirroredCommunicator : public ForwardingCommunicator {
 public:
  explicit MirroredCommunicator(Communicator& device)
      : MirroredCommunicator(device, std::make_shared<DeviceMirror>()) {}

  const std::shared_ptr<DeviceMirror>& mirror() const { return mirror_; }
  // The NCCL group that makes the calls.
  Communicator& device() { return inner(); }

  absl::Status Run(const Collective& call) override;
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  // The new group has the same mirror.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  MirroredCommunicator(Communicator& device,
                       std::shared_ptr<DeviceMirror> mirror)
      : ForwardingCommunicator(device), mirror_(std::move(mirror)) {}

  std::unique_ptr<Communicator> owned_;  // From Split: the device's group.
  const std::shared_ptr<DeviceMirror> mirror_;
};

// Returns a runner of NCCL ranks, each with a MirroredCommunicator. Errors, on
// every rank: kInternal if the ranks share a GPU and NcclBackendName says
// otherwise, or the reverse. With kDirect, CheckIsDirect's error after the
// function, if that succeeded.
RankRunner MirroredNcclRanks(const NcclOptions& options);

// The same with a StagedCommunicator on each rank.
RankRunner StagedNcclRanks(const NcclOptions& options);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_DEVICE_MIRROR_H_
