// The stand-in's side of NCCL's device API, for ranks that reach each other's
// memory. Names and meanings are those of NCCL 2.28; standin/README.md says
// what is modelled.
#ifndef LOCKSTEP_STANDIN_INCLUDE_NCCL_DEVICE_H_
#define LOCKSTEP_STANDIN_INCLUDE_NCCL_DEVICE_H_

#include <nccl.h>

#include <cstddef>

struct ncclTeam {
  int nRanks, rank, stride;
};
using ncclTeam_t = ncclTeam;

// Returns the team of the ranks that reach each other's memory, which includes
// this rank.
ncclTeam_t ncclTeamLsa(ncclComm_t comm);

// Returns the memory of rank `peer` of ncclTeamLsa, at `offset` of the window.
// Only device threads may call it.
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer);

#endif  // LOCKSTEP_STANDIN_INCLUDE_NCCL_DEVICE_H_
