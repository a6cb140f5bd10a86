// NCCL's stand-in: how ranks' calls meet and what is then done to their memory;
// communicators, groups, and the calls. The device's lock (queue.h) guards all.
#include "tools/cuda/standin/include/nccl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/include/cuda_bf16.h"
#include "tools/cuda/standin/include/cuda_fp16.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {
namespace {

enum class NcclCall {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};

// One rank's call.
struct NcclOperation {
  NcclCall call;
  const void* send;
  void* receive;
  size_t count;  // As the function's argument has it.
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // Or root.
};

struct World;

// Calls of one rank that start and end together on one stream: a group's.
struct Batch {
  std::shared_ptr<World> world = {};
  int rank = 0;
  cudaStream_t stream = nullptr;
  std::vector<NcclOperation> operations = {};
  std::vector<int64_t> numbers = {};  // Of the world's collectives.
  Damage damage = Damage::kNone;
  bool started = false;
  bool aborted = false;
  size_t pending = 0;
};

struct Pending {
  Batch* batch;
  const NcclOperation* operation;
};

// What the ranks of one unique id share.
struct World {
  int size = 0;
  std::vector<int> devices = {};  // Of the ranks that have joined, else -1.
  std::map<int64_t, std::map<int, Pending>> collectives = {};  // By rank.
  std::map<std::pair<int, int>, std::deque<Pending>> sends = {};
  std::map<std::pair<int, int>, std::deque<Pending>> receives = {};
};

float Widen(__half x) { return __half2float(x); }
float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
T Widen(T x) {
  return x;
}

template <typename T, typename Wide>
T Narrow(Wide x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return static_cast<T>(x);
  }
}

// Calls fn with an element of the type; not for one that is not modelled.
template <typename Fn>
void WithType(ncclDataType_t type, const Fn& fn) {
  switch (type) {
    case ncclUint8:
      return fn(uint8_t{});
    case ncclInt32:
      return fn(int32_t{});
    case ncclInt64:
      return fn(int64_t{});
    case ncclFloat16:
      return fn(__half{});
    case ncclFloat32:
      return fn(float{});
    case ncclFloat64:
      return fn(double{});
    case ncclBfloat16:
      return fn(__nv_bfloat16{});
  }
}

// 0 for a type that is not modelled.
size_t SizeOf(ncclDataType_t type) {
  size_t size = 0;
  WithType(type, [&size](auto zero) { size = sizeof(zero); });
  return size;
}

// Bytes that a call of `size` ranks reads from `send`, and writes to `receive`;
// 0 where `rank` does not use it.
size_t SentBytes(const NcclOperation& operation, int rank, int size) {
  const size_t bytes = operation.count * SizeOf(operation.type);
  switch (operation.call) {
    case NcclCall::kReceive:
      return 0;
    case NcclCall::kReduceScatter:
      return bytes * size;
    case NcclCall::kBroadcast:
      return rank == operation.peer ? bytes : 0;
    default:
      return bytes;
  }
}

size_t ReceivedBytes(const NcclOperation& operation, int rank, int size) {
  const size_t bytes = operation.count * SizeOf(operation.type);
  switch (operation.call) {
    case NcclCall::kSend:
      return 0;
    case NcclCall::kAllGather:
      return bytes * size;
    case NcclCall::kReduce:
      return rank == operation.peer ? bytes : 0;
    default:
      return bytes;
  }
}

// Integers wrap: T is unsigned where that matters.
template <typename T>
T Combine(ncclRedOp_t op, T a, T b) {
  switch (op) {
    case ncclSum:
    case ncclAvg:
      return static_cast<T>(a + b);
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMin:
      return b < a ? b : a;
    case ncclMax:
      return a < b ? b : a;
  }
  return a;
}

template <typename T>
T CombineWrapping(ncclRedOp_t op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ncclSum || op == ncclProd || op == ncclAvg) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(
          Combine<U>(op, static_cast<U>(a), static_cast<U>(b)));
    }
  }
  return Combine<T>(op, a, b);
}

template <typename T>
T Load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

