// Runs a function on every rank of an MPI job, for tests.
#ifndef LOCKSTEP_COLLECTIVES_MPI_RUN_MPI_RANKS_H_
#define LOCKSTEP_COLLECTIVES_MPI_RUN_MPI_RANKS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"

namespace lockstep {

// Returns why no MPI job can be started here; empty if one can. For GTEST_SKIP.
std::string WhyNoMpirun();

// Runs `fn` once on each of `world_size` ranks of the mpi backend, like
// RunRanks (collectives/testing/run_ranks.h). Returns the results in rank
// order.
//
// Call it from the body of a test. A function cannot be passed to another
// program. Therefore mpirun starts this test binary on every rank, filtered to
// the running test. There the same call runs `fn`, writes its result to a file
// and exits. The body up to the call thus runs on every rank as well, and must
// make the same calls. Several calls in one body are allowed; on a rank,
// earlier calls return OK and no bytes. The memory that `fn` writes is lost,
// including test assertions: return results.
//
// When a rank dies, the others go on (mpirun --enable-recovery).
//
// Cost: about half a second. Leaves nothing behind: Open MPI writes all of its
// files to a temporary folder of this call, which is removed.
std::vector<absl::Status> RunMpiRanks(
    int world_size, const std::function<absl::Status(Communicator&)>& fn,
    const RunRanksOptions& options = {});

// Runs `fn` in the same way and returns each rank's bytes.
std::vector<absl::StatusOr<std::string>> RunMpiRanksCollect(
    int world_size,
    const std::function<absl::StatusOr<std::string>(Communicator&)>& fn,
    const RunRanksOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_RUN_MPI_RANKS_H_
