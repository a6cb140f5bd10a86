// What NCCL's stand-in can be made to do wrong.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_FAULTS_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_FAULTS_H_

#include <cstdint>

#include "tools/cuda/standin/include/nccl.h"

namespace lockstep::standin {

// What happens to data on its way.
enum class Damage {
  kNone,
  kLostTail,      // The last 8 bytes of a rank's data (all, if it has fewer) do
                  // not arrive.
  kSwappedParts,  // The halves of it change places.
};

struct NcclFaults {
  // What ncclGetVersion says, as 10000 major + 100 minor + patch.
  int version = 22809;
  // This rank's operations never start: -1 for none.
  int stalled_rank = -1;
  // From its operation number `error_from` on, ncclCommGetAsyncError gives this
  // rank `error`. -1 for none. An operation is a call, or a group of calls.
  int failing_rank = -1;
  int64_t error_from = 0;
  ncclResult_t error = ncclSuccess;
  Damage damage = Damage::kNone;
};

// Not while another thread uses NCCL.
void SetNcclFaults(const NcclFaults& faults);

// Communicators that were neither aborted nor destroyed.
int LiveNcclCommunicators();

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_NCCL_FAULTS_H_
