// Several ranks on one GPU: whether NCCL can do that, and which of its settings
// it needs.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace lockstep {

// The GPU, host and process of a rank.
struct RankLocation {
  // MIG slices of one GPU have their own UUIDs, but its bus, by which NCCL
  // tells GPUs apart.
  std::array<char, 16> gpu_uuid = {};
  uint64_t gpu_bus = 0;    // The PCI domain, bus and device.
  bool exclusive = false;  // The compute mode allows one process only.
  uint64_t host = 0;       // Equal only for ranks on one host.
  uint64_t process = 0;    // Equal only for ranks in one process of a host.
};

struct GpuSharing {
  bool shared = false;  // Whether any two ranks share a GPU.
  // Variables that `rank` must set, unless they are set already, before its
  // process's first call of NCCL.
  std::map<std::string, std::string> environment = {};
};

// Returns NCCL's settings, which depend only on the arguments; `shared` and
// errors are the same on every rank. ranks: in rank order. nccl_version: as
// ncclGetVersion returns it.
//
// NCCL launches the kernels of all communicators of a process on one GPU in the
// order in which they were called (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26 on).
// The exception are ranks that are threads of one process and share a GPU: the
// kernels of one of them would wait for those of the other, which were not
// launched.
//
// Before 2.30, NCCL rejects two ranks with one GPU on one host. Every process
// therefore poses as a host of its own (NCCL_HOSTID); if all are really on one
// host, they communicate over the loopback interface. From 2.30 on, a variable
// makes NCCL allow sharing. Errors: kFailedPrecondition if two ranks share a
// GPU and a process, and NCCL is older than 2.30, since one process has one
// NCCL_HOSTID; and if two processes share a GPU whose compute mode forbids
// that.
absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankLocation> ranks,
                                          int rank, int nccl_version);

// Sets environment variables of this process that are not set already. Ranks
// that are threads of one process may call it at once.
absl::Status SetNcclEnvironment(
    const std::map<std::string, std::string>& variables);

// Returns whether any two ranks share a GPU. Sets the environment variables
// that NCCL needs. Every rank must call it, before any other NCCL call.
// `own`: this rank's status so far; if it is an error, every rank gets it.
// Errors: PlanGpuSharing's, CUDA's, those of ShareStatus; kFailedPrecondition
// if threads share a GPU and the environment makes NCCL order launches.
absl::StatusOr<bool> ShareGpus(Communicator& control, int device,
                               const absl::Status& own);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_
