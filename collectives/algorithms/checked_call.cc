#include "collectives/algorithms/checked_call.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

constexpr std::byte kGuard{0x5a};
constexpr size_t kGuardBytes = 64;

// Mixes the bits of x: the finalizer of MurmurHash3.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// Returns the number of exponent bits, 0 for integers.
int ExponentBits(DataType type) {
  if (type == DataType::kFloat64) return 11;
  if (type == DataType::kFloat16) return 5;
  return type == DataType::kFloat32 || type == DataType::kBFloat16 ? 8 : 0;
}

// Returns the bits of a floating-point number of either sign between 1/4 and 4.
uint64_t FloatBits(uint64_t random, DataType type) {
  const int exponent_bits = ExponentBits(type);
  const auto mantissa_bits =
      static_cast<int>(8 * SizeOf(type)) - 1 - exponent_bits;
  const uint64_t bias = (uint64_t{1} << (exponent_bits - 1)) - 1;
  const uint64_t mantissa =
      (random >> 8) & ((uint64_t{1} << mantissa_bits) - 1);
  const uint64_t exponent = bias - 2 + (random & 3);
  const uint64_t sign = random >> 2 & 1;
  return ((sign << exponent_bits | exponent) << mantissa_bits) | mantissa;
}

// Returns element i of a rank's input. For up to 5 ranks, sums are exact in
// bfloat16, averages are whole, and products are powers of two.
double ExactElement(ReduceOp op, int world_size, int rank, int64_t i) {
  if (op == ReduceOp::kProduct) return (i + 2 * rank) % 3 == 0 ? 2 : 1;
  const int64_t value = (i * 7 + rank * 13 + i / 11) % 10;
  return static_cast<double>(op == ReduceOp::kAverage ? value * world_size
                                                      : value);
}

double UnitRoundoff(DataType type) {
  if (type == DataType::kFloat64) return 0x1p-53;
  if (type == DataType::kFloat32) return 0x1p-24;
  if (type == DataType::kFloat16) return 0x1p-11;
  return type == DataType::kBFloat16 ? 0x1p-8 : 0;
}

// The input and the expected output of one rank's call, the same in place and
// out of place.
class Answer {
 public:
  Answer(const CheckedCall& call, AdditionOrder order, int rank, int world_size)
      : call_(call), rank_(rank), world_size_(world_size) {
    if (!TakesPart()) return;
    std::vector<Bytes> inputs;
    for (int other = 0; other < world_size; ++other) {
      inputs.push_back(InputOf(other));
    }
    output_ = ReferenceOutput(call, order, rank, inputs).value_or(Bytes());
    input_ = std::move(inputs[rank]);
  }

  bool IsOf(CheckedCall call) const {
    call.in_place = call_.in_place;
    return call == call_;
  }
  // Returns whether this rank makes the call.
  bool TakesPart() const {
    return call_.operation != Operation::kSend ||
           (Destination() != call_.root &&
            (rank_ == call_.root || rank_ == Destination()));
  }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const Bytes& input() const { return input_; }
  const Bytes& output() const { return output_; }  // Empty if there is none.

  // Returns the in-place offset, in elements: where the input lies in the
  // output, or the output in the input.
  int64_t Place() const {
    if (input_.empty() || output_.empty() || input_.size() == output_.size()) {
      return 0;
    }
    if (call_.counts.empty()) return rank_ * call_.count;
    return std::accumulate(call_.counts.begin(), call_.counts.begin() + rank_,
                           int64_t{0});
  }

  Collective ToCollective(ConstBuffer input, Buffer output) const {
    switch (call_.operation) {
      case Operation::kAllReduce: {
        Collective all = Collective::AllReduce(input, output, call_.op);
        all.uniform = call_.uniform;
        return all;
      }
      case Operation::kReduce:
        return Collective::Reduce(input, output, call_.op, call_.root);
      case Operation::kReduceScatter:
        return Collective::ReduceScatter(input, output, call_.op);
      case Operation::kAllGather:
        return Collective::AllGather(input, output, call_.counts);
      case Operation::kBroadcast:
        return Collective::Broadcast(output, call_.root);
      case Operation::kScatter:
        return Collective::Scatter(input, output, call_.root);
      case Operation::kGather:
        return Collective::Gather(input, output, call_.root);
      case Operation::kAllToAll:
        return Collective::AllToAll(input, output);
      case Operation::kSend:
        return rank_ == call_.root ? Collective::Send(input, Destination())
                                   : Collective::Receive(output, call_.root);
      default:
        return Collective::Barrier();
    }
  }