// result = the first n elements of all inputs, reduced.
template <typename T>
void ReduceAs(std::span<const std::byte* const> inputs, ncclRedOp_t op,
              size_t n, std::byte* result) {
  using Wide = decltype(Widen(T()));
  const bool scales = op == ncclAvg && !std::is_integral_v<T>;
  const Wide factor = scales ? Wide{1} / static_cast<Wide>(inputs.size()) : 1;
  for (size_t i = 0; i < n; ++i) {
    T sum = {};
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      T value = Load<T>(inputs[rank], i);
      if (scales) value = Narrow<T>(Widen(value) * factor);
      sum = rank == 0
                ? value
                : Narrow<T>(CombineWrapping(op, Widen(sum), Widen(value)));
    }
    if (op == ncclAvg && !scales) {
      sum = Narrow<T>(Widen(sum) / static_cast<Wide>(inputs.size()));
    }
    std::memcpy(result + i * sizeof(T), &sum, sizeof(T));
  }
}

std::vector<std::byte> Reduce(std::span<const NcclOperation* const> operations,
                              size_t n) {
  const NcclOperation& any = *operations.front();
  std::vector<std::byte> result(n * SizeOf(any.type));
  std::vector<const std::byte*> inputs;
  for (const NcclOperation* const each : operations) {
    inputs.push_back(static_cast<const std::byte*>(each->send));
  }
  WithType(any.type, [&](auto zero) {
    ReduceAs<decltype(zero)>(inputs, any.op, n, result.data());
  });
  return result;
}

void Deliver(void* to, const void* from, size_t bytes, Damage damage) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  const size_t half = bytes / 2;
  switch (damage) {
    case Damage::kNone:
      if (bytes > 0) std::memmove(target, source, bytes);
      return;
    case Damage::kLostTail:
      if (bytes > 8) std::memmove(target, source, bytes - 8);
      return;
    case Damage::kSwappedParts: {
      std::vector<std::byte> copy(source, source + bytes);
      std::rotate(copy.begin(), copy.begin() + half, copy.end());
      std::copy(copy.begin(), copy.end(), target);
      return;
    }
  }
}

bool Fit(const NcclOperation& a, const NcclOperation& b) {
  return a.call == b.call && a.count == b.count && a.type == b.type &&
         a.op == b.op && a.peer == b.peer;
}

// Runs a collective: element r is rank r's call, and all fit together.
// Reductions add rank after rank, in the elements' own type; averages of
// floating-point numbers scale each rank's first, as NCCL does.
void MoveCollective(std::span<const NcclOperation* const> operations,
                    Damage damage) {
  const NcclOperation& any = *operations.front();
  const size_t size = operations.size();
  const size_t bytes = any.count * SizeOf(any.type);
  std::vector<std::byte> result;
  if (any.call == NcclCall::kReduceScatter) {
    result = Reduce(operations, any.count * size);
  } else if (any.call == NcclCall::kAllReduce ||
             any.call == NcclCall::kReduce) {
    result = Reduce(operations, any.count);
  } else if (any.call == NcclCall::kBroadcast) {
    const auto* const from =
        static_cast<const std::byte*>(operations[any.peer]->send);
    result.assign(from, from + bytes);
  } else {
    for (const NcclOperation* const each : operations) {
      const auto* const from = static_cast<const std::byte*>(each->send);
      result.insert(result.end(), from, from + bytes);
    }
  }
  for (size_t rank = 0; rank < size; ++rank) {
    const int r = static_cast<int>(rank);
    const size_t begin =
        any.call == NcclCall::kReduceScatter ? rank * bytes : 0;
    Deliver(operations[rank]->receive, result.data() + begin,
            ReceivedBytes(any, r, static_cast<int>(size)), damage);
  }
}

// One operation of each: they are done.
void Finish(std::span<const Pending> met) {
  for (const Pending& each : met) --each.batch->pending;
  NoteProgress();
}

