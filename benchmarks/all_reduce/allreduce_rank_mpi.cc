// A rank of the mpi backend, for the command `allreduce`:
// allreduce_rank_mpi LISTENER ALGORITHM, started by mpirun.
#include <cstdio>
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

absl::Status Run(const std::string& listener, Algorithm algorithm) {
  GroupOptions options = {.algorithm = algorithm};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinMpiGroup(options));
  return ServeGroup(listener, *communicator);
}

int Main(int argc, char** argv) {
  const std::optional<Algorithm> algorithm =
      argc == 3 ? ParseAlgorithm(argv[2]) : std::nullopt;
  if (!algorithm.has_value()) {
    std::fprintf(stderr, "allreduce_rank_mpi is for allreduce to run\n");
    return 2;
  }
  const absl::Status status = Run(argv[1], *algorithm);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::benchmarks::Main(argc, argv);
}
