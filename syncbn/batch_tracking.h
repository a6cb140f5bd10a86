// What a batch does to a layer's running statistics, whatever computed it.
#ifndef LOCKSTEP_SYNCBN_BATCH_TRACKING_H_
#define LOCKSTEP_SYNCBN_BATCH_TRACKING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/batch_norm_options.h"

namespace lockstep {

// How the next batch is to be merged into `running`, tracked or not.
MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running);

// Counts a batch of `values` per channel that has been merged so, if there were
// any and it is tracked. Errors: OneValueError where the semantics refuse it.
absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_BATCH_TRACKING_H_
