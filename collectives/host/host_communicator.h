// The Communicator of both host backends: ring algorithms over shared memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_transport.h"

namespace lockstep {

class HostCommunicator : public Communicator {
 public:
  explicit HostCommunicator(std::unique_ptr<GroupMember> member);

  int rank() const override { return member_->rank(); }
  int world_size() const override { return member_->world_size(); }
  absl::Status AllReduceSum(Buffer data) override;
  absl::Status Broadcast(std::span<std::byte> data, int root) override;
  absl::Status AllGather(std::span<const std::byte> input,
                         std::span<std::byte> output) override;
  absl::Status Barrier() override;

 private:
  absl::Status Finish(const absl::Status& status);

  std::unique_ptr<GroupMember> member_;
  SharedTransport transport_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_HOST_COMMUNICATOR_H_
