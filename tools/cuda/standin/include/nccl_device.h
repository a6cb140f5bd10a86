// The stand-in's side of NCCL's device API, for ranks that reach each other's
// memory. Names and meanings are those of NCCL 2.28; tools/cuda/README.md says
// what is modelled.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_

#include <nccl.h>

#include <cstddef>

struct ncclTeam {
  int nRanks, rank, stride;
};
using ncclTeam_t = ncclTeam;

// The ranks that reach each other's memory, this one among them.
ncclTeam_t ncclTeamLsa(ncclComm_t comm);

// Called by device threads alone. `peer` is a rank of ncclTeamLsa.
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer);

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_
