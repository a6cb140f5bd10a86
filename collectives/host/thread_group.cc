#include "collectives/host/thread_group.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_communicator.h"
#include "collectives/host/shared_region.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      SharedRegion created,
      SharedRegion::Create(
          {world_size, options.slot_bytes, options.algorithm}));
  const auto region = std::make_shared<SharedRegion>(std::move(created));
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank) {
    group.push_back(std::make_unique<HostCommunicator>(
        region, rank, options.timeout, std::vector<ProcessIdentity>()));
  }
  return group;
}

}  // namespace lockstep
