// The operations of batch norm as loops in float64, one number at a time: an
// independent layer to check.
#ifndef LOCKSTEP_SYNCBN_TESTING_PLAIN_KERNELS_H_
#define LOCKSTEP_SYNCBN_TESTING_PLAIN_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Host memory; no state.
class PlainKernels : public BatchNormKernels {
 public:
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::StatusOr<int64_t> Merge(const MergeCall& call) override;
  absl::Status UseRunning(const RunningCall& call) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call) override;
  absl::Status BackwardInput(const BackwardCall& call) override;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_PLAIN_KERNELS_H_
