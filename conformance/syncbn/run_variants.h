// Runs a problem on every rank of a new group.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_RUN_VARIANTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_RUN_VARIANTS_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// SyncBatchNorm over kernels of its own.
using KernelsFactory = std::function<std::unique_ptr<BatchNormKernels>()>;
LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels);

// The runs by variant, then by rank, all in one group. Error: what the first
// rank got that could not join it or make the layer, or died.
absl::StatusOr<std::vector<std::vector<RankRun>>> RunVariants(
    Backend backend, const BatchNormExam& exam,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_RUN_VARIANTS_H_
