// A collective call as a value: its operation, buffers and place in the source.
// It is what every backend runs, and what decorators and tests look at.
#ifndef LOCKSTEP_COLLECTIVES_COLLECTIVE_H_
#define LOCKSTEP_COLLECTIVES_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"

namespace lockstep {

// As a default argument, CallSite::Here() is the place of the call.
struct CallSite {
  static constexpr CallSite Here(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {file, line};
  }

  const char* file = "";  // Lives for ever.
  int line = 0;
};

template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T>
inline constexpr bool kIsSpan<std::span<T>> = true;

// What a range's elements are declared as, const or not.
template <typename Range>
using ElementOf =
    std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>;

// Arrays, vectors and spans of elements that have a DataType (std::byte stands
// for uint8), which outlive the expression that they stand in.
template <typename Range>
concept ElementRange =
    (std::is_lvalue_reference_v<Range> ||
     kIsSpan<std::remove_cvref_t<Range>>)&&requires(Range& range) {
  std::size(range);
}
&&kHasDataType<std::remove_const_t<ElementOf<Range>>>;

// Elements that a collective writes, of any alignment. Host memory, or for the
// NCCL backend device memory. Borrowed: the caller keeps it alive and does not
// touch it until the call, or its handle, is done.
struct Buffer {
  constexpr Buffer() = default;
  constexpr Buffer(void* data, int64_t count, DataType type)
      : data(data), count(count), type(type) {}
  template <ElementRange Range>
  requires(!std::is_const_v<ElementOf<Range>>) Buffer(Range&& range)
      : Buffer(std::data(range), static_cast<int64_t>(std::size(range)),
               kDataTypeOf<ElementOf<Range>>) {}

  int64_t size_bytes() const { return count * SizeOf(type); }
  std::byte* bytes() const { return static_cast<std::byte*>(data); }
  // Elements [begin, begin + size).
  Buffer Part(int64_t begin, int64_t size) const {
    return {bytes() + begin * SizeOf(type), size, type};
  }

  void* data = nullptr;
  int64_t count = 0;  // Elements, not bytes.
  DataType type = DataType::kUInt8;
};

// The same, for elements that a collective only reads.
struct ConstBuffer {
  constexpr ConstBuffer() = default;
  constexpr ConstBuffer(const void* data, int64_t count, DataType type)
      : data(data), count(count), type(type) {}
  ConstBuffer(const Buffer& b) : ConstBuffer(b.data, b.count, b.type) {}
  template <ElementRange Range>
  ConstBuffer(Range&& range)
      : ConstBuffer(std::data(range), static_cast<int64_t>(std::size(range)),
                    kDataTypeOf<std::remove_const_t<ElementOf<Range>>>) {}

  int64_t size_bytes() const { return count * SizeOf(type); }
  const std::byte* bytes() const { return static_cast<const std::byte*>(data); }
  ConstBuffer Part(int64_t begin, int64_t size) const {
    return {bytes() + begin * SizeOf(type), size, type};
  }

  const void* data = nullptr;
  int64_t count = 0;
  DataType type = DataType::kUInt8;
};

// Float16 and bfloat16 are widened to float32, exactly, reduced there, and
// rounded once at the end, to nearest even; float32 and float64 are reduced in
// their own type.
//
// A NaN in any operand gives NaN (its payload is not specified), also for kMin
// and kMax. Zeros of both signs are equal to kMin and kMax, which then keep the
// earlier operand's.
//
// kSum and kProduct of integers wrap. kAverage is the sum divided by the number
// of ranks: for integers the exact sum (of int64, modulo 2^64), and the
// quotient is truncated toward zero.
enum class ReduceOp : int8_t { kSum, kProduct, kMin, kMax, kAverage };

inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                                             ReduceOp::kMin, ReduceOp::kMax,
                                             ReduceOp::kAverage};

// "sum", "prod", "min", "max", "avg", as nccl-tests names them.
const char* Name(ReduceOp op);

// What partial results of a reduction are held in, on every backend: float32
// for the 16-bit floats and int64 for averages of int32 and uint8, so that sums
// are exact or as good as float32's; else the type itself.
constexpr DataType AccumulatorOf(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return DataType::kFloat32;
    case DataType::kInt32:
    case DataType::kUInt8:
      return op == ReduceOp::kAverage ? DataType::kInt64 : type;
    case DataType::kFloat64:
    case DataType::kFloat32:
    case DataType::kInt64:
      break;
  }
  return type;
}

enum class Operation : int8_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kScatter,
  kGather,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
  kAllocate,
  kSplit,
};

// "AllReduce".
const char* Name(Operation operation);

// Whether it takes a ReduceOp.
constexpr bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce ||
         operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

