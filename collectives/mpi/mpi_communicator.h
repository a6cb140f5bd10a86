// The Communicator of ranks that MPI connects.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/mpi/control_channel.h"
#include "collectives/mpi/mpi_runtime.h"

namespace lockstep {

class MpiCommunicator : public Communicator {
 public:
  // A group of all processes of the MPI job; returns once all have joined.
  // Errors: MpiMember::Introduce's, and kInvalidArgument for rank 0's settings.
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(
      MpiRuntime& runtime, const MpiIntroduction& self, absl::Duration timeout);

  // Leaves the group. What MPI may still write to is kept by the runtime.
  ~MpiCommunicator() override;

  int rank() const override;
  int world_size() const override;
  absl::Status Run(const Collective& call) override;

  // Plain memory of this process: ranks exchange messages, and do not reduce
  // from each other's memory.
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  class Group;

  MpiCommunicator(MpiRuntime& runtime, std::unique_ptr<Group> group);
  absl::Status RunWithAll(const Collective& call);
  absl::Status RunWithPartner(const Collective& call);
  absl::Status Finish(const absl::Status& status);
  absl::Status Enter(Operation operation, int64_t count, const CallSite& site);
  // The first rank whose `mine` is false; world_size() if none is.
  absl::StatusOr<int> FirstWithout(bool mine);
  std::unique_ptr<Group> Subgroup(const std::vector<int>& ranks,
                                  int64_t number) const;

  MpiRuntime& runtime_;
  std::unique_ptr<Group> group_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_COMMUNICATOR_H_
