#include "collectives/host/thread_group.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/group_member.h"
#include "collectives/host/host_communicator.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      SharedRegion created,
      SharedRegion::Create({world_size, options.slot_bytes}));
  const auto region = std::make_shared<SharedRegion>(std::move(created));
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank) {
    group.push_back(
        std::make_unique<HostCommunicator>(std::make_unique<GroupMember>(
            region, rank, options.timeout, /*watch=*/nullptr)));
  }
  return group;
}

}  // namespace lockstep
