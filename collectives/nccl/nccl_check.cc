#include "collectives/nccl/nccl_check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/cuda_handles.h"

namespace lockstep {
namespace {

constexpr int64_t kRoom = 256;  // Keeps the alignment of what it is before.
constexpr std::byte kCanary{0xa5};

using Bytes = std::vector<std::byte>;

template <typename T>
void Put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T Get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void Encode(double value, DataType type, std::byte* to) {
  switch (type) {
    case DataType::kFloat64:
      return Put(value, to);
    case DataType::kFloat32:
      return Put(static_cast<float>(value), to);
    case DataType::kFloat16:
      return Put(__float2half_rn(static_cast<float>(value)), to);
    case DataType::kBFloat16:
      return Put(__float2bfloat16_rn(static_cast<float>(value)), to);
    case DataType::kInt32:
      return Put(static_cast<int32_t>(value), to);
    case DataType::kInt64:
      return Put(static_cast<int64_t>(value), to);
    case DataType::kUInt8:
      return Put(static_cast<uint8_t>(value), to);
  }
}

double Decode(const std::byte* from, DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return Get<double>(from);
    case DataType::kFloat32:
      return Get<float>(from);
    case DataType::kFloat16:
      return __half2float(Get<__half>(from));
    case DataType::kBFloat16:
      return __bfloat162float(Get<__nv_bfloat16>(from));
    case DataType::kInt32:
      return Get<int32_t>(from);
    case DataType::kInt64:
      return static_cast<double>(Get<int64_t>(from));
    case DataType::kUInt8:
      return Get<uint8_t>(from);
  }
  return 0;
}

double UnitRoundoff(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return 0x1p-53;
    case DataType::kFloat32:
      return 0x1p-24;
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBFloat16:
      return 0x1p-8;
    default:
      return 0;
  }
}

// Element i of what a rank has. Sums of up to 5 ranks' are exact in bfloat16,
// averages whole, and products powers of two.
double Element(const DeviceCall& call, int world_size, int rank, int64_t i) {
  if (call.op == ReduceOp::kProduct) return (i + 2 * rank) % 3 == 0 ? 2 : 1;
  const int64_t value = (i * 7 + rank * 13 + i / 11) % 10;
  return static_cast<double>(call.op == ReduceOp::kAverage ? value * world_size
                                                           : value);
}

double Reduced(const DeviceCall& call, int world_size, int64_t i) {
  double result = Element(call, world_size, 0, i);
  for (int rank = 1; rank < world_size; ++rank) {
    const double x = Element(call, world_size, rank, i);
    switch (call.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
        result += x;
        break;
      case ReduceOp::kProduct:
        result *= x;
        break;
      case ReduceOp::kMin:
        result = std::min(result, x);
        break;
      case ReduceOp::kMax:
        result = std::max(result, x);
        break;
    }
  }
  return call.op == ReduceOp::kAverage ? result / world_size : result;
}

// What a call gives and gets on one rank.
struct Expectation {
  int64_t inputs = 0;
  int64_t outputs = 0;
  // Where in the larger of the two the smaller is when in place.
  int64_t own_begin = 0;
  std::vector<int64_t> counts = {};
  bool uses_output = true;
};

int64_t CountOf(const DeviceCall& call, int rank) {
  return call.unequal ? call.count + rank % 3 : call.count;
}

Expectation Expect(const DeviceCall& call, int rank, int world_size) {
  const int64_t n = call.count;
  const bool is_root = rank == call.root;
  switch (call.operation) {
    case Operation::kReduce:
      return {n, n, 0, {}, is_root};
    case Operation::kReduceScatter:
      return {world_size * n, n, rank * n};
    case Operation::kScatter:
      return {is_root ? world_size * n : 0, n, rank * n};
    case Operation::kGather:
      return {n, is_root ? world_size * n : 0, rank * n, {}, is_root};
    case Operation::kAllToAll:
      return {world_size * n, world_size * n, 0};
    case Operation::kAllGather: {
      Expectation expected = {CountOf(call, rank), 0, 0};
      for (int peer = 0; peer < world_size; ++peer) {
        if (peer == rank) expected.own_begin = expected.outputs;
        expected.outputs += CountOf(call, peer);
        if (call.unequal) expected.counts.push_back(CountOf(call, peer));
      }
      return expected;
    }
    default:
      return {n, n, 0};
  }
}

