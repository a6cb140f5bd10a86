// The order of kernels and messages in a synchronised batch norm.
#include "syncbn/sync_batch_norm.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/batch_norm_options.h"
#include "syncbn/batch_tracking.h"
#include "syncbn/check_batch_norm.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SyncBatchNorm>> SyncBatchNorm::Create(
    const BatchNormOptions& options, BatchNormKernels& kernels,
    Communicator& group) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormOptions(options));
  return std::unique_ptr<SyncBatchNorm>(
      new SyncBatchNorm(options, kernels, &group));
}

absl::StatusOr<std::unique_ptr<SyncBatchNorm>> SyncBatchNorm::CreateLocal(
    const BatchNormOptions& options, BatchNormKernels& kernels) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormOptions(options));
  return std::unique_ptr<SyncBatchNorm>(
      new SyncBatchNorm(options, kernels, /*group=*/nullptr));
}

int64_t SyncBatchNorm::SavedBytes(DataType type) const {
  return RecordOf(type).size_bytes();
}

absl::Status SyncBatchNorm::Forward(const Forwards& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
  if (!buffers.training && options_.track_running_stats) {
    LOCKSTEP_RETURN_IF_ERROR(
        kernels_.UseRunning(RecordOf(buffers.x.type), buffers.running,
                            options_.epsilon, buffers.saved.bytes()));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(
        UseBatch(buffers, buffers.training && group_ != nullptr));
  }
  if (buffers.shape.n == 0) return absl::OkStatus();
  return kernels_.Normalize({.shape = buffers.shape,
                             .relu = buffers.relu,
                             .x = buffers.x,
                             .residual = buffers.residual,
                             .weight = buffers.weight,
                             .bias = buffers.bias,
                             .saved = buffers.saved.bytes(),
                             .y = buffers.y});
}

absl::Status SyncBatchNorm::UseBatch(const Forwards& buffers,
                                     bool synchronised) {
  const StatisticsRecord record = RecordOf(buffers.x.type);
  const int64_t size = record.size_bytes();
  const int ranks = synchronised ? group_->world_size() : 1;
  LOCKSTEP_RETURN_IF_ERROR(Reserve(ranks * size));
  std::byte* const own =
      scratch_.get() + (synchronised ? group_->rank() * size : 0);
  LOCKSTEP_RETURN_IF_ERROR(
      kernels_.ComputeMoments(buffers.shape, buffers.x, own));
  if (synchronised) {
    LOCKSTEP_RETURN_IF_ERROR(group_->AllGather(
        ConstBuffer(own, size, DataType::kUInt8),
        Buffer(scratch_.get(), ranks * size, DataType::kUInt8)));
  }
  // Evaluation without running statistics has none to change.
  const RunningStatistics& running = buffers.running;
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t values,
                            kernels_.Merge(record, scratch_.get(), ranks,
                                           MergeOptionsFor(options_, running),
                                           running, buffers.saved.bytes()));
  return CountBatch(options_, values, running);
}

absl::Status SyncBatchNorm::Backward(
    const Backwards& buffers, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBackwards(options_, buffers));
  const DataType type = StatisticsTypeOf(buffers.x.type);
  const int64_t count = 2 * options_.channels;
  LOCKSTEP_RETURN_IF_ERROR(Reserve(count * SizeOf(type)));
  const Buffer sums(scratch_.get(), count, type);
  const BatchNormKernels::BackwardCall call = {
      .shape = buffers.shape,
      .relu = buffers.relu,
      .x = buffers.x,
      .y = buffers.y,
      .dy = buffers.dy,
      .weight = buffers.weight,
      .saved = static_cast<const std::byte*>(buffers.saved.data)};
  LOCKSTEP_RETURN_IF_ERROR(
      kernels_.BackwardReduce(call, sums, buffers.dweight, buffers.dbias));
  gradients_ready();
  if (buffers.training && group_ != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(group_->AllReduce(sums));
  }
  if (buffers.shape.n == 0) return absl::OkStatus();
  return kernels_.BackwardInput(call, sums, buffers.dx, buffers.dresidual);
}

absl::Status SyncBatchNorm::Reserve(int64_t bytes) {
  if (bytes <= scratch_bytes_) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(scratch_, kernels_.Allocate(bytes));
  scratch_bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace lockstep
