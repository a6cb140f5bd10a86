// The `mpi` backend.
#include "collectives/mpi/mpi_group.h"

#include <memory>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/mpi/mpi_communicator.h"
#include "collectives/mpi/mpi_introduction.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(MpiRuntime* const runtime,
                            MpiRuntime::Start(options.timeout));
  return MpiCommunicator::Join(*runtime, IntroduceSelf(options),
                               options.timeout);
}

}  // namespace lockstep
