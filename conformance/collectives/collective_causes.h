// What a wrong output of a collective looks like: the mistake that gives it.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_

#include <cstddef>
#include <string>

#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_reference.h"

namespace lockstep {

// What one rank got, of as many bytes as it should have.
struct WrongOutput {
  const CollectiveCase& call;
  Order order;
  int world_size;
  int rank;
  const std::byte* got;
  const Bytes& want;
  const Bytes& before;  // What was there.
};

// ", as if ..." for the first mistake that gives every bit of the output, else
// "". Those that are tried: nothing written, or not the last element; the first
// and the last element in each other's place; another root; the sum for an
// average; a rank's input taken twice; the order of another call, or of the
// ranks (of up to four in any order, else forwards or backwards from any rank).
// Cost: that of a few dozen references.
std::string CauseOfOutput(const WrongOutput& output);

// The same for the memory of a rank that gets no output, where it was written:
// as if this rank were the root. got: as many bytes as the root's output has.
std::string CauseOfStrayOutput(const CollectiveCase& call, Order order,
                               int world_size, int rank, const std::byte* got);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_
