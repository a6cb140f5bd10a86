// A rank of the mpi backend, for the command `allreduce`:
// allreduce_rank_mpi LISTENER ALGORITHM, started by mpirun.
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_group.h"

namespace lockstep::benchmarks {
namespace {

absl::Status Run(const std::string& listener, const char* name) {
  const std::optional<Algorithm> algorithm = ParseAlgorithm(name);
  if (!algorithm)
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not an algorithm"));
  GroupOptions options = {.algorithm = *algorithm};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinMpiGroup(options));
  return ServeGroup(listener, *communicator);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  using namespace lockstep::benchmarks;
  return RankMain(argc, argv, 3, [argv] { return Run(argv[1], argv[2]); });
}
