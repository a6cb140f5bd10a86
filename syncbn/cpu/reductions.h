// Reductions of batch norm on the CPU: a batch to numbers per channel, and the
// ranks' records to one.
#ifndef LOCKSTEP_SYNCBN_CPU_REDUCTIONS_H_
#define LOCKSTEP_SYNCBN_CPU_REDUCTIONS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// CpuBatchNormKernels::ComputeMoments on some channels. The first range of a
// record starts the record. `scratch` is overwritten. Errors:
// kResourceExhausted for scratch memory.
absl::Status ReduceMoments(const ActivationShape& shape, ConstBuffer x,
                           std::byte* record, ChannelRange range,
                           VectorUnit unit, Scratch& scratch);

// CpuBatchNormKernels::BackwardReduce on some channels. Writes g to `gradient`,
// if that is not empty. This needs ReLU, no conversion of types, and tiles that
// lie in place; `gradient` may be dy's memory. Errors: as for ReduceMoments.
absl::Status ReduceGradients(const BatchNormKernels::BackwardCall& call,
                             ChannelRange range, const Buffer& gradient,
                             VectorUnit unit, Scratch& scratch);

// Merges the ranks' records of some channels. The first range starts the
// result.
void MergeRecords(const BatchNormKernels::MergeCall& call, ChannelRange range);

// Makes the running statistics the saved ones.
void CopyRunningStatistics(const BatchNormKernels::RunningCall& call);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_REDUCTIONS_H_
