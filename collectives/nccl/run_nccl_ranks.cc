#include "collectives/nccl/run_nccl_ranks.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/nccl/cuda_handles.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/testing/run_ranks.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "tools/cuda/standin/control.h"
#endif

namespace lockstep {
namespace {

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
// Devices of the stand-in: as many as the largest test has ranks.
constexpr int kStandinDevices = 8;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

// Negative: by rank.
constexpr int kByRank = -1;

absl::Status RunRank(Communicator& control, NcclOptions options,
                     const NcclRankFunction& fn) {
  if (options.device == kByRank) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.device, DeviceOfRank(control.rank()));
  }
  // A group of its own, since Create takes it over.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(0, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<NcclCommunicator> communicator,
      NcclCommunicator::Create(std::move(owned), options));
  return fn(*communicator);
}

}  // namespace

std::vector<absl::Status> RunNcclRanks(const std::vector<NcclOptions>& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::SetDeviceCount(kStandinDevices);
#endif
  RunRanksOptions run;
  run.group.timeout = control_timeout;
  // Ranks that share a GPU take tens of milliseconds for a call.
  run.deadline = absl::Minutes(10);
  return RunRanks(
      kBackend, static_cast<int>(options.size()),
      [&](Communicator& control) {
        return RunRank(control, options[static_cast<size_t>(control.rank())],
                       fn);
      },
      run);
}

std::vector<absl::Status> RunNcclRanks(int world_size,
                                       const NcclOptions& options,
                                       const NcclRankFunction& fn,
                                       absl::Duration control_timeout) {
  NcclOptions by_rank = options;
  by_rank.device = kByRank;
  return RunNcclRanks(
      std::vector<NcclOptions>(static_cast<size_t>(world_size), by_rank), fn,
      control_timeout);
}

}  // namespace lockstep
