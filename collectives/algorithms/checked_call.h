// Collectives whose answer is known, for tests of algorithms.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {

// A call of all ranks. kSend stands for a Send of `root` and a Receive of the
// rank after it; the others do nothing.
struct CheckedCall {
  Operation operation;
  DataType type = DataType::kInt64;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;  // AgreedCount, unless there are counts.
  int root = 0;
  bool in_place = false;  // On the root, where it is the only one to have both.
  std::vector<int64_t> counts = {};  // Of an AllGather of unequal counts.
  // Input is floating-point zeros of both signs.
  bool only_zeros = false;
};

// "AllReduce of float32[10], sum, root 1, in place".
std::string Describe(const CheckedCall& call);

// The input of a rank, whose elements differ by rank and index as far as the
// type can tell them apart: never a NaN or zero, and of sizes that make
// floating-point sums depend on their order. For tests that add up themselves.
void FillInput(int rank, DataType type, int64_t count, void* data);

// Makes the call on one rank, through `run`, with buffers that are not aligned
// and stand between guards. kDataLoss, naming rank, call and element, if output
// is not what one rank computes from all inputs, bit for bit; if anything else
// was written; or else run's error.
absl::Status RunAndCheck(
    Transport& transport, const CheckedCall& call, AdditionOrder order,
    absl::FunctionRef<absl::Status(Transport&, const Collective&)> run);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_CHECKED_CALL_H_
