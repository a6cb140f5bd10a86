// Inputs, the answer as one rank computes it, and the comparison.
#include "collectives/algorithms/checked_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

constexpr std::byte kGuard{0x5a};
constexpr int64_t kGuardBytes = 65;  // Odd, so that nothing is aligned.

// The finalizer of MurmurHash3.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// A floating-point number of either sign between 1/4 and 4.
uint64_t FloatBits(uint64_t random, int exponent_bits, int mantissa_bits) {
  const uint64_t bias = (uint64_t{1} << (exponent_bits - 1)) - 1;
  const uint64_t mantissa =
      (random >> 8) & ((uint64_t{1} << mantissa_bits) - 1);
  const uint64_t exponent = bias - 2 + (random & 3);
  const uint64_t sign = random >> 2 & 1;
  return ((sign << exponent_bits | exponent) << mantissa_bits) | mantissa;
}

uint64_t BitsOf(DataType type, uint64_t random) {
  switch (type) {
    case DataType::kFloat64:
      return FloatBits(random, 11, 52);
    case DataType::kFloat32:
      return FloatBits(random, 8, 23);
    case DataType::kFloat16:
      return FloatBits(random, 5, 10);
    case DataType::kBFloat16:
      return FloatBits(random, 8, 7);
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
      break;
  }
  return random | 1;
}

// What one call of one rank is about.
class Answer {
 public:
  Answer(const CheckedCall& call, AdditionOrder order, int rank, int world_size)
      : call_(call), order_(order), rank_(rank), world_size_(world_size) {}

  bool IsRoot() const { return rank_ == call_.root; }
  bool Sends() const { return call_.operation == Operation::kSend && IsRoot(); }
  bool Receives() const {
    return call_.operation == Operation::kSend &&
           rank_ == (call_.root + 1) % world_size_;
  }

  Bytes InputOf(int rank) const {
    Bytes input(static_cast<size_t>(InputCount(rank) * SizeOf(call_.type)));
    FillInput(rank, call_.type, InputCount(rank), input.data());
    for (size_t i = 0; call_.only_zeros && i < input.size(); ++i) {
      const bool has_sign = (i + 1) % SizeOf(call_.type) == 0;
      input[i] &= has_sign ? std::byte{0x80} : std::byte{0};
    }
    return input;
  }

  // Where the input is part of the output, or the output of the input.
  int64_t PlaceOf(int rank) const {
    if (call_.counts.empty()) return rank * call_.count;
    return std::accumulate(call_.counts.begin(), call_.counts.begin() + rank,
                           int64_t{0});
  }

  // Empty where the rank gets none.
  Bytes Output() const {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < world_size_; ++rank) {
      inputs.push_back(InputOf(rank));
    }
    return ReferenceOutput({.operation = call_.operation,
                            .type = call_.type,
                            .op = call_.op,
                            .count = call_.count,
                            .root = call_.root,
                            .destination = (call_.root + 1) % world_size_},
                           order_, rank_, inputs)
        .value_or(Bytes());
  }

 private:
  int64_t InputCount(int rank) const {
    switch (call_.operation) {
      case Operation::kReduceScatter:
      case Operation::kAllToAll:
        return call_.count * world_size_;
      case Operation::kScatter:
        return rank == call_.root ? call_.count * world_size_ : 0;
      case Operation::kBroadcast:
      case Operation::kSend:
        return rank == call_.root ? call_.count : 0;
      default:
        return call_.counts.empty() ? call_.count : call_.counts[rank];
    }
  }

  const CheckedCall& call_;
  const AdditionOrder order_;
  const int rank_;
  const int world_size_;
};

// Memory between guards.
class Guarded {
 public:
  explicit Guarded(const Bytes& content)
      : bytes_(content.size() + 2 * kGuardBytes, kGuard) {
    std::copy(content.begin(), content.end(), bytes_.begin() + kGuardBytes);
  }

  std::byte* data() { return bytes_.data() + kGuardBytes; }
  Bytes content() const {
    return Bytes(bytes_.begin() + kGuardBytes, bytes_.end() - kGuardBytes);
  }
  bool is_intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes,
                       is_guard) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
  }

 private:
  Bytes bytes_;
};

