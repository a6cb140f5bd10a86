// Element-wise operations of batch norm on the CPU, with parameters of the
// element's channel, and those that remain after oneDNN's batch norm.
#ifndef LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_
#define LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "base/vector_unit.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// CpuBatchNormKernels::Normalize and BackwardInput on some channels. `scratch`
// is overwritten. Errors: kResourceExhausted for scratch memory.
absl::Status NormalizeChannels(const BatchNormKernels::NormalizeCall& call,
                               ChannelRange range, VectorUnit unit,
                               Scratch& scratch);
absl::Status InputGradientOfChannels(const BatchNormKernels::BackwardCall& call,
                                     ChannelRange range, VectorUnit unit,
                                     Scratch& scratch);

// The operations that remain to be done for each activation after oneDNN's
// batch norm.
//
// Sets y = normal, then + residual if it is not empty, then max(0, .) if
// `relu`, with NaN for NaN. Does nothing if there is neither. y may be the
// memory of normal or of residual.
void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y);
// Sets g = 0 where y <= 0, otherwise g = dy. g may be dy's memory.
void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_ELEMENTWISE_H_
