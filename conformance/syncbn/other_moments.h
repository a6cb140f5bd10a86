// Means and variances that known mistakes would normalise with.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_OTHER_MOMENTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_OTHER_MOMENTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/data_type.h"
#include "conformance/syncbn/batch_norm_reference.h"
#include "conformance/syncbn/step_view.h"

namespace lockstep {

// Mean and variance that each channel may have been normalised with.
struct Moments {
  std::vector<double> mean;
  std::vector<double> variance;
};

Moments MomentsOf(const ReferenceStatistics& statistics);

// Divided by n - 1.
Moments UnbiasedMomentsOf(const ReferenceStatistics& statistics);

// The ranks' moments, averaged without weights. An empty rank, which has zeros,
// may count as any other.
Moments UnweightedMoments(const StepView& view, bool with_empty);

// Which values of a rank's batch were taken.
using Takes =
    std::function<bool(const ReferenceBatch& batch, int64_t n, int64_t i)>;

// All ranks' moments had each taken some of its values for all: with the right
// count, so that the others seem to be zeros in the mean, or with theirs.
Moments IncompleteMoments(const StepView& view, bool own_count,
                          const Takes& takes);

// The right means, and variances that are E[x^2] - E[x]^2, or 0 where that is
// negative: of sums that are rounded to `type` value by value, in the order of
// samples and pixels. In float32 and float64 all that follows is rounded so
// too; of 16 bits only the sums are. `whole`: the ranks' sums are added up, in
// `type`; else each rank's variance is made so, and these are merged rightly.
Moments SquaredMoments(const StepView& view, DataType type, bool whole);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_OTHER_MOMENTS_H_