 private:
  int Destination() const { return (call_.root + call_.hops) % world_size_; }

  Bytes InputOf(int rank) const {
    const int64_t size = SizeOf(call_.type);
    const int64_t count = InputCount(rank);
    Bytes input(static_cast<size_t>(count * size));
    FillInput(rank, call_.type, count, input.data());
    for (int64_t i = 0; call_.input == CallInput::kExact && i < count; ++i) {
      SetElement(call_.type, ExactElement(call_.op, world_size_, rank, i),
                 input.data() + i * size);
    }
    for (size_t i = 0; call_.input == CallInput::kZeros && i < input.size();
         ++i) {
      const bool has_sign = (i + 1) % static_cast<size_t>(size) == 0;
      input[i] &= has_sign ? std::byte{0x80} : std::byte{0};
    }
    return input;
  }

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

  const CheckedCall call_;
  const int rank_;
  const int world_size_;
  Bytes input_;
  Bytes output_;
};

bool Same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Returns kDataLoss if `got` differs from `want` by more than `tolerance`,
// which is relative to `want`; 0 compares every bit.
absl::Status Compare(const char* what, DataType type, double tolerance,
                     const Bytes& got, const Bytes& want) {
  if (Same(got, want)) return absl::OkStatus();
  const int64_t size = SizeOf(type);
  const int64_t count = static_cast<int64_t>(want.size()) / size;
  for (auto at = want.begin(); at != want.end(); ++at) {
    at = std::mismatch(at, want.end(), got.begin() + (at - want.begin())).first;
    if (at == want.end()) break;
    const int64_t i = (at - want.begin()) / size;
    const double have = ElementAt(type, got.data() + i * size);
    const double wanted = ElementAt(type, want.data() + i * size);
    if (std::fabs(have - wanted) <= tolerance * std::fabs(wanted) &&
        tolerance > 0) {
      continue;
    }
    return absl::DataLossError(absl::StrCat(what, " is wrong from element ", i,
                                            " of ", count, ": ", have,
                                            " in place of ", wanted));
  }
  return absl::OkStatus();
}

// Runs the call with separate input and output, or with one inside the other.
absl::Status RunWithBuffers(
    const CheckedCall& call, const Answer& answer, const MakeMemory& memory,
    absl::FunctionRef<absl::Status(const Collective&)> run) {
  const int64_t size = SizeOf(call.type);
  const Bytes& input = answer.input();
  const Bytes& want = answer.output();
  const bool in_place = call.operation == Operation::kBroadcast ||
                        (call.in_place && !input.empty() && !want.empty());
  const bool input_is_part = in_place && input.size() <= want.size();
  const bool output_is_part = in_place && !input_is_part;
  const int64_t place = answer.Place() * size;

  Bytes output(want.size(), std::byte{0xee});
  if (input_is_part) {
    std::copy(input.begin(), input.end(), output.begin() + place);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto from, memory(input));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto to, memory(output));
  std::byte* const in = (input_is_part ? to->data() + place : from->data());
  std::byte* const out = (output_is_part ? from->data() + place : to->data());
  LOCKSTEP_RETURN_IF_ERROR(run(answer.ToCollective(
      {in, static_cast<int64_t>(input.size()) / size, call.type},
      {out, static_cast<int64_t>(want.size()) / size, call.type})));

  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes input_after, from->Read());
  LOCKSTEP_ASSIGN_OR_RETURN(Bytes output_after, to->Read());
  if (output_is_part) {
    output_after.assign(
        input_after.begin() + place,
        input_after.begin() + place + static_cast<int64_t>(want.size()));
  }
  LOCKSTEP_RETURN_IF_ERROR(Compare(
      "the output", call.type,
      call.rounds ? (answer.world_size() + 2) * UnitRoundoff(call.type) : 0,
      output_after, want));
  if (in_place) return absl::OkStatus();
  return Compare("the input, afterwards,", call.type, 0, input_after, input);
}

