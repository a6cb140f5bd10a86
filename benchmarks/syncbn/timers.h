// Timers around the kernels and the messages of a SyncBatchNorm.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_TIMERS_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_TIMERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Where the timers of one rank write. Not thread safe.
struct CallTiming {
  double (*clock)() = nullptr;  // SteadySeconds, or a test's.
  CallTimes call;               // The kernels and messages of the call so far.
};

// Kernels that return when they are done, on the host, timed. Borrows both.
class TimedKernels : public BatchNormKernels {
 public:
  TimedKernels(BatchNormKernels& kernels, CallTiming& timing)
      : kernels_(kernels), timing_(timing) {}

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

 private:
  BatchNormKernels& kernels_;
  CallTiming& timing_;
};

// A group that notes when this rank enters and leaves each message. Borrows
// both. Thread safety: the group's, and one thread at a time.
class TimedCommunicator : public Communicator {
 public:
  TimedCommunicator(Communicator& group, CallTiming& timing)
      : group_(group), timing_(timing) {}

  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  absl::Status Run(const Collective& call) override;
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  Communicator& group_;
  CallTiming& timing_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_TIMERS_H_
