// The `mpi` backend: the ranks of a group are the processes of an MPI job, on
// one host or many. In programs that link this library, CreateGroup("mpi")
// calls JoinMpiGroup().
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep {

// Joins the group of all processes that mpirun or srun started together, with
// MPI's ranks. Starts MPI unless it runs. Returns once all have joined. All
// processes may call it again, for a further group. Groups are independent, and
// different threads may use different ones.
//
// Uses only memory and MPI. Every wait has options.timeout, joining and leaving
// included. MPI ends as the process exits (MpiRuntime).
//
// Errors: kFailedPrecondition outside an MPI job; kDeadlineExceeded if a
// process of the job does not join; kInvalidArgument for rank 0's options;
// kInternal for MPI's own. kResourceExhausted after about 2^29 groups. Split
// returns kResourceExhausted after one rank 0 has made 2^29 splits divided by
// the number of processes of the job.
absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(
    const GroupOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_GROUP_H_