double ExpectedElement(const DeviceCall& call, int rank, int world_size,
                       int64_t i) {
  const int64_t n = call.count;
  switch (call.operation) {
    case Operation::kAllReduce:
    case Operation::kReduce:
      return Reduced(call, world_size, i);
    case Operation::kReduceScatter:
      return Reduced(call, world_size, rank * n + i);
    case Operation::kScatter:
      return Element(call, world_size, call.root, rank * n + i);
    case Operation::kGather:
      return Element(call, world_size, static_cast<int>(i / n), i % n);
    case Operation::kAllToAll:
      return Element(call, world_size, static_cast<int>(i / n),
                     rank * n + i % n);
    case Operation::kAllGather: {
      int peer = 0;
      while (i >= CountOf(call, peer)) i -= CountOf(call, peer++);
      return Element(call, world_size, peer, i);
    }
    default:
      return Element(call, world_size, call.root, i);
  }
}

Collective Make(const DeviceCall& call, int rank, ConstBuffer input,
                Buffer output, const std::vector<int64_t>& counts) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return Collective::AllReduce(input, output, call.op);
    case Operation::kReduce:
      return Collective::Reduce(input, output, call.op, call.root);
    case Operation::kReduceScatter:
      return Collective::ReduceScatter(input, output, call.op);
    case Operation::kAllGather:
      return Collective::AllGather(input, output, counts);
    case Operation::kScatter:
      return Collective::Scatter(input, output, call.root);
    case Operation::kGather:
      return Collective::Gather(input, output, call.root);
    case Operation::kAllToAll:
      return Collective::AllToAll(input, output);
    case Operation::kSend:
      // From the root to every other rank: Check makes each call.
      return rank == call.root ? Collective::Send(input, 0)
                               : Collective::Receive(output, call.root);
    default:
      return Collective::Broadcast(output, call.root);
  }
}

absl::Status CheckOutput(const DeviceCall& call, int rank, int world_size,
                         const Bytes& got, const Expectation& expected) {
  const int64_t size = SizeOf(call.type);
  for (int64_t i = 0; i < expected.outputs; ++i) {
    const double want = ExpectedElement(call, rank, world_size, i);
    const double have = Decode(got.data() + i * size, call.type);
    const double tolerance =
        call.scales ? (world_size + 2) * UnitRoundoff(call.type) * want : 0;
    if (std::fabs(have - want) <= tolerance) continue;
    return absl::DataLossError(absl::StrCat("rank ", rank, ": ", ToString(call),
                                            ": element ", i, " is ", have,
                                            ", want ", want));
  }
  return absl::OkStatus();
}

absl::Status RunCall(Communicator& communicator, const DeviceCall& call,
                     const ConstBuffer& input, const Buffer& output,
                     const std::vector<int64_t>& counts) {
  const int rank = communicator.rank();
  Collective collective = Make(call, rank, input, output, counts);
  if (call.operation != Operation::kSend) return communicator.Run(collective);
  for (int peer = 0; peer < communicator.world_size(); ++peer) {
    if (peer == call.root || (rank != call.root && rank != peer)) continue;
    if (rank == call.root) collective.peer = peer;
    LOCKSTEP_RETURN_IF_ERROR(communicator.Run(collective));
  }
  return absl::OkStatus();
}

// Operations whose output is their input's memory.
bool IsOneBuffer(const DeviceCall& call, int rank) {
  return call.operation == Operation::kBroadcast ||
         (call.operation == Operation::kSend && rank == call.root);
}

