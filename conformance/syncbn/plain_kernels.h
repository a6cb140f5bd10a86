// The operations of batch norm as loops in float64, one number at a time: an
// independent layer to check.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_PLAIN_KERNELS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_PLAIN_KERNELS_H_

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
  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override;
  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override;
  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override;
};

// Numbers in memory of any type of activations, aligned or not.
double GetNumber(ConstBuffer buffer, int64_t i);
void SetNumber(Buffer buffer, int64_t i, double value);

// A record in memory. `second` is M2, or the inverse deviation.
struct RecordAccess {
  RecordAccess(const StatisticsRecord& record, std::byte* memory);

  int64_t count() const;
  void set_count(int64_t count) const;

  std::byte* memory;
  Buffer mean;
  Buffer second;
};

// Where element (n, c, i) lies.
int64_t PlaceOf(const ActivationShape& shape, int64_t n, int64_t c, int64_t i);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_PLAIN_KERNELS_H_
