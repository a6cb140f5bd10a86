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

// A BatchNorm whose ranks, in training, normalise with the mean and variance of
// all their batches together. The batches may have any sizes: unequal, one
// sample, or none. Every rank calls Forward and Backward in the same order,
// even if it has no sample. dx equals that of a single rank with the whole
// batch. Running statistics have the same bits on every rank. Evaluation does
// not communicate.
//
// Messages in training with P ranks: forward, one all-gather of every rank's
// count, means and M2, 16 + 8c bytes (16 + 16c for float64; the arrays are
// rounded up to 16), merged in rank order; backward, one all-reduce of 2c sums.
// A group of one rank sends nothing. The same P, shapes and values give the
// same bits, whichever backend moves the messages.
//
// Not thread safe: one thread at a time uses the layer and, during a call, its
// group. If another thread all-reduces gradients at the same time, give the
// layer its own group (Communicator::Split). With NCCL this is not possible,
// because one thread must begin the calls of both groups
// (nccl/nccl_communicator.h).
class SyncBatchNorm : public BatchNorm {
 public:
  // Borrows `kernels` and `group`, whose memory must be of the same space. Does
  // not communicate. Allocates scratch space from `kernels`, world_size * (16 +
  // 8c) bytes; layers of float64 enlarge it once. Errors: those of
  // CheckBatchNormOptions and of the allocation.
  static absl::StatusOr<std::unique_ptr<SyncBatchNorm>> Create(
      const BatchNormOptions& options, BatchNormKernels& kernels,
      Communicator& group);

  // Creates a layer that normalises with this rank's batch only, without
  // messages.
  static absl::StatusOr<std::unique_ptr<SyncBatchNorm>> CreateLocal(
      const BatchNormOptions& options, BatchNormKernels& kernels);

  int64_t SavedBytes(DataType type) const override;

  // Errors, besides BatchNorm's: the group's. In training, a rank may fail
  // before its message because of its arguments or its device. It then sends
  // the error to the other ranks in place of the message. They return
  // kInvalidArgument, which names the rank and gives its error. After this, as
  // after any error of the group, every later call of the group fails.
  //
  // On a device both functions only enqueue, and the host does not wait, with
  // one exception: Forward, in training with other ranks, on a rank with fewer
  // than two values per channel. It waits to learn how many values the other
  // ranks have.
  absl::Status Forward(const ForwardBuffers& buffers) override;
  absl::Status Backward(const BackwardBuffers& buffers,
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
  // Returns whether the statistics are those of all ranks, so that the other
  // ranks wait for this one.
  bool IsShared(bool training) const { return training && group_ != nullptr; }
  // Tells the other ranks, in their `operation`, of the error `cause`. Returns
  // `cause`.
  absl::Status SendRefusal(Operation operation, const absl::Status& cause);
  // Checks the call and writes `saved` and the running statistics from the
  // batch of all ranks.
  absl::Status ComputeBatchStatistics(const ForwardBuffers& buffers);
  // Checks the call and runs it with the statistics of this rank's batch.
  absl::Status ForwardLocal(const ForwardBuffers& buffers);

  const BatchNormOptions options_;
  BatchNormKernels& kernels_;
  Communicator* const group_;  // Null if there is no other rank.
  // The records of all ranks in Forward, the sums in Backward.
  std::shared_ptr<std::byte> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_SYNC_BATCH_NORM_H_
