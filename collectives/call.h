// What a rank tells the others about its call, so that they see whether they
// agree, and the errors that name calls, in the same words on every backend.
#ifndef LOCKSTEP_COLLECTIVES_CALL_H_
#define LOCKSTEP_COLLECTIVES_CALL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// Plain old data: it lies in shared memory, and travels as bytes between
// processes of one kind of machine. Fields that an operation has no use for are
// zero.
struct Call {
  Operation operation = Operation::kBarrier;
  DataType type = {};
  ReduceOp op = {};
  bool uniform = false;  // A UniformAllReduce.
  int32_t peer = 0;
  int64_t count = 0;         // AgreedCount; bytes of kAllocate.
  uint64_t counts_hash = 0;  // Of an AllGather of unequal counts.
  int32_t line = 0;
  char file[84] = {};  // The end of the path of the source file.
};

// Whether two ranks' calls fit together; where they were made does not count.
bool Agree(const Call& a, const Call& b);

Call CallOf(const Collective& collective, int world_size);
// Of an operation that has no more than this: kAllocate, kSplit.
Call CallOf(Operation operation, int64_t count, const CallSite& site);

// "AllReduce(float32[10], sum) at models/trainer.cc:42",
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

#endif  // LOCKSTEP_COLLECTIVES_CALL_H_