// A rank's elements: finite, of both signs, in [1/2, 2); any integers.
Bytes RandomElements(DataType type, int rank, int64_t count) {
  std::mt19937 generator(static_cast<uint32_t>(rank) + 1);
  std::uniform_real_distribution<double> magnitude(0.5, 2);
  Bytes bytes(static_cast<size_t>(count * SizeOf(type)));
  const bool is_float = UnitRoundoff(type) > 0;
  if (!is_float) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(generator());
    return bytes;
  }
  for (int64_t i = 0; i < count; ++i) {
    const double sign = generator() % 2 == 0 ? 1 : -1;
    Encode(sign * magnitude(generator), type, bytes.data() + i * SizeOf(type));
  }
  return bytes;
}

// The elements of `segment`, added rank after rank, `first` first.
Bytes Fold(const std::vector<Bytes>& inputs, const Reduction& reduction,
           int first, Segment segment) {
  const int64_t size = SizeOf(reduction.type());
  std::vector<const void*> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Bytes& input =
        inputs[(static_cast<size_t>(first) + i) % inputs.size()];
    operands.push_back(input.data() + segment.begin * size);
  }
  Bytes result(static_cast<size_t>(segment.count * size));
  void* const output = result.data();
  reduction.Fold(operands, std::span(&output, 1), segment.count);
  return result;
}

absl::Status Compare(const DeviceArray& array, const Bytes& want,
                     const std::string& what) {
  Bytes got;
  LOCKSTEP_RETURN_IF_ERROR(array.Read(got));
  if (got == want) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(what, " differs from the CPU's ring"));
}

}  // namespace

DeviceArray::DeviceArray(int64_t count, DataType type, int64_t offset)
    : count_(count),
      type_(type),
      begin_(kRoom + offset),
      bytes_(begin_ + count * SizeOf(type) + kRoom) {
  absl::StatusOr<DeviceMemory> memory = AllocateDeviceMemory(bytes_);
  status_ = memory.status();
  if (memory.ok()) memory_ = *std::move(memory);
}

Buffer DeviceArray::buffer() const {
  return {memory_.get() + begin_, count_, type_};
}

absl::Status DeviceArray::Write(const Bytes& from) const {
  LOCKSTEP_RETURN_IF_ERROR(status_);
  Bytes image(static_cast<size_t>(bytes_), kCanary);
  std::copy(from.begin(), from.end(), image.begin() + begin_);
  return CudaStatus(cudaMemcpy(memory_.get(), image.data(), image.size(),
                               cudaMemcpyHostToDevice),
                    "cudaMemcpy");
}

