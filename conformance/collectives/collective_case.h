// The calls that are made of a group, their inputs, and what they must give
// (collectives/algorithms/collective_reference.h).
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"

namespace lockstep::conformance {

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

// The slice of them (base/slice.h) that `salt` draws: the more ranks, the
// fewer, as a case costs the square of their number. In every slice are a
// message of several slots of each operation, an unequal AllGather and Barrier.
std::vector<CollectiveCase> SomeCollectiveCases(int world_size, uint64_t salt);

bool HasRoot(Operation operation);

// The destination of kSend.
int DestinationOf(const CollectiveCase& call, int world_size);

// The input of one rank; the source's for kSend.
Bytes InputOf(const CollectiveCase& call, int world_size, int rank);

// Elements that each rank gives to an AllGather.
std::vector<int64_t> CountsOf(const CollectiveCase& call, int world_size);

// Which inputs a reduction takes.
struct Taken {
  std::vector<int>
      ranks;       // In place of each rank's, this one's; empty: its own.
  int twice = -1;  // This rank's is reduced with itself first; -1: none.
  // The last part of this rank's is zero, as memory that was not yet written;
  // -1: none's.
  int unwritten = -1;
  bool last_part = false;  // `twice` holds for the last part alone.
};

// Returns where the last of P parts of an input begins: that of the last rank,
// as ranks divide a reduction.
constexpr int64_t LastPartOf(int64_t count, int world_size) {
  return count - count / world_size;
}

// The output of one rank. None where a rank gets no output: whatever it has
// there must stay as it is. `taken` is for what a group might get wrong.
std::optional<Bytes> OutputOf(const CollectiveCase& call, AdditionOrder order,
                              int world_size, int rank,
                              const Taken& taken = {});

// The first element that differs, as text; none if there is none. Two NaN are
// equal, other values only if all their bits are.
std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
