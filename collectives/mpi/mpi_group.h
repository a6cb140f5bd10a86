// The `mpi` backend: the ranks of a group are the processes of an MPI job, on
// one host or many. CreateGroup("mpi") is JoinMpiGroup() in programs that are
// linked with this.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep {

// Joins the group of all processes that mpirun or srun started together, with
// MPI's ranks; starts MPI if that has not been done. Returns once all have
// joined. May be called again, by all, for a group of its own. Groups are
// independent, and different threads may use different ones.
//
// Reads and writes nothing but memory and MPI; every wait has options.timeout,
// joining and leaving included. MPI ends as the process exits (MpiRuntime).
//
// Errors: kFailedPrecondition outside an MPI job; kDeadlineExceeded if a
// process of the job does not join; kInvalidArgument for rank 0's options;
// kResourceExhausted after about 2^29 groups, and from Split after 2^29 by
// one rank 0 divided by the processes of the job; kInternal for MPI's own.
absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_
