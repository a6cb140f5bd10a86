#include "standin/nccl_windows.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/include/device_code.h"
#include "standin/include/nccl.h"
#include "standin/include/nccl_device.h"
#include "standin/memory.h"
#include "standin/nccl_calls.h"

namespace lockstep::standin {
namespace {

// Returns the starts of all windows' memory, of all ranks.
std::multiset<const void*>& WindowStarts()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  static auto& pointers = *new std::multiset<const void*>;
  return pointers;
}

// Returns the number of consecutive ranks that reach each other's memory. All
// such teams have the same size.
int LsaSize(const ncclComm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  const int reach = GlobalNcclState().faults.lsa_ranks;
  return reach <= 0 ? comm.world->size : std::gcd(reach, comm.world->size);
}

// Waits until every rank's host has made this call. Appends their calls to
// `all`.
ncclResult_t Meet(DeviceLock& lock, ncclComm& comm, const HostCall& call,
                  std::vector<HostCall>& all) {
  if (comm.finalized) return ncclInvalidUsage;
  const auto world = comm.world;
  const auto self = comm.self;
  std::map<int, HostCall>& met = world->host_calls[comm.host_calls++];
  met[comm.rank] = call;
  lock.WaitUntil([&] {
    return *self == nullptr || static_cast<int>(met.size()) == world->size;
  });
  if (*self == nullptr) return ncclInternalError;  // Aborted meanwhile.
  for (const auto& [rank, each] : met) {
    if (each.bytes != call.bytes) return ncclInvalidArgument;
    all.push_back(each);
  }
  return ncclSuccess;
}

}  // namespace

void DeleteWindow(ncclWindow_t window) {
  WindowStarts().erase(WindowStarts().find(window->peers[window->lsa_rank]));
  ForgetDeviceObject(window);
  delete window;
}

}  // namespace lockstep::standin

using lockstep::standin::DeviceLock;
using lockstep::standin::GlobalNcclState;
using lockstep::standin::HostCall;
using lockstep::standin::WindowStarts;

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return lockstep::standin::AllocateForWindows(pointer, bytes) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* pointer) {
  {
    const DeviceLock lock;
    if (WindowStarts().contains(pointer)) return ncclInvalidUsage;
  }
  return lockstep::standin::FreeForWindows(pointer) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                    ncclWindow_t* window, int flags) {
  *window = nullptr;
  if (flags != NCCL_WIN_DEFAULT || size == 0 ||
      reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0 ||
      !lockstep::standin::IsForWindows(buffer, size)) {
    return ncclInvalidArgument;
  }
  DeviceLock lock;
  std::vector<HostCall> all;
  const ncclResult_t result = lockstep::standin::Meet(
      lock, *comm, {.memory = static_cast<char*>(buffer), .bytes = size}, all);
  if (result != ncclSuccess || !GlobalNcclState().faults.windows) return result;
  const int lsa_size = lockstep::standin::LsaSize(*comm);
  auto made = std::make_unique<ncclWindow_vidmem>();
  made->bytes = size;
  made->lsa_rank = comm->rank % lsa_size;
  for (int i = 0; i < lsa_size; ++i) {
    made->peers.push_back(all[comm->rank - made->lsa_rank + i].memory);
  }
  if (!GlobalNcclState().faults.host_windows) {
    lockstep::standin::RecordDeviceObject(made.get(), sizeof(*made));
  }
  WindowStarts().insert(buffer);
  *window = made.release();
  comm->windows.insert(*window);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (window == nullptr) return ncclSuccess;
  const DeviceLock lock;
  comm->windows.erase(window);
  lockstep::standin::DeleteWindow(window);
  return ncclSuccess;
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
  const DeviceLock lock;
  const int size = lockstep::standin::LsaSize(*comm);
  return {.nRanks = size, .rank = comm->rank % size, .stride = 1};
}

void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer) {
  if (peer < 0 || peer >= static_cast<int>(window->peers.size()) ||
      offset > window->bytes) {
    lockstep::standin::EndInFault(
        "ncclGetLsaPointer of a peer or an offset that the window lacks");
  }
  return window->peers[peer] + offset;
}
