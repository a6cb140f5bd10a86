// NCCL's stand-in: communicators, groups, faults, and the calls. The device's
// lock (device.h) guards all state.
#include "standin/include/nccl.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/memory.h"
#include "standin/nccl_calls.h"
#include "standin/nccl_windows.h"
#include "standin/queue.h"
#include "standin/runtime.h"

namespace lockstep::standin {
namespace {

struct Call {
  ncclComm_t comm;
  cudaStream_t stream;
  NcclOperation operation;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local const char* last_error = "stand-in";

// The content of a unique id.
struct IdContent {
  uint64_t number;
  pid_t process;  // Of the rank that made the id.
};

bool IsOn(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

// Returns whether two ranks use one device although NCCL was not told to allow
// it.
bool HasForbiddenSharing(const World& world)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  if (GlobalNcclState().faults.version >= 23000 &&
      IsOn("NCCL_MULTI_RANK_GPU_ENABLE")) {
    return false;
  }
  for (int a = 0; a < world.size; ++a) {
    for (int b = 0; b < a; ++b) {
      if (world.devices[a] == world.devices[b]) return true;
    }
  }
  return false;
}

// Returns the work of a batch that is now on its stream. The communicator waits
// for the batch when it is finalized, and withdraws it when it is aborted.
Work TrackBatchAndMakeWork(ncclComm& comm, const std::shared_ptr<Batch>& batch)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  const NcclFaults& faults = GlobalNcclState().faults;
  std::erase_if(comm.submitted, [](auto& each) { return each.expired(); });
  comm.submitted.push_back(batch);
  ++comm.batches;
  batch->damage = faults.damage;
  if (comm.orders_launches) {
    std::weak_ptr<Batch>& last =
        GlobalNcclState().last_batches[comm.world->devices[comm.rank]];
    batch->earlier = std::exchange(last, batch);
  }
  const bool stalled = faults.stalled_rank == comm.rank;
  const int64_t ready_at = faults.late_rank == comm.rank
                               ? Device::Get().polls() + faults.late_polls
                               : 0;
  return [batch, stalled, ready_at] {
    const std::shared_ptr<Batch> earlier = batch->earlier.lock();
    if (!batch->aborted && !batch->started && !stalled &&
        Device::Get().polls() >= ready_at &&
        (earlier == nullptr || earlier->has_ended())) {
      Start(*batch);
    }
    return batch->has_ended();
  };
}

// Makes the work of one run of a batch. Its collectives get their numbers now.
Work MakeBatchWork(ncclComm* comm, const Batch& asked)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  if (comm == nullptr) {
    SetFault("a graph calls an NCCL communicator that is gone");
    return [] { return true; };
  }
  const auto batch = std::make_shared<Batch>(asked);
  for (const NcclOperation& operation : batch->operations) {
    const bool is_message = operation.call == NcclCall::kSend ||
                            operation.call == NcclCall::kReceive;
    batch->numbers.push_back(is_message ? -1 : comm->collectives++);
  }
  return TrackBatchAndMakeWork(*comm, batch);
}

// Puts a batch on its stream.
ncclResult_t Submit(const DeviceLock& lock, ncclComm& comm, const Batch& batch)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  const auto make = [self = comm.self, batch]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                        device_mutex) { return MakeBatchWork(*self, batch); };
  return Put(lock, batch.stream, make) == cudaSuccess ? ncclSuccess
                                                      : ncclUnhandledCudaError;
}

