// How ranks become an NCCL group: what they tell each other before there is a
// communicator.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_SETUP_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_SETUP_H_

#include <nccl.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithm.h"
#include "collectives/nccl/peers.h"

namespace lockstep {

// What rank 0 decides for the group. Travels as bytes.
struct NcclSetup {
  ncclUniqueId id = {};
  Algorithm algorithm = Algorithm::kAuto;
  int32_t nccl_arithmetic = 0;
  int64_t chunk_bytes = 0;
  int32_t check_calls = 1;
};

// Whether any two ranks share a GPU. If so, sets the variables of the
// environment that NCCL then needs, where they are not set yet. Every rank
// calls it, before any other call of NCCL. `own`: whether this rank could begin
// at all; its error is then every rank's. Errors: PlanGpuSharing's, CUDA's,
// those of Peers::Share.
absl::StatusOr<bool> ShareGpus(Peers& peers, int device,
                               const absl::Status& own);

// Fills in the unique id on rank 0 and gives every rank rank 0's setup.
absl::Status ExchangeSetup(Peers& peers, NcclSetup& setup);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_SETUP_H_
