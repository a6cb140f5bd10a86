// Several ranks on one GPU: whether there are, and what NCCL must be told.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// Where a rank runs.
struct RankPlace {
  std::array<char, 16> gpu_uuid = {};
  uint64_t host = 0;     // The same for ranks of one host, else different.
  uint64_t process = 0;  // The same for ranks of one process of a host.
};

struct EnvironmentVariable {
  std::string name;
  std::string value;

  friend bool operator==(const EnvironmentVariable&,
                         const EnvironmentVariable&) = default;
};

struct GpuSharing {
  bool shared = false;  // Whether any two ranks have one GPU.
  // What `rank` sets before its process's first call of NCCL, unless it is set
  // already. Empty if not shared.
  std::vector<EnvironmentVariable> environment = {};
};

// A function of its arguments alone; `shared` and errors are the same for every
// rank. ranks: in rank order. nccl_version: as ncclGetVersion gives it.
//
// Before 2.30 NCCL refuses two ranks with one GPU on one host, so every process
// calls itself a host (NCCL_HOSTID), which talk over the loopback interface if
// they are really one. From 2.30 on it can be asked to allow it.
// Error: kFailedPrecondition if two ranks share a GPU and a process, and NCCL
// is older than 2.30: one process has one NCCL_HOSTID.
absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankPlace> ranks,
                                          int rank, int nccl_version);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_SHARING_H_
