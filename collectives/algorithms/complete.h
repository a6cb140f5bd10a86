// The last addition of a reduction by messages.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_COMPLETE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_COMPLETE_H_

#include <cstdint>
#include <span>

#include "collectives/algorithms/reduction.h"

namespace lockstep {

// Every output = (earlier op last), finished, for n elements: accumulators op
// elements gives elements. Outputs may be `last`, and at least one; they do not
// overlap `earlier`. Any alignment.
void CompleteReduction(const Reduction& reduction, const void* earlier,
                       const void* last, std::span<void* const> outputs,
                       int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_COMPLETE_H_