Collective ToCollective(const CheckedCall& call, const Answer& answer,
                        int world_size, ConstBuffer input, Buffer output) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return Collective::AllReduce(input, output, call.op);
    case Operation::kReduce:
      return Collective::Reduce(input, output, call.op, call.root);
    case Operation::kReduceScatter:
      return Collective::ReduceScatter(input, output, call.op);
    case Operation::kAllGather:
      return Collective::AllGather(input, output, call.counts);
    case Operation::kBroadcast:
      return Collective::Broadcast(output, call.root);
    case Operation::kScatter:
      return Collective::Scatter(input, output, call.root);
    case Operation::kGather:
      return Collective::Gather(input, output, call.root);
    case Operation::kAllToAll:
      return Collective::AllToAll(input, output);
    case Operation::kSend:
      return answer.Sends()
                 ? Collective::Send(input, (call.root + 1) % world_size)
                 : Collective::Receive(output, call.root);
    default:
      return Collective::Barrier();
  }
}

absl::Status Compare(const char* what, DataType type, const Bytes& got,
                     const Bytes& want) {
  const auto [at, _] = std::mismatch(got.begin(), got.end(), want.begin());
  if (at == got.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      what, " is wrong from element ", (at - got.begin()) / SizeOf(type),
      " of ", static_cast<int64_t>(got.size()) / SizeOf(type)));
}

// Runs with input and output apart, or with one in the other.
absl::Status RunWithBuffers(
    Transport& transport, const CheckedCall& call, const Answer& answer,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run) {
  const int rank = transport.rank();
  const int64_t size = SizeOf(call.type);
  const Bytes input = answer.InputOf(rank);
  const Bytes want = answer.Output();
  const bool in_place = call.operation == Operation::kBroadcast ||
                        (call.in_place && !input.empty() && !want.empty());
  const bool input_is_part = in_place && input.size() <= want.size();
  const bool output_is_part = in_place && !input_is_part;
  const int64_t place =
      input.empty() || want.empty() || input.size() == want.size()
          ? 0
          : answer.PlaceOf(rank) * size;

  Bytes output(want.size(), std::byte{0xee});
  if (input_is_part) {
    std::copy(input.begin(), input.end(), output.begin() + place);
  }
  Guarded from(input);
  Guarded to(output);
  std::byte* const in = input_is_part ? to.data() + place : from.data();
  std::byte* const out = output_is_part ? from.data() + place : to.data();

  LOCKSTEP_RETURN_IF_ERROR(
      run(transport,
          ToCollective(
              call, answer, transport.world_size(),
              {in, static_cast<int64_t>(input.size()) / size, call.type},
              {out, static_cast<int64_t>(want.size()) / size, call.type})));
  LOCKSTEP_RETURN_IF_ERROR(
      Compare("the output", call.type, Bytes(out, out + want.size()), want));
  if (!in_place) {
    LOCKSTEP_RETURN_IF_ERROR(
        Compare("the input, afterwards,", call.type, from.content(), input));
  }
  if (from.is_intact() && to.is_intact()) return absl::OkStatus();
  return absl::DataLossError("memory beside a buffer was written");
}

}  // namespace

std::string Describe(const CheckedCall& call) {
  return absl::StrCat(Name(call.operation), " of ", Name(call.type), "[",
                      call.counts.empty() ? absl::StrCat(call.count) : "...",
                      "], ", Name(call.op), ", root ", call.root,
                      call.in_place ? ", in place" : "");
}

void FillInput(int rank, DataType type, int64_t count, void* data) {
  const int64_t size = SizeOf(type);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = BitsOf(
        type,
        Mix(static_cast<uint64_t>(rank + 1) << 40 | static_cast<uint64_t>(i)));
    // Little endian, as every machine that this is tested on.
    std::memcpy(static_cast<std::byte*>(data) + i * size, &bits,
                static_cast<size_t>(size));
  }
}

absl::Status RunAndCheck(
    Transport& transport, const CheckedCall& call, AdditionOrder order,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run) {
  const Answer answer(call, order, transport.rank(), transport.world_size());
  if (call.operation == Operation::kSend && !answer.Sends() &&
      !answer.Receives()) {
    return absl::OkStatus();
  }
  const absl::Status status = RunWithBuffers(transport, call, answer, run);
  if (status.ok() || !absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(
      "rank ", transport.rank(), ", ", Describe(call), ": ", status.message()));
}

}  // namespace lockstep
