// The backward pass: the sums over the batch, and the gradient of the input.
#ifndef LOCKSTEP_SYNCBN_CPU_BACKWARD_H_
#define LOCKSTEP_SYNCBN_CPU_BACKWARD_H_

#include "absl/status/status.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/scratch.h"

namespace lockstep {

// BatchNormKernels::BackwardReduce, in one pass. Sums of a tile of 64 rows
// (column_plan.h) are in the type T of the statistics, with at most 18
// additions in a row; all else is in float64, and rounded to T at the end. So
// sum of g is off by at most 19 u sum |g|, and the other by 22 u sum |g (x -
// mean)| * inverse deviation, to first order in the unit round-off u.
absl::Status ReduceBackward(const BatchNormKernels::BackwardCall& call,
                            const Buffer& sums, const Buffer& dweight,
                            const Buffer& dbias, VectorUnit unit,
                            Scratch& scratch);

// BatchNormKernels::BackwardInput: per element, each operation rounded to T,
//
//   dx = a * ((g - b) - (x - mean) * c),  a = weight * inverse deviation,
//   b = sums[0] / count,  c = sums[1] / count * inverse deviation
absl::Status BackwardToInput(const BatchNormKernels::BackwardCall& call,
                             const ConstBuffer& sums, const Buffer& dx,
                             const Buffer& dresidual, VectorUnit unit,
                             Scratch& scratch);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_BACKWARD_H_