absl::Status DeviceArray::Read(Bytes& to) const {
  Bytes image(static_cast<size_t>(bytes_));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(image.data(), memory_.get(), image.size(),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
  const auto begin = image.begin() + begin_;
  const auto end = begin + count_ * SizeOf(type_);
  to.assign(begin, end);
  const auto is_canary = [](std::byte b) { return b == kCanary; };
  if (std::all_of(image.begin(), begin, is_canary) &&
      std::all_of(end, image.end(), is_canary)) {
    return absl::OkStatus();
  }
  return absl::DataLossError("memory around the data was written");
}

std::string ToString(const DeviceCall& call) {
  return absl::StrCat(
      Name(call.operation), " ", Name(call.type), " ", Name(call.op), " ",
      call.count, " root ", call.root, call.in_place ? " in place" : "",
      call.unequal ? " unequal" : "", call.offset != 0 ? " unaligned" : "");
}

absl::Status Check(Communicator& communicator, const DeviceCall& call) {
  const int rank = communicator.rank();
  const int world_size = communicator.world_size();
  const Expectation expected = Expect(call, rank, world_size);
  const int64_t size = SizeOf(call.type);
  const bool one_buffer = IsOneBuffer(call, rank);
  Bytes given(static_cast<size_t>(expected.inputs * size));
  for (int64_t i = 0; i < expected.inputs; ++i) {
    Encode(Element(call, world_size, rank, i), call.type,
           given.data() + i * size);
  }
  // In place the smaller of the two is a part of the larger.
  const bool in_place = call.in_place && expected.uses_output &&
                        expected.inputs > 0 && !one_buffer;
  const bool output_is_larger = expected.outputs >= expected.inputs;
  const DeviceArray input_array(
      in_place && output_is_larger ? 0 : expected.inputs, call.type,
      call.offset);
  const DeviceArray output_array(
      (in_place && !output_is_larger) || one_buffer ? 0 : expected.outputs,
      call.type, call.offset);
  Buffer input = input_array.buffer();
  Buffer output = one_buffer ? input : output_array.buffer();
  Bytes output_image(static_cast<size_t>(output_array.buffer().size_bytes()),
                     kCanary);
  if (in_place && output_is_larger) {
    input = output.Part(expected.own_begin, expected.inputs);
    std::copy(given.begin(), given.end(),
              output_image.begin() + expected.own_begin * size);
  } else if (in_place) {
    output = input.Part(expected.own_begin, expected.outputs);
  }
  LOCKSTEP_RETURN_IF_ERROR(output_array.Write(output_image));
  LOCKSTEP_RETURN_IF_ERROR(
      input_array.Write(in_place && output_is_larger ? Bytes() : given));
  LOCKSTEP_RETURN_IF_ERROR(
      RunCall(communicator, call, input, output, expected.counts));
  Bytes input_after, output_after;
  LOCKSTEP_RETURN_IF_ERROR(input_array.Read(input_after));
  LOCKSTEP_RETURN_IF_ERROR(output_array.Read(output_after));
  if (!in_place && !one_buffer && input_after != given) {
    return absl::DataLossError(absl::StrCat("rank ", rank, ": ", ToString(call),
                                            ": the input has changed"));
  }
  if (!expected.uses_output) return absl::OkStatus();
  if (one_buffer) {
    output_after = input_after;
  } else if (in_place && !output_is_larger) {
    const auto begin = input_after.begin() + expected.own_begin * size;
    output_after.assign(begin, begin + expected.outputs * size);
  }
  return CheckOutput(call, rank, world_size, output_after, expected);
}

absl::Status CheckRingBits(Communicator& communicator, DataType type,
                           ReduceOp op, int64_t count) {
  const int rank = communicator.rank();
  const int world_size = communicator.world_size();
  const std::string name = absl::StrCat("rank ", rank, ": ", Name(type), " ",
                                        Name(op), " ", count, ": ");
  const Reduction reduction(type, op, world_size);
  std::vector<Bytes> inputs;
  for (int peer = 0; peer < world_size; ++peer) {
    inputs.push_back(RandomElements(type, peer, count * world_size));
  }
  Bytes all_reduced;
  for (int k = 0; k < world_size; ++k) {
    const Bytes part = Fold(inputs, reduction, k,
                            SegmentOf(count * world_size - 1, world_size, k));
    all_reduced.insert(all_reduced.end(), part.begin(), part.end());
  }
  // One element less, so that the segments differ in size.
  const DeviceArray input(count * world_size, type);
  const DeviceArray output(count * world_size - 1, type);
  const ConstBuffer odd = input.buffer().Part(0, count * world_size - 1);
  LOCKSTEP_RETURN_IF_ERROR(input.Write(inputs[static_cast<size_t>(rank)]));
  LOCKSTEP_RETURN_IF_ERROR(output.Write({}));
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(odd, output.buffer(), op));
  LOCKSTEP_RETURN_IF_ERROR(Compare(output, all_reduced, name + "AllReduce"));

  LOCKSTEP_RETURN_IF_ERROR(output.Write({}));
  const int root = world_size - 1;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Reduce(odd, output.buffer(), op, root));
  if (rank == root) {
    LOCKSTEP_RETURN_IF_ERROR(Compare(output, all_reduced, name + "Reduce"));
  }

  const DeviceArray part(count, type);
  LOCKSTEP_RETURN_IF_ERROR(part.Write({}));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.ReduceScatter(input.buffer(), part.buffer(), op));
  return Compare(
      part,
      Fold(inputs, reduction, (rank + 1) % world_size, {rank * count, count}),
      name + "ReduceScatter");
}

absl::Status CheckZeros(const ConstBuffer& memory) {
  Bytes bytes(static_cast<size_t>(memory.size_bytes()), kCanary);
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpy(bytes.data(), memory.data, bytes.size(),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy"));
  if (bytes == Bytes(bytes.size())) return absl::OkStatus();
  return absl::DataLossError("memory is not zero");
}

}  // namespace lockstep
