// The forward pass once the statistics are known.
#ifndef LOCKSTEP_SYNCBN_CPU_NORMALIZE_H_
#define LOCKSTEP_SYNCBN_CPU_NORMALIZE_H_

#include "absl/status/status.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/scratch.h"

namespace lockstep {

// BatchNormKernels::Normalize: per element, in the type T of the statistics,
//
//   y = (x - mean) * (inverse deviation * weight) + bias, + residual, ReLU
//
// with each operation rounded to T, and y once more to a 16-bit type.
absl::Status NormalizeBatch(const BatchNormKernels::NormalizeCall& call,
                            VectorUnit unit, Scratch& scratch);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_NORMALIZE_H_