// Whether it is a call of two ranks, and not of all.
constexpr bool IsBetweenTwo(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

// One rank's call. Communicator says what each operation does, and names the
// arguments of these functions. Fields that an operation has no use for keep
// their default.
struct Collective {
  static Collective AllReduce(ConstBuffer input, Buffer output,
                              ReduceOp op = ReduceOp::kSum,
                              CallSite site = CallSite::Here()) {
    return {Operation::kAllReduce, input, output, op, 0, {}, site};
  }
  static Collective AllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                              CallSite site = CallSite::Here()) {
    return AllReduce(data, data, op, site);
  }
  // AllReduce that adds every element in the same order, whatever the size
  // (algorithms/schedule.h: the tree): an element's bits do not depend on what
  // else is in the message. Errors: AllReduce's; ranks that mix the two do not
  // agree. Cost: AllReduce's over shared memory; over a transport 2 (P - 1) / P
  // n elements from each rank in 2 log2 P messages, and up to n elements of
  // memory, P the ranks. A ring cannot, so an NCCL group adds as AllReduce
  // does.
  static Collective UniformAllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                                     CallSite site = CallSite::Here()) {
    Collective call = AllReduce(data, op, site);
    call.uniform = true;
    return call;
  }
  static Collective Reduce(ConstBuffer input, Buffer output, ReduceOp op,
                           int root, CallSite site = CallSite::Here()) {
    return {Operation::kReduce, input, output, op, root, {}, site};
  }
  static Collective ReduceScatter(ConstBuffer input, Buffer output,
                                  ReduceOp op = ReduceOp::kSum,
                                  CallSite site = CallSite::Here()) {
    return {Operation::kReduceScatter, input, output, op, 0, {}, site};
  }
  static Collective AllGather(ConstBuffer input, Buffer output,
                              CallSite site = CallSite::Here()) {
    return AllGather(input, output, {}, site);
  }
  static Collective AllGather(ConstBuffer input, Buffer output,
                              std::span<const int64_t> counts,
                              CallSite site = CallSite::Here()) {
    return {Operation::kAllGather, input, output, {}, 0, counts, site};
  }
  static Collective Broadcast(Buffer data, int root,
                              CallSite site = CallSite::Here()) {
    return {Operation::kBroadcast, data, data, {}, root, {}, site};
  }
  static Collective Scatter(ConstBuffer input, Buffer output, int root,
                            CallSite site = CallSite::Here()) {
    return {Operation::kScatter, input, output, {}, root, {}, site};
  }
  static Collective Gather(ConstBuffer input, Buffer output, int root,
                           CallSite site = CallSite::Here()) {
    return {Operation::kGather, input, output, {}, root, {}, site};
  }
  static Collective AllToAll(ConstBuffer input, Buffer output,
                             CallSite site = CallSite::Here()) {
    return {Operation::kAllToAll, input, output, {}, 0, {}, site};
  }
  static Collective Send(ConstBuffer data, int destination,
                         CallSite site = CallSite::Here()) {
    return {Operation::kSend, data, {}, {}, destination, {}, site};
  }
  static Collective Receive(Buffer data, int source,
                            CallSite site = CallSite::Here()) {
    return {Operation::kReceive, {}, data, {}, source, {}, site};
  }
  static Collective Barrier(CallSite site = CallSite::Here()) {
    return {Operation::kBarrier, {}, {}, {}, 0, {}, site};
  }

  // Made by a rank in place of a call that the other ranks make and it cannot.
  // The call then ends on every rank with kInvalidArgument, which names this
  // rank and gives the message of `cause`, an error.
  static Collective Refused(Operation operation, const absl::Status& cause,
                            CallSite site = CallSite::Here());

  Operation operation = Operation::kBarrier;
  ConstBuffer input;  // What this rank gives.
  Buffer output;      // What it gets.
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;  // Root, destination or source.
  // Of an AllGather of unequal counts: elements by rank, else empty. Borrowed
  // until the call is done.
  std::span<const int64_t> counts;
  CallSite site;
  bool uniform = false;                     // Of UniformAllReduce.
  absl::Status refusal = absl::OkStatus();  // Why not, of a call Refused.
};

// The elements that the ranks must agree on: of the whole, or where each rank
// has a part of its own (ReduceScatter, AllGather of equal counts, Scatter,
// Gather, AllToAll) of one part.
int64_t AgreedCount(const Collective& call, int world_size);

// Whether one rank's arguments make sense on `rank` of `world_size`: roots in
// range, counts that fit each other, one type, input and output apart or in the
// place that in-place calls have. Error: kInvalidArgument, as a phrase that
// continues "rank 1 called Gather(...) but ". Of a refused call, its cause.
absl::Status Validate(const Collective& call, int rank, int world_size);

// What a rank tells the others about its call, so that they see whether they
// agree, and the errors that name calls, in the same words on every backend.
//
// Plain old data: it lies in shared memory, and travels as bytes between
// processes of one kind of machine. Fields that an operation has no use for are
// zero.
struct Call {
  Operation operation = Operation::kBarrier;
  DataType type = {};
  ReduceOp op = {};
  bool uniform : 1 = false;  // A UniformAllReduce.
  bool hashed : 1 = false;   // Whether there is a hash.
  int32_t peer = 0;
  int64_t count = 0;  // AgreedCount; bytes of kAllocate.
  int32_t line = 0;
  char file[84] = {};  // The end of the path of the source file.
  uint64_t hash = 0;   // Of an AllGather of unequal counts.

  // Takes what else the ranks must agree on; 0 is nothing.
  void AddToHash(uint64_t what) {
    hash ^= what;
    hashed = hash != 0;
  }
};

// Whether two ranks' calls fit together; where they were made does not count.
bool Agree(const Call& a, const Call& b);

Call CallOf(const Collective& collective, int world_size);
// The call of an operation without buffers: kAllocate, kSplit.
Call CallOf(Operation operation, int64_t count, const CallSite& site);

// "AllReduce(float32[10], sum) at models/train/trainer.cc:42",
// "Broadcast(uint8[16], root 1) at ...", "Barrier() at ...".
std::string ToString(const Call& call);

// kInvalidArgument: "<what>: rank 0 called X at a.cc:1, rank 2 called Y at
// ...".
absl::Status CallsDiffer(absl::string_view what, int rank, const Call& call,
                         int other_rank, const Call& other);

// kInvalidArgument: "rank 1 called X at a.cc:1 but <why>".
absl::Status CallRefused(int rank, const Call& call, absl::string_view why);

// kFailedPrecondition: "rank 1 called X at a.cc:1 after the group had failed:
// <the message of cause>".
absl::Status CallAfterFailure(int rank, const Call& call,
                              const absl::Status& cause);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COLLECTIVE_H_
