// What oneDNN's batch norm leaves to be done to each activation.
#ifndef LOCKSTEP_SYNCBN_CPU_RELU_PASSES_H_
#define LOCKSTEP_SYNCBN_CPU_RELU_PASSES_H_

#include "collectives/buffer.h"

namespace lockstep {

// y = normal, + residual if not empty, then max(0, .) if `relu`, with NaN for
// NaN. Nothing if there is neither.
// y may be the memory of either.
void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y);

// g = dy where not y <= 0, else 0. g may be dy's memory.
void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_RELU_PASSES_H_
