#include "syncbn/sync_batch_norm.h"

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SyncBatchNorm>> SyncBatchNorm::Create(
    const BatchNormOptions& options, BatchNormKernels& kernels,
    Communicator& group) {
  return Make(options, kernels, group.world_size() > 1 ? &group : nullptr);
}

absl::StatusOr<std::unique_ptr<SyncBatchNorm>> SyncBatchNorm::CreateLocal(
    const BatchNormOptions& options, BatchNormKernels& kernels) {
  return Make(options, kernels, /*group=*/nullptr);
}

absl::StatusOr<std::unique_ptr<SyncBatchNorm>> SyncBatchNorm::Make(
    const BatchNormOptions& options, BatchNormKernels& kernels,
    Communicator* group) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormOptions(options));
  std::unique_ptr<SyncBatchNorm> made(
      new SyncBatchNorm(options, kernels, group));
  // Reserves all scratch space now, so that neither pass allocates in training.
  const int64_t ranks = group == nullptr ? 1 : group->world_size();
  LOCKSTEP_RETURN_IF_ERROR(made->Reserve(
      ranks * RecordOf(options.channels, DataType::kFloat32).size_bytes()));
  return made;
}

int64_t SyncBatchNorm::SavedBytes(DataType type) const {
  return RecordOf(options_.channels, type).size_bytes();
}

absl::Status SyncBatchNorm::Forward(const ForwardBuffers& buffers) {
  if (IsShared(buffers.training)) {
    LOCKSTEP_RETURN_IF_ERROR(ComputeBatchStatistics(buffers));
  } else if (buffers.training || !options_.track_running_stats) {
    return ForwardLocal(buffers);
  } else {
    LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
    LOCKSTEP_RETURN_IF_ERROR(kernels_.UseRunning(
        {RecordOf(options_.channels, buffers.x.type), buffers.running,
         options_.epsilon, buffers.saved.bytes()}));
  }
  if (buffers.shape.n == 0) return absl::OkStatus();
  return kernels_.Normalize(buffers);
}

absl::Status SyncBatchNorm::ForwardLocal(const ForwardBuffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
  const int64_t values = buffers.shape.values_per_channel();
  if (values == 1 && options_.semantics.refuses_one_value) {
    return OneValueError();
  }
  LOCKSTEP_RETURN_IF_ERROR(Reserve(SavedBytes(buffers.x.type)));
  LOCKSTEP_RETURN_IF_ERROR(kernels_.ForwardLocal(
      buffers, MergeOptionsFor(options_, buffers.running), scratch_.get()));
  return CountBatch(options_, values, buffers.running);
}

absl::Status SyncBatchNorm::ComputeBatchStatistics(
    const ForwardBuffers& buffers) {
  const StatisticsRecord record = RecordOf(options_.channels, buffers.x.type);
  const int64_t size = record.size_bytes();
  const int ranks = group_->world_size();
  const int64_t own = group_->rank() * size;
  const auto compute = [&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
    LOCKSTEP_RETURN_IF_ERROR(Reserve(ranks * size));
    return kernels_.ComputeMoments(buffers.shape, buffers.x,
                                   scratch_.get() + own);
  };
  const absl::Status computed = compute();
  if (!computed.ok()) return SendRefusal(Operation::kAllGather, computed);
  const Buffer records(scratch_.get(), ranks * size, DataType::kUInt8);
  LOCKSTEP_RETURN_IF_ERROR(group_->AllGather(records.Part(own, size), records));
  const RunningStatistics& running = buffers.running;
  LOCKSTEP_RETURN_IF_ERROR(kernels_.Merge({record, scratch_.get(), ranks,
                                           MergeOptionsFor(options_, running),
                                           running, buffers.saved.bytes()}));
  // If this rank has two values, it knows that the batch is not refused and is
  // counted. Only ranks with fewer values wait to learn how many the other
  // ranks have. If a single value is refused, every rank has fewer than two and
  // learns of it.
  int64_t values = buffers.shape.values_per_channel();
  if (values < 2) {
    LOCKSTEP_RETURN_IF_ERROR(group_->Wait());
    LOCKSTEP_ASSIGN_OR_RETURN(values,
                              kernels_.ReadCount(buffers.saved.bytes()));
  }
  return CountBatch(options_, values, running);
}

absl::Status SyncBatchNorm::Backward(
    const BackwardBuffers& buffers, absl::FunctionRef<void()> gradients_ready) {
  BatchNormKernels::BackwardCall call = {buffers, /*sums=*/{}};
  const auto prepare = [&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckBackwards(options_, buffers));
    const DataType type = StatisticsTypeOf(buffers.x.type);
    const int64_t count = 2 * options_.channels;
    LOCKSTEP_RETURN_IF_ERROR(Reserve(count * SizeOf(type)));
    call.sums = Buffer(scratch_.get(), count, type);
    return absl::OkStatus();
  };
  absl::Status status = prepare();
  if (!IsShared(buffers.training)) {
    return status.ok() ? kernels_.BackwardLocal(call, gradients_ready) : status;
  }
  if (status.ok()) status = kernels_.BackwardReduce(call);
  if (!status.ok()) return SendRefusal(Operation::kAllReduce, status);
  gradients_ready();
  LOCKSTEP_RETURN_IF_ERROR(group_->AllReduce(call.sums));
  if (buffers.shape.n == 0) return absl::OkStatus();
  return kernels_.BackwardInput(call);
}

absl::Status SyncBatchNorm::SendRefusal(Operation operation,
                                        const absl::Status& cause) {
  // The group's next call reports its state.
  group_->Run(Collective::Refused(operation, cause)).IgnoreError();
  return cause;
}

absl::Status SyncBatchNorm::Reserve(int64_t bytes) {
  if (bytes <= scratch_bytes_) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(scratch_, kernels_.Allocate(bytes));
  scratch_bytes_ = bytes;
  return absl::OkStatus();
}

}  // namespace lockstep
