// The causes of a wrong output of a collective.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_

#include <cstddef>
#include <string>

#include "conformance/collectives/collective_case.h"

namespace lockstep::conformance {

// A rank's wrong output, of the right size.
struct WrongOutput {
  const CollectiveCase& call;
  AdditionOrder order;
  int world_size;
  int rank;
  const std::byte* got;
  const Bytes& want;
  const Bytes& before;  // The contents of the memory before the call.
};

// Returns ", as if ..." for the first cause that gives every bit of the output,
// or "". The causes, in this order:
//
//   - nothing was written, or all but the last element;
//   - the first and the last element were exchanged;
//   - another rank was the root;
//   - the sum was taken for the average;
//   - a rank's input was taken twice;
//   - the last part of it was taken twice, or read before it was written;
//   - the order of additions was that of another call or of other ranks. All
//     orders of up to four ranks are tried; of more, the forward and backward
//     orders from any rank.
//
// Cost: that of a few dozen references.
std::string CauseOfOutput(const WrongOutput& output);

// Explains likewise the memory of a rank that gets no output but was written:
// ", as if this rank were the root". got: as many bytes as the root's output
// has.
std::string CauseOfStrayOutput(const CollectiveCase& call, AdditionOrder order,
                               int world_size, int rank, const std::byte* got);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CAUSES_H_
