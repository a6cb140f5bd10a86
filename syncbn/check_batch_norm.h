// What all implementations of BatchNorm share: whether the memory of a call
// fits its shape and its layer, and what a batch does to the running
// statistics.
#ifndef LOCKSTEP_SYNCBN_CHECK_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_CHECK_BATCH_NORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// What BatchNorm asks of its callers: channels and sizes, types, alignment, no
// null where there are elements, running statistics and weights exactly where
// the layer has them, and nothing written over what else the call uses but
// where that is allowed. `options` have passed CheckBatchNormOptions. Errors:
// kInvalidArgument, with the name of the buffer and what is wrong with it.
absl::Status CheckForwards(const BatchNormOptions& options,
                           const BatchNorm::Forwards& buffers);
absl::Status CheckBackwards(const BatchNormOptions& options,
                            const BatchNorm::Backwards& buffers);

// The error of normalising one value per channel with its own statistics, where
// the semantics refuse it.
absl::Status OneValueError();

// How the next batch is to be merged into `running`, tracked or not.
MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running);

// Counts a batch of `values` per channel that has been merged so, if there were
// any and it is tracked. Errors: OneValueError where the semantics refuse it.
absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CHECK_BATCH_NORM_H_
