// Runs a function on every rank of an MPI job, for tests.
#ifndef LOCKSTEP_COLLECTIVES_MPI_TESTING_MPIRUN_H_
#define LOCKSTEP_COLLECTIVES_MPI_TESTING_MPIRUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"

namespace lockstep {

// Why no MPI job can be started here; empty if one can. For GTEST_SKIP.
std::string WhyNoMpirun();

// As RunRanks (collectives/testing/run_ranks.h), for the mpi backend: `fn` runs
// once on each of `world_size` ranks, and what each returned is returned, in
// rank order.
//
// To be called from the body of a test. A function cannot be handed to another
// program, so mpirun starts this test binary on every rank, filtered to the
// test that is running, and the same call there runs `fn`, writes down what it
// returned and exits. So the body up to the call runs on every rank as well: it
// must come to the same calls. Several calls in one body are fine; on a rank,
// those before the one that it is to run return OK, and no bytes.
// What `fn` writes to memory, its test assertions included, is lost: return it.
//
// When a rank dies the others go on (mpirun --enable-recovery).
//
// Cost: about half a second. Leaves nothing behind: all that Open MPI writes is
// in a temporary folder of this call's, which is removed.
std::vector<absl::Status> RunMpiRanks(
    int world_size, const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// The same, and hands each rank's bytes to the caller.
std::vector<absl::StatusOr<std::string>> RunMpiRanksCollect(
    int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_TESTING_MPIRUN_H_
