// The calls that the conformance suite makes of a group.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// What the ranks' inputs hold.
enum class ValueKind {
  kRough,    // Numbers whose sum has other bits in another order.
  kSpecial,  // NaN, infinities, zeros of both signs, the largest and smallest.
};

// One call, the same on every rank.
struct CollectiveCase {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // Where the operation reduces.
  // Elements, as Collective's AgreedCount; with `unequal`, rank r gives
  // count + r of them, and rank 0 none.
  int64_t count = 0;
  bool unequal = false;  // Of kAllGather.
  bool uniform = false;  // Of kAllReduce, in place: UniformAllReduce.
  int root = 0;          // The source of kSend, ...
  int distance = 1;      // ... and its destination less the source, modulo P.
  bool in_place = false;
  // Bytes from an aligned address to each buffer.
  int64_t misalignment = 0;
  ValueKind values = ValueKind::kRough;
};

// "AllReduce(float32[7], sum), in place, 1 byte off".
std::string ToString(const CollectiveCase& call);

// Every operation x type x reduction x {in place, out of place}, each with
// counts that are zero, one, odd, in tree order and in ring order, with every
// root for one of them. kSend stands for kSend and kReceive.
std::vector<CollectiveCase> CollectiveCases(int world_size);

bool HasRoot(Operation operation);

// The destination of kSend.
int DestinationOf(const CollectiveCase& call, int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