void MeetCollective(World& world, int64_t number, Damage damage) {
  const auto found = world.collectives.find(number);
  if (static_cast<int>(found->second.size()) < world.size) return;
  std::vector<Pending> met;
  std::vector<const NcclOperation*> operations;
  for (const auto& [rank, pending] : found->second) {
    met.push_back(pending);
    operations.push_back(pending.operation);
    if (!Fit(*operations.front(), *pending.operation)) return;
  }
  MoveCollective(operations, damage);
  Finish(met);
  world.collectives.erase(found);
}

void MeetMessage(World& world, int from, int to, Damage damage) {
  auto& sends = world.sends[{from, to}];
  auto& receives = world.receives[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    const Pending met[] = {sends.front(), receives.front()};
    if (met[0].operation->count != met[1].operation->count ||
        met[0].operation->type != met[1].operation->type) {
      return;
    }
    const NcclOperation& sent = *met[0].operation;
    Deliver(met[1].operation->receive, sent.send,
            sent.count * SizeOf(sent.type), damage);
    Finish(met);
    sends.pop_front();
    receives.pop_front();
  }
}

// Lets the calls of a batch meet the other ranks': each is done, and `pending`
// one less, once all that it needs have started.
void Start(Batch& batch) {
  batch.started = true;
  batch.pending = batch.operations.size();
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    const NcclOperation& operation = batch.operations[i];
    const Pending pending = {&batch, &operation};
    if (operation.call == NcclCall::kSend) {
      batch.world->sends[{batch.rank, operation.peer}].push_back(pending);
      MeetMessage(*batch.world, batch.rank, operation.peer, batch.damage);
    } else if (operation.call == NcclCall::kReceive) {
      batch.world->receives[{operation.peer, batch.rank}].push_back(pending);
      MeetMessage(*batch.world, operation.peer, batch.rank, batch.damage);
    } else {
      batch.world->collectives[batch.numbers[i]][batch.rank] = pending;
      MeetCollective(*batch.world, batch.numbers[i], batch.damage);
    }
  }
}

// Forgets what a batch waits for: nobody can meet it any more.
void Withdraw(Batch& batch) {
  batch.aborted = true;
  const auto is_of_batch = [&](const Pending& p) { return p.batch == &batch; };
  for (auto* const messages : {&batch.world->sends, &batch.world->receives}) {
    for (auto& [ranks, queue] : *messages) std::erase_if(queue, is_of_batch);
  }
  for (auto& [number, arrived] : batch.world->collectives) {
    std::erase_if(arrived,
                  [&](const auto& each) { return is_of_batch(each.second); });
  }
}

struct State {
  NcclFaults faults;
  uint64_t ids = 0;
  int live = 0;
  std::map<uint64_t, std::shared_ptr<World>> worlds;
};

State& Global() {
  static State& state = *new State;
  return state;
}

struct Call {
  ncclComm_t comm;
  cudaStream_t stream;
  NcclOperation operation;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group;

}  // namespace
}  // namespace lockstep::standin

struct ncclComm {
  std::shared_ptr<lockstep::standin::World> world;
  int rank = 0;
  bool joined = false;
  int64_t collectives = 0;
  int64_t batches = 0;
  // Not yet on their streams: ncclCommGetAsyncError puts them there.
  std::vector<std::shared_ptr<lockstep::standin::Batch>> asked = {};
  std::vector<std::weak_ptr<lockstep::standin::Batch>> submitted = {};
};

