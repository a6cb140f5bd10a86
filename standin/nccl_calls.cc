#include "standin/nccl_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "standin/control.h"
#include "standin/device.h"
#include "standin/include/cuda_bf16.h"
#include "standin/include/cuda_fp16.h"
#include "standin/include/nccl.h"

namespace lockstep::standin {
namespace {

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

// Calls `fn` with an element of the type. Does nothing if the type is not
// modelled.
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

}  // namespace

NcclState& GlobalNcclState() {
  static NcclState& state = *new NcclState;
  return state;
}

size_t SizeOf(ncclDataType_t type) {
  size_t size = 0;
  WithType(type, [&size](auto zero) { size = sizeof(zero); });
  return size;
}

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

namespace {

// Combines two elements. Integers wrap: T is unsigned where that matters.
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

// Writes to `result` the reduction of the first n elements of all inputs.
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

bool IsSameCollective(const NcclOperation& a, const NcclOperation& b) {
  return a.call == b.call && a.count == b.count && a.type == b.type &&
         a.op == b.op && a.peer == b.peer;
}

// Runs a collective. Element r is rank r's call, and all calls match.
// Reductions add rank after rank, in the elements' own type. Averages of
// floating-point numbers scale each rank's number first, as NCCL does.
void RunCollective(std::span<const NcclOperation* const> operations,
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

// Marks matched operations of the ranks as done.
void Finish(std::span<const Pending> met) {
  for (const Pending& each : met) --each.batch->pending;
  Device::Get().NoteProgress();
}

void TryRunCollective(World& world, int64_t number, Damage damage) {
  const auto found = world.collectives.find(number);
  if (static_cast<int>(found->second.size()) < world.size) return;
  std::vector<Pending> met;
  std::vector<const NcclOperation*> operations;
  for (const auto& [rank, pending] : found->second) {
    met.push_back(pending);
    operations.push_back(pending.operation);
    if (!IsSameCollective(*operations.front(), *pending.operation)) return;
  }
  RunCollective(operations, damage);
  Finish(met);
  world.collectives.erase(found);
}

void TryRunMessages(World& world, int from, int to, Damage damage) {
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

}  // namespace

void Start(Batch& batch) {
  batch.started = true;
  batch.pending = batch.operations.size();
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    const NcclOperation& operation = batch.operations[i];
    const Pending pending = {&batch, &operation};
    if (operation.call == NcclCall::kSend) {
      batch.world->sends[{batch.rank, operation.peer}].push_back(pending);
      TryRunMessages(*batch.world, batch.rank, operation.peer, batch.damage);
    } else if (operation.call == NcclCall::kReceive) {
      batch.world->receives[{operation.peer, batch.rank}].push_back(pending);
      TryRunMessages(*batch.world, operation.peer, batch.rank, batch.damage);
    } else {
      batch.world->collectives[batch.numbers[i]][batch.rank] = pending;
      TryRunCollective(*batch.world, batch.numbers[i], batch.damage);
    }
  }
}

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

}  // namespace lockstep::standin
