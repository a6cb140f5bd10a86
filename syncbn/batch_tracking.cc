// Reads the semantics of a layer for the merge of one batch.
#include "syncbn/batch_tracking.h"

#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm_semantics.h"
#include "syncbn/check_batch_norm.h"

namespace lockstep {

MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running) {
  const BatchNormSemantics& semantics = options.semantics;
  MergeOptions merge;
  merge.epsilon = options.epsilon;
  merge.unbiased_running_variance = semantics.unbiased_running_variance;
  merge.refuses_one_value = semantics.refuses_one_value;
  if (running.tracked()) {
    merge.weight_of_batch = WeightOfBatch(options, *running.batches + 1);
  }
  return merge;
}

absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running) {
  if (values == 1 && options.semantics.refuses_one_value) {
    return OneValueError();
  }
  if (running.tracked() && values > 0) ++*running.batches;
  return absl::OkStatus();
}

}  // namespace lockstep