namespace lockstep::standin {
namespace {

// Whether two ranks have one device, which NCCL must be told to allow.
bool SharesForbidden(const World& world) {
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (Global().faults.version >= 23000 && allowed != nullptr &&
      std::string_view(allowed) == "1") {
    return false;
  }
  for (int a = 0; a < world.size; ++a) {
    for (int b = 0; b < a; ++b) {
      if (world.devices[a] == world.devices[b]) return true;
    }
  }
  return false;
}

ncclResult_t PollInit(ncclComm& comm) {
  for (const int device : comm.world->devices) {
    if (device < 0) return ncclInProgress;
  }
  if (SharesForbidden(*comm.world)) return ncclInvalidUsage;
  comm.joined = true;
  return ncclSuccess;
}

// Puts what the communicator was asked for on its streams.
void Submit(const DeviceLock& lock, ncclComm& comm) {
  for (const std::shared_ptr<Batch>& batch : std::exchange(comm.asked, {})) {
    std::erase_if(comm.submitted, [](auto& each) { return each.expired(); });
    comm.submitted.push_back(batch);
    ++comm.batches;
    batch->damage = Global().faults.damage;
    const bool stalled = Global().faults.stalled_rank == comm.rank;
    Enqueue(lock, batch->stream, [batch, stalled] {
      if (!batch->aborted && !batch->started && !stalled) Start(*batch);
      return batch->aborted || (batch->started && batch->pending == 0);
    });
  }
}

// What is wrong with a call at once.
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
  return ncclSuccess;
}

// Hands the group's calls to their communicators, one batch for each stream.
ncclResult_t EndGroup() {
  const DeviceLock lock;
  for (const Call& call : std::exchange(group, {})) {
    ncclComm& comm = *call.comm;
    if (comm.asked.empty() || comm.asked.back()->stream != call.stream) {
      comm.asked.push_back(
          std::make_shared<Batch>(Batch{comm.world, comm.rank, call.stream}));
    }
    Batch& batch = *comm.asked.back();
    const bool is_message = call.operation.call == NcclCall::kSend ||
                            call.operation.call == NcclCall::kReceive;
    batch.numbers.push_back(is_message ? -1 : comm.collectives++);
    batch.operations.push_back(call.operation);
  }
  return ncclInProgress;
}

ncclResult_t Enter(ncclComm_t comm, cudaStream_t stream,
                   const NcclOperation& operation) {
  {
    const DeviceLock lock;
    if (!comm->joined || !comm->asked.empty()) return ncclInvalidUsage;
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
  Global().faults = faults;
}

int LiveNcclCommunicators() {
  const DeviceLock lock;
  return Global().live;
}

}  // namespace lockstep::standin

using lockstep::standin::Batch;
using lockstep::standin::DeviceLock;
using lockstep::standin::Enter;
using lockstep::standin::Global;
using lockstep::standin::NcclCall;
using lockstep::standin::World;

ncclResult_t ncclGetVersion(int* version) {
  const DeviceLock lock;
  *version = Global().faults.version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const DeviceLock lock;
  *id = {};
  const uint64_t number = ++Global().ids;
  std::memcpy(id->internal, &number, sizeof(number));
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

const char* ncclGetLastError(ncclComm_t) { return "stand-in"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                    int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (config == nullptr || config->blocking != 0 || size < 1 || rank < 0 ||
      rank >= size) {
    return ncclInvalidArgument;
  }
  int device = -1;
  cudaGetDevice(&device);
  uint64_t number;
  std::memcpy(&number, id.internal, sizeof(number));
  const DeviceLock lock;
  std::shared_ptr<World>& world = Global().worlds[number];
  if (world == nullptr) {
    world = std::make_shared<World>(
        World{.size = size, .devices = std::vector<int>(size, -1)});
  }
  if (world->size != size || world->devices[rank] >= 0) {
    return ncclInvalidUsage;
  }
  world->devices[rank] = device;
  *comm = new ncclComm{.world = world, .rank = rank};
  ++Global().live;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const DeviceLock lock;
  const lockstep::standin::NcclFaults& faults = Global().faults;
  if (!comm->joined) {
    *error = lockstep::standin::PollInit(*comm);
  } else if (!comm->asked.empty()) {
    lockstep::standin::Submit(lock, *comm);
    *error = ncclInProgress;
  } else if (faults.failing_rank == comm->rank &&
             comm->batches > faults.error_from) {
    *error = faults.error;
  } else {
    *error = ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const DeviceLock lock;
  for (const std::weak_ptr<Batch>& weak : comm->submitted) {
    const std::shared_ptr<Batch> batch = weak.lock();
    if (batch != nullptr) lockstep::standin::Withdraw(*batch);
  }
  --Global().live;
  delete comm;
  lockstep::standin::RunWork(lock);
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
