// A collective call as a value: what every backend runs, and what decorators
// and tests look at.
#ifndef LOCKSTEP_COLLECTIVES_COLLECTIVE_H_
#define LOCKSTEP_COLLECTIVES_COLLECTIVE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/call_site.h"
#include "collectives/reduce_op.h"

namespace lockstep {

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

// One rank's call. Communicator says what each operation does, and names the
// arguments of these functions. Fields that an operation has no use for keep
// their default.
struct Collective {
  static Collective AllReduce(ConstBuffer input, Buffer output,
                              ReduceOp op = ReduceOp::kSum,
                              CallSite site = CallSite::Here());
  static Collective AllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                              CallSite site = CallSite::Here());
  // AllReduce that adds every element in the same order, whatever the size
  // (algorithms/order.h: the tree): an element's bits do not depend on what
  // else is in the message. Errors: AllReduce's; ranks that mix the two do not
  // agree. Cost: AllReduce's over shared memory; over a transport 2 (P - 1) / P
  // n elements from each rank in 2 log2 P messages, and up to n elements of
  // memory, P the ranks. A ring cannot, so an NCCL group adds as AllReduce
  // does.
  static Collective UniformAllReduce(Buffer data, ReduceOp op = ReduceOp::kSum,
                                     CallSite site = CallSite::Here());
  static Collective Reduce(ConstBuffer input, Buffer output, ReduceOp op,
                           int root, CallSite site = CallSite::Here());
  static Collective ReduceScatter(ConstBuffer input, Buffer output,
                                  ReduceOp op = ReduceOp::kSum,
                                  CallSite site = CallSite::Here());
  static Collective AllGather(ConstBuffer input, Buffer output,
                              CallSite site = CallSite::Here());
  static Collective AllGather(ConstBuffer input, Buffer output,
                              std::span<const int64_t> counts,
                              CallSite site = CallSite::Here());
  static Collective Broadcast(Buffer data, int root,
                              CallSite site = CallSite::Here());
  static Collective Scatter(ConstBuffer input, Buffer output, int root,
                            CallSite site = CallSite::Here());
  static Collective Gather(ConstBuffer input, Buffer output, int root,
                           CallSite site = CallSite::Here());
  static Collective AllToAll(ConstBuffer input, Buffer output,
                             CallSite site = CallSite::Here());
  static Collective Send(ConstBuffer data, int destination,
                         CallSite site = CallSite::Here());
  static Collective Receive(Buffer data, int source,
                            CallSite site = CallSite::Here());
  static Collective Barrier(CallSite site = CallSite::Here());

  // In the place of a call that the other ranks make, from a rank that cannot:
  // it ends on every rank with kInvalidArgument, which names this rank and
  // gives the message of `cause`, an error.
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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_COLLECTIVE_H_
