// Host memory with a copy of it on the device, so that suites and mutants that
// look at memory run unchanged over parts that want the device's.
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

// Of one rank, on the device that is current. A call is
//
//   mirror.Begin(); status = Call(mirror.Twin(buffer), ...);
//   return mirror.End(status);
//
// Begin copies all areas to the device, and End, once the device is done, all
// of them back: so what the device wrote beside its buffers shows in the host's
// memory. Not thread safe.
class DeviceMirror {
 public:
  // An area: host memory, aligned to 256 as its twin is. group: whose Allocate
  // makes the twin. It may outlive the mirror.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes, Communicator* group = nullptr);

  absl::Status Begin();
  // The device's copy, at the same place in the twin; of memory in no area a
  // copy of its own, until End.
  Buffer Twin(const Buffer& buffer);
  ConstBuffer Twin(const ConstBuffer& buffer);
  // Waits and copies, also in the middle of a call. Errors: `status`, the
  // device's, Twin's.
  absl::Status CopyBack(absl::Status status);
  // The same at its end.
  absl::Status End(absl::Status status);

 private:
  struct Area {
    std::byte* host = nullptr;
    int64_t size = 0;
    std::shared_ptr<std::byte> device;
    bool is_read = false;  // Nothing comes back.

    bool Has(const std::byte* data) const {
      return data >= host && data < host + size;
    }
  };

  std::byte* TwinOf(const std::byte* data, int64_t size, bool is_read);

  // Shared with the areas' owners, who leave it.
  std::shared_ptr<std::list<Area>> areas_ = std::make_shared<std::list<Area>>();
  std::list<Area> copies_;  // Of this call.
  absl::Status status_;
};

// A group on host memory whose calls an NCCL group makes on the mirror's:
// Allocate gives areas. Each call ends before it returns.
class MirroredCommunicator : public ForwardingCommunicator {
 public:
  explicit MirroredCommunicator(Communicator& device)
      : MirroredCommunicator(device, std::make_shared<DeviceMirror>()) {}

  const std::shared_ptr<DeviceMirror>& mirror() const { return mirror_; }
  // The group that makes the calls.
  Communicator& device() { return inner(); }

  absl::Status Run(const Collective& call) override;
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  // With the same mirror.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  MirroredCommunicator(Communicator& device,
                       std::shared_ptr<DeviceMirror> mirror)
      : ForwardingCommunicator(device), mirror_(std::move(mirror)) {}

  std::unique_ptr<Communicator> owned_;  // By what Split made: the device's.
  const std::shared_ptr<DeviceMirror> mirror_;
};

// Runs ranks of NCCL, each with a MirroredCommunicator. Errors, of every rank:
// kInternal if ranks share a GPU otherwise than NcclBackendName says.
RankRunner MirroredNcclRanks(const NcclOptions& options);

// The same with a StagedCommunicator on each.
RankRunner StagedNcclRanks(const NcclOptions& options);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_DEVICE_MIRROR_H_