// Waits until no call of the communicator is on a stream or in a graph.
ncclResult_t Finalize(DeviceLock& lock, ncclComm& comm)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
  if (comm.finalized) return ncclSuccess;
  Count(&CallCounts::host_waits);
  for (const std::weak_ptr<Batch>& weak : comm.submitted) {
    const std::shared_ptr<Batch> batch = weak.lock();
    if (batch == nullptr) continue;
    CUstream_st* const stream = lock->Find(batch->stream);
    if (stream != nullptr) lock->Release(*stream);
  }
  const auto self = comm.self;
  const auto in_graphs = [&] { return self.use_count() - 2; };
  const auto done = [&] {
    if (*self == nullptr) return true;  // Aborted by another thread.
    std::erase_if(comm.submitted, [](auto& each) { return each.expired(); });
    return comm.submitted.empty() && in_graphs() == 0;
  };
  if (!lock.WaitUntil(done, GlobalNcclState().faults.finalize_limit)) {
    std::fprintf(
        stderr,
        "stand-in NCCL: rank %d's ncclCommFinalize waits for ever: for "
        "%d groups on streams, and for graphs with %d of its groups to "
        "be destroyed\n",
        comm.rank, static_cast<int>(comm.submitted.size()),
        static_cast<int>(in_graphs()));
    return ncclInternalError;
  }
  if (*self == nullptr) return ncclInternalError;
  comm.finalized = true;
  return ncclSuccess;
}

// Returns the errors of a call that can be found at once.
ncclResult_t Check(const ncclComm& comm, const NcclOperation& operation,
                   cudaStream_t stream) {
  const int size = comm.world->size;
  const size_t sent = SentBytes(operation, comm.rank, size);
  const size_t received = ReceivedBytes(operation, comm.rank, size);
  if (SizeOf(operation.type) == 0 || operation.peer < 0 ||
      operation.peer >= size || !IsStream(stream) ||
      (sent > 0 && !IsDeviceRange(operation.send, sent)) ||
      (received > 0 && !IsDeviceRange(operation.receive, received))) {
    return ncclInvalidArgument;
  }
  // NCCL launches its kernels on the communicator's device.
  return DeviceOfStream(stream) == comm.world->devices[comm.rank]
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

// Puts the group's calls on their streams, as one batch for each communicator
// and run of calls on one stream.
ncclResult_t EndGroup() {
  Count(&CallCounts::groups);
  const DeviceLock lock;
  std::map<ncclComm*, std::vector<Batch>> asked;
  for (const Call& call : std::exchange(group, {})) {
    std::vector<Batch>& batches = asked[call.comm];
    if (batches.empty() || batches.back().stream != call.stream) {
      batches.push_back(Batch{call.comm->world, call.comm->rank, call.stream});
    }
    batches.back().operations.push_back(call.operation);
  }
  ncclResult_t result = ncclSuccess;
  for (const auto& [comm, batches] : asked) {
    for (const Batch& batch : batches) {
      const ncclResult_t of_batch = Submit(lock, *comm, batch);
      if (of_batch != ncclSuccess) result = of_batch;
    }
  }
  return result;
}

ncclResult_t Enter(ncclComm_t comm, cudaStream_t stream,
                   const NcclOperation& operation) {
  {
    const DeviceLock lock;
    if (comm->finalized) return ncclInvalidUsage;
  }
  const ncclResult_t result = Check(*comm, operation, stream);
  if (result != ncclSuccess) return result;
  if (operation.count == 0 && operation.call != NcclCall::kSend &&
      operation.call != NcclCall::kReceive) {
    return ncclSuccess;
  }
  group.push_back({comm, stream, operation});
  return group_depth > 0 ? ncclSuccess : EndGroup();
}

}  // namespace

void SetNcclFaults(const NcclFaults& faults) {
  const DeviceLock lock;
  GlobalNcclState().faults = faults;
}

int LiveNcclCommunicators() {
  const DeviceLock lock;
  return GlobalNcclState().live;
}

}  // namespace lockstep::standin

using lockstep::standin::Batch;
using lockstep::standin::CallCounts;
using lockstep::standin::Count;
using lockstep::standin::DeviceLock;
using lockstep::standin::Enter;
using lockstep::standin::GlobalNcclState;
using lockstep::standin::IdContent;
using lockstep::standin::last_error;
using lockstep::standin::NcclCall;
using lockstep::standin::World;

