// A collective call as a value: its operation, its buffers and its position in
// the source. Every backend runs this value; decorators and tests inspect it.
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

// A position in the source. As a default argument, CallSite::Here() is the
// position of the call.
struct CallSite {
  static constexpr CallSite Here(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {file, line};
  }

  const char* file = "";  // Never freed.
  int line = 0;
};

template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T>
inline constexpr bool kIsSpan<std::span<T>> = true;

// The type that a range's elements are declared as, const or not.
template <typename Range>
using ElementOf =
    std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>;

// A range whose elements have a DataType (std::byte stands for uint8) and
// outlive the expression that the range appears in: an array, vector or span.
template <typename Range>
concept ElementRange =
    (std::is_lvalue_reference_v<Range> ||
     kIsSpan<std::remove_cvref_t<Range>>)&&requires(Range& range) {
  std::size(range);
}
&&kHasDataType<std::remove_const_t<ElementOf<Range>>>;

// The elements that a collective writes, of any alignment. They are in host
// memory, or for the NCCL backend in device memory. Borrowed: the caller keeps
// the memory alive and does not touch it until the call, or its handle, is
// done.
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
  // Returns elements [begin, begin + size).
  Buffer Part(int64_t begin, int64_t size) const {
    return {bytes() + begin * SizeOf(type), size, type};
  }

  void* data = nullptr;
  int64_t count = 0;  // Elements, not bytes.
  DataType type = DataType::kUInt8;
};

// The elements that a collective only reads. Otherwise like Buffer.
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

// The operation of a reduction.
//
// Float16 and bfloat16 are widened to float32, exactly, and reduced there. The
// result is rounded once at the end, to nearest even. Float32 and float64 are
// reduced in their own type.
//
// A NaN in any operand gives NaN, also for kMin and kMax. Its payload is not
// specified. Zeros of both signs are equal to kMin and kMax, which then keep
// the earlier operand's.
//
// kSum and kProduct of integers wrap. kAverage is the sum divided by the number
// of ranks. For integers the sum is exact (of int64, modulo 2^64) and the
// quotient is truncated toward zero.
enum class ReduceOp : int8_t { kSum, kProduct, kMin, kMax, kAverage };

inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                                             ReduceOp::kMin, ReduceOp::kMax,
                                             ReduceOp::kAverage};

// Returns "sum", "prod", "min", "max" or "avg", the names of nccl-tests.
const char* Name(ReduceOp op);

// Returns the type that every backend holds partial results in. It is float32
// for the 16-bit floats and int64 for averages of int32 and uint8. Sums are
// thus exact, or as good as those of float32. Any other type is its own
// accumulator.
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
  kReplay,  // Of a graph that has captured calls (NcclCommunicator::Replay).
};

// Returns the operation's name, for example "AllReduce".
const char* Name(Operation operation);

// Returns whether the operation takes a ReduceOp.
constexpr bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce ||
         operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

// Returns whether two ranks make the call, instead of all ranks.
constexpr bool IsBetweenTwo(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

// One rank's call. Communicator says what each operation does and names the
// arguments of these functions. Fields that an operation does not use keep
// their defaults.
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
  // Returns an AllReduce that adds every element in the same order for all
  // sizes (the tree of algorithms/schedule.h). The bits of an element thus do
  // not depend on the rest of the message. Ranks that mix this call with a
  // plain AllReduce disagree.
  //
  // Errors: AllReduce's. Cost: over shared memory, AllReduce's. Over a
  // transport each of P ranks sends 2 (P - 1) / P n elements in 2 log2 P
  // messages. It uses memory for up to n elements. A ring does not support this
  // order, so an NCCL group adds as in AllReduce.
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

  // Returns the call of a rank that cannot make the call that the other ranks
  // make. That call then ends on every rank with kInvalidArgument, which names
  // this rank and gives the message of `cause`, an error.
  static Collective Refused(Operation operation, const absl::Status& cause,
                            CallSite site = CallSite::Here());

  Operation operation = Operation::kBarrier;
  ConstBuffer input;  // The data that this rank gives.
  Buffer output;      // The memory for the data that this rank gets.
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;  // The root, destination or source.
  // The number of elements by rank in an AllGather of unequal counts, else
  // empty. Borrowed until the call is done.
  std::span<const int64_t> counts;
  CallSite site;
  bool uniform = false;                     // Set by UniformAllReduce.
  absl::Status refusal = absl::OkStatus();  // The cause, if Refused.
};

// Returns the number of elements that the ranks must agree on. For an operation
// in which each rank has a part of its own, it is the size of one part. These
// are ReduceScatter, AllGather of equal counts, Scatter, Gather and AllToAll.
// For all others it is the size of the whole.
int64_t AgreedCount(const Collective& call, int world_size);

// Returns OK if one rank's arguments are valid on `rank` of `world_size`. Roots
// must be in range and counts must match, with one type for input and output.
// The two must not overlap, except at the position of an in-place call. Error:
// kInvalidArgument, as a phrase that continues "rank 1 called Gather(...) but
// ". For a refused call the phrase is its cause.
absl::Status Validate(const Collective& call, int rank, int world_size);

// The description of a call that a rank sends to the others, so that all of
// them see whether they agree. Errors that name calls use it too, in the same
// words on every backend.
//
// Plain old data: it is stored in shared memory and sent as bytes between
// processes of one kind of machine. Fields that an operation does not use are
// zero.
struct Call {
  Operation operation = Operation::kBarrier;
  DataType type = {};
  ReduceOp op = {};
  bool uniform : 1 = false;  // Whether it is a UniformAllReduce.
  bool hashed : 1 = false;   // Whether `hash` is set.
  int32_t peer = 0;
  // AgreedCount, the bytes of kAllocate, or the calls of kReplay.
  int64_t count = 0;
  int32_t line = 0;
  char file[84] = {};  // The end of the path of the source file.
  // The hash of an AllGather's `counts` and of AddToHash's values, or 0.
  uint64_t hash = 0;

  // Adds another value that the ranks must agree on; 0 stands for no value.
  void AddToHash(uint64_t what) {
    hash ^= what;
    hashed = hash != 0;
  }
};

// Returns whether two ranks' calls match. The source positions do not count.
bool Agree(const Call& a, const Call& b);

Call CallOf(const Collective& collective, int world_size);
// Returns the call of an operation without buffers: kAllocate, kSplit or
// kReplay.
Call CallOf(Operation operation, int64_t count, const CallSite& site);

// Returns text such as "AllReduce(float32[10], sum) at
// models/train/trainer.cc:42", "Broadcast(uint8[16], root 1) at ..." or
// "Barrier() at ...".
std::string ToString(const Call& call);

// Returns kInvalidArgument: "<what>: rank 0 called X at a.cc:1, rank 2 called Y
// at ...".
absl::Status CallsDiffer(absl::string_view what, int rank, const Call& call,
                         int other_rank, const Call& other);

// Returns kInvalidArgument: "rank 1 called X at a.cc:1 but <why>".
absl::Status CallRefused(int rank, const Call& call, absl::string_view why);

// Returns kFailedPrecondition: "rank 1 called X at a.cc:1 after the group had
// failed: <the message of cause>".
absl::Status CallAfterFailure(int rank, const Call& call,
                              const absl::Status& cause);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COLLECTIVE_H_
