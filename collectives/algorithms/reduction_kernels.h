// The loops of a reduction, for one type and operation and one instruction set.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_KERNELS_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_KERNELS_H_

#include <cstdint>

#include "base/data_types.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"

namespace lockstep {

// The loops of one reduction. Element i of the result is computed from element
// i of the operands, which are read before any later element of the result is
// written. The result may thus be an operand with elements of the same size,
// but must not overlap an operand otherwise. Memory may have any alignment; n
// >= 0.
//
// Every NaN that the combining loops give is the same one (positive, quiet,
// without payload), whatever the payloads of the operands. An instruction alone
// would keep the payload of an operand that depends on the processor and on the
// compiler's order of operands.
struct ReductionKernels {
  using Combine = void (*)(const void* earlier, const void* later, void* result,
                           int64_t n);

  // Widens elements to accumulators. Null if both are the same type.
  void (*begin)(const void* input, void* accumulator, int64_t n);
  // Combines accumulators (earlier) with elements (later).
  Combine accumulate;
  // Computes ((earlier op later[0]) op later[1]) op later[2] in one pass. Null
  // if elements are not accumulators.
  void (*accumulate_three)(const void* earlier, const void* const* later,
                           void* result, int64_t n);
  // Combines accumulators with accumulators.
  Combine merge;
  // Divides by world_size for kAverage, and narrows. Null if neither is needed.
  void (*finish)(const void* accumulator, void* output, int64_t n,
                 int world_size);
};

// All units give the same bits. The loops may be called only if `unit` is at
// most BestVectorUnit().
const ReductionKernels& ReductionKernelsFor(DataType type, ReduceOp op,
                                            VectorUnit unit);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_KERNELS_H_