ncclResult_t ncclGetVersion(int* version) {
  const DeviceLock lock;
  *version = GlobalNcclState().faults.version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const DeviceLock lock;
  *id = {};
  const IdContent content = {.number = ++GlobalNcclState().ids,
                             .process = getpid()};
  std::memcpy(id->internal, &content, sizeof(content));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  if (result >= ncclSuccess && result <= ncclInProgress) return kTexts[result];
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (config == nullptr || size < 1 || rank < 0 || rank >= size ||
      (config->blocking != 1 && config->blocking != NCCL_CONFIG_UNDEF_INT)) {
    return ncclInvalidArgument;
  }
  IdContent content;
  std::memcpy(&content, id.internal, sizeof(content));
  if (content.process != getpid()) {
    last_error = "the stand-in's ranks must be threads of one process";
    return ncclInvalidUsage;
  }
  DeviceLock lock;
  if (GlobalNcclState().faults.stalled_init_rank == rank) {
    lock.WaitForHosts([] { return false; });
  }
  if (GlobalNcclState().faults.failing_init_rank == rank) {
    return ncclSystemError;
  }
  std::shared_ptr<World>& world = GlobalNcclState().worlds[content.number];
  if (world == nullptr) {
    world = std::make_shared<World>(
        World{.size = size, .devices = std::vector<int>(size, -1)});
  }
  if (world->size != size || world->devices[rank] >= 0) {
    return ncclInvalidUsage;
  }
  world->devices[rank] = lockstep::standin::CurrentDevice();
  lock.WaitForHosts([&world] {
    return std::ranges::all_of(world->devices,
                               [](int each) { return each >= 0; });
  });
  if (lockstep::standin::HasForbiddenSharing(*world)) return ncclInvalidUsage;
  *comm = new ncclComm(world, rank,
                       lockstep::standin::IsOn("NCCL_LAUNCH_ORDER_IMPLICIT"));
  ++GlobalNcclState().live;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const DeviceLock lock;
  const lockstep::standin::NcclFaults& faults = GlobalNcclState().faults;
  const bool fails =
      faults.failing_rank == comm->rank && comm->batches > faults.error_from;
  *error = fails ? faults.error : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  DeviceLock lock;
  for (const std::weak_ptr<Batch>& weak : comm->submitted) {
    const std::shared_ptr<Batch> batch = weak.lock();
    if (batch != nullptr) lockstep::standin::Withdraw(*batch);
  }
  const auto self = comm->self;
  *self = nullptr;
  const bool is_idle = lock->IsIdle(comm->world->devices[comm->rank]);
  for (const ncclWindow_t window : comm->windows) {
    if (!is_idle) Count(&CallCounts::windows_unmapped_under_work);
    lockstep::standin::DeleteWindow(window);
  }
  --GlobalNcclState().live;
  Count(&CallCounts::communicators_aborted);
  delete comm;
  lock->RunWork();
  const auto in_no_graph = [&] { return self.use_count() == 1; };
  if (lock.WaitUntil(in_no_graph, GlobalNcclState().faults.finalize_limit)) {
    return ncclSuccess;
  }
  std::fprintf(stderr,
               "stand-in NCCL: ncclCommAbort waits for ever: for graphs with "
               "groups of the communicator to be destroyed\n");
  return ncclInternalError;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  DeviceLock lock;
  return lockstep::standin::Finalize(lock, *comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  DeviceLock lock;
  const ncclResult_t result = lockstep::standin::Finalize(lock, *comm);
  if (result != ncclSuccess) return result;
  --GlobalNcclState().live;
  Count(&CallCounts::communicators_destroyed);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++lockstep::standin::group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (lockstep::standin::group_depth == 0) return ncclInvalidUsage;
  if (--lockstep::standin::group_depth > 0) return ncclSuccess;
  return lockstep::standin::group.empty() ? ncclSuccess
                                          : lockstep::standin::EndGroup();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kAllReduce, send, receive, count, type, op, 0});
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kReduce, send, receive, count, type, op, root});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive,
                               size_t receive_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return Enter(
      comm, stream,
      {NcclCall::kReduceScatter, send, receive, receive_count, type, op, 0});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kAllGather, send, receive, send_count, type, {}, 0});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kBroadcast, send, receive, count, type, {}, root});
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kSend, send, nullptr, count, type, {}, peer});
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream) {
  return Enter(comm, stream,
               {NcclCall::kReceive, nullptr, receive, count, type, {}, peer});
}
