// Batch normalisation over the batch of all ranks.
#ifndef LOCKSTEP_SYNCBN_SYNC_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_SYNC_BATCH_NORM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// A BatchNorm whose ranks in training normalise with the mean and variance of
// their batches together, whatever each one's size: unequal, one sample, or
// none. Every rank then calls Forward and Backward in the same order, also
// those that have no sample. dx is that of one rank with the whole batch;
// running statistics have the same bits on every rank. Evaluation does not
// communicate.
//
// Messages in training, P ranks: forward one all-gather of every rank's count,
// means and M2, 16 + 8c bytes (16 + 16c for float64; the arrays rounded up to
// 16), merged in rank order;
// backward one all-reduce of 2c sums. A group of one rank sends nothing. The
// same P, shapes and values give the same bits, whichever backend moves the
// messages.
//
// Not thread safe: one thread at a time uses the layer and, during a call, its
// group. Where another thread all-reduces gradients meanwhile, give the layer a
// group of its own (Communicator::Split); but not with NCCL, where one thread
// must begin the calls of both groups (nccl/nccl_communicator.h).
class SyncBatchNorm : public BatchNorm {
 public:
  // Borrows `kernels` and `group`, whose memory is of one space. Does not
  // communicate. Allocates scratch space from `kernels`, world_size * (16 + 8c)
  // bytes; layers of float64 grow it once. Errors: those of
  // CheckBatchNormOptions and of the allocation.
  static absl::StatusOr<std::unique_ptr<SyncBatchNorm>> Create(
      const BatchNormOptions& options, BatchNormKernels& kernels,
      Communicator& group);

  // Normalises with this rank's batch alone, without messages.
  static absl::StatusOr<std::unique_ptr<SyncBatchNorm>> CreateLocal(
      const BatchNormOptions& options, BatchNormKernels& kernels);

  int64_t SavedBytes(DataType type) const override;

  // Errors, beside BatchNorm's: the group's. In training, a rank that fails
  // before its message, since its arguments are wrong or its device says so,
  // tells the others in place of it: they return kInvalidArgument, which names
  // the rank and gives its error. As after any error of the group, no call of
  // it succeeds any more.
  //
  // On a device both only enqueue, and the host waits for nothing: but for
  // Forward, in training, on a rank that has fewer than two values per channel
  // where there are other ranks. It waits to learn how many those have.
  absl::Status Forward(const Forwards& buffers) override;
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override;

 private:
  static absl::StatusOr<std::unique_ptr<SyncBatchNorm>> Make(
      const BatchNormOptions& options, BatchNormKernels& kernels,
      Communicator* group);
  SyncBatchNorm(const BatchNormOptions& options, BatchNormKernels& kernels,
                Communicator* group)
      : options_(options), kernels_(kernels), group_(group) {}

  // Makes scratch space large enough for `bytes`.
  absl::Status Reserve(int64_t bytes);
  // Whether statistics are those of all ranks, which wait for this one.
  bool IsShared(bool training) const { return training && group_ != nullptr; }
  // Tells the other ranks in their `operation` of `cause`, an error, and
  // returns it.
  absl::Status Refuse(Operation operation, const absl::Status& cause);
  // Checks the call and writes `saved` and the running statistics from the
  // batch of all ranks.
  absl::Status UseBatch(const Forwards& buffers);
  // Checks the call and runs it with the statistics of this rank's batch.
  absl::Status ForwardLocal(const Forwards& buffers);

  const BatchNormOptions options_;
  BatchNormKernels& kernels_;
  Communicator* const group_;  // Null: no other rank.
  // Records of all ranks forward, sums backward.
  std::shared_ptr<std::byte> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_SYNC_BATCH_NORM_H_