// Returns text such as "AllReduce of float32[10], sum, root 1, in place".
std::string Describe(const CheckedCall& call) {
  return absl::StrCat(Name(call.operation), " of ", Name(call.type), "[",
                      call.counts.empty() ? absl::StrCat(call.count) : "...",
                      "], ", Name(call.op), ", root ", call.root,
                      call.in_place ? ", in place" : "");
}

absl::Status RunAndCheckAll(
    int rank, int world_size, const std::vector<CheckedCall>& calls,
    AdditionOrder order, const MakeMemory& memory,
    absl::FunctionRef<absl::Status(const Collective&)> run) {
  std::optional<Answer> answer;
  for (const CheckedCall& call : calls) {
    if (!answer.has_value() || !answer->IsOf(call)) {
      answer.emplace(call, order, rank, world_size);
    }
    if (!answer->TakesPart()) continue;
    const absl::Status status = RunWithBuffers(call, *answer, memory, run);
    if (absl::IsDataLoss(status)) {
      return absl::DataLossError(absl::StrCat(
          "rank ", rank, ", ", Describe(call), ": ", status.message()));
    }
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

void FillInput(int rank, DataType type, int64_t count, void* data) {
  const auto size = static_cast<size_t>(SizeOf(type));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random =
        Mix(static_cast<uint64_t>(rank + 1) << 40 | static_cast<uint64_t>(i));
    const uint64_t bits =
        ExponentBits(type) > 0 ? FloatBits(random, type) : random | 1;
    // Little endian, like every machine that the tests run on.
    std::memcpy(static_cast<std::byte*>(data) + i * SizeOf(type), &bits, size);
  }
}

absl::StatusOr<Bytes> CheckedMemory::Read() const {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes image, Image());
  const auto content = image.begin() + static_cast<ptrdiff_t>(begin_);
  const auto end = content + static_cast<ptrdiff_t>(size_);
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  if (std::all_of(image.begin(), content, is_guard) &&
      std::all_of(end, image.end(), is_guard)) {
    return Bytes(content, end);
  }
  return absl::DataLossError("memory beside a buffer was written");
}

bool CheckedMemory::Holds(const Bytes& content) const {
  const absl::StatusOr<Bytes> held = Read();
  return held.ok() && Same(*held, content);
}

Bytes CheckedMemory::Guarded(const Bytes& content, size_t begin,
                             size_t behind) {
  begin_ = begin;
  Bytes image(begin + content.size() + behind, kGuard);
  std::copy(content.begin(), content.end(),
            image.begin() + static_cast<ptrdiff_t>(begin));
  return image;
}

GuardedMemory::GuardedMemory(const Bytes& content, int64_t offset)
    : CheckedMemory(content.size()), bytes_(content.size() + 3 * kGuardBytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  const size_t begin =
      kGuardBytes + (-address & 63) + static_cast<size_t>(offset);
  const Bytes image =
      Guarded(content, begin, bytes_.size() - begin - content.size());
  std::copy(image.begin(), image.end(), bytes_.begin());
}

absl::StatusOr<std::unique_ptr<CheckedMemory>> MakeGuardedMemory(
    const Bytes& content) {
  return std::make_unique<GuardedMemory>(content);
}

absl::Status RunAndCheck(Communicator& communicator,
                         const std::vector<CheckedCall>& calls,
                         AdditionOrder order, const MakeMemory& memory) {
  return RunAndCheckAll(communicator.rank(), communicator.world_size(), calls,
                        order, memory,
                        [&](const Collective& call) -> absl::Status {
                          LOCKSTEP_RETURN_IF_ERROR(communicator.Run(call));
                          return communicator.Wait();
                        });
}

absl::Status RunAndCheck(
    Transport& transport, const std::vector<CheckedCall>& calls,
    AdditionOrder order,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run) {
  return RunAndCheckAll(
      transport.rank(), transport.world_size(), calls, order, MakeGuardedMemory,
      [&](const Collective& call) { return run(transport, call); });
}

}  // namespace lockstep
