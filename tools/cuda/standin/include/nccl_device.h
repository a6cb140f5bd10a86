// The stand-in's side of NCCL's device API, for ranks that reach each other's
// memory: windows, and barriers in kernels. Names and meanings are those of
// NCCL 2.28; tools/cuda/README.md says what is modelled.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tools/cuda/standin/device_code.h"

// As <cuda/atomic>, which NCCL's header includes, spells them.
namespace cuda {
using std::memory_order;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
}  // namespace cuda

namespace lockstep::standin {

struct DeviceComm;

void SyncPeers(DeviceComm& comm, uint32_t index, Site site);

}  // namespace lockstep::standin

struct ncclDevCommRequirements {
  bool lsaMultimem;  // Refused.
  int lsaBarrierCount;
};

// Passed to kernels by value.
struct ncclDevComm {
  int rank, nRanks;
  int lsaRank, lsaSize;
  lockstep::standin::DeviceComm* standin;
};

// Blocks until all ranks have called it.
ncclResult_t ncclDevCommCreate(ncclComm_t comm,
                               const ncclDevCommRequirements* requirements,
                               ncclDevComm* device_comm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm,
                                const ncclDevComm* device_comm);

// Called by device threads alone, as all that follows. `peer` is a rank in
// [0, lsaSize).
void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer);
void* ncclGetLocalPointer(ncclWindow_t window, size_t offset);

struct ncclTeamTagLsa {};

struct ncclCoopCta {
  int thread_rank() const { return static_cast<int>(threadIdx.x); }
  int size() const { return static_cast<int>(blockDim.x); }
  int num_threads() const { return size(); }
  void sync(lockstep::standin::Site site = {__builtin_FILE(),
                                            __builtin_LINE()}) {
    __syncthreads(site);
  }
};

template <typename Coop>
class ncclLsaBarrierSession;

// The threads of a block wait for those of the other ranks' blocks that have
// the barrier `index`. In the stand-in a kernel does so before anything else,
// has one block, and waits once: other kernels end in a fault, where that can
// be seen.
template <>
class ncclLsaBarrierSession<ncclCoopCta> {
 public:
  ncclLsaBarrierSession(ncclCoopCta, const ncclDevComm& comm, ncclTeamTagLsa,
                        uint32_t index, bool multimem = false)
      : comm_(comm), index_(multimem ? UINT32_MAX : index) {}
  ~ncclLsaBarrierSession() { __syncthreads(); }
  ncclLsaBarrierSession(const ncclLsaBarrierSession&) = delete;

  void sync(ncclCoopCta, cuda::memory_order,
            lockstep::standin::Site site = {__builtin_FILE(),
                                            __builtin_LINE()}) {
    lockstep::standin::SyncPeers(*comm_.standin, index_, site);
  }

 private:
  const ncclDevComm& comm_;
  const uint32_t index_;
};

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_NCCL_DEVICE_H_
