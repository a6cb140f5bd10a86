#include "syncbn/cpu/cpu_batch_norm_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/elementwise.h"
#include "syncbn/cpu/reductions.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

// The bytes of activations that a core's L2 cache of 1 or 2 MiB keeps while
// other data passes through it. A single thread is fastest with smaller ranges.
// Several threads start together for each operation on a range, and only if it
// has work for them (ParallelFor).
constexpr int64_t kCacheBytes = int64_t{1} << 20;
constexpr int64_t kRangeBytes = int64_t{1} << 18;

int64_t BlockBytes(const ActivationShape& shape, DataType type) {
  return shape.values_per_channel() * kChannelBlock * SizeOf(type);
}

// Returns how many channels are processed at once: so many that `arrays`
// activations of them have kCacheBytes for each thread (kRangeBytes for a
// single thread), but at least one block for each thread. Threads therefore
// process whole blocks, and the same blocks in each operation.
int64_t ChannelsAtOnce(const ActivationShape& shape, DataType type,
                       int arrays) {
  if (!IsBlocked(shape)) return shape.c;
  const int64_t bytes = std::max<int64_t>(1, arrays * BlockBytes(shape, type));
  const int64_t threads = MaxParallelThreads();
  const int64_t wanted = threads > 1 ? kCacheBytes : kRangeBytes;
  const int64_t blocks = std::max<int64_t>(1, wanted / bytes);
  return blocks * threads * kChannelBlock;
}

// Returns whether to keep g = dy where y > 0, in place of reading dy and y
// twice. This is so if the cache cannot hold one block of `arrays` activations,
// and g can be written.
bool KeepsGradient(const BatchNormKernels::BackwardCall& call, int arrays) {
  const DataType type = call.x.type;
  return call.relu && IsBlocked(call.shape) && TilesLieInPlace(call.shape) &&
         StatisticsTypeOf(type) == type &&
         arrays * BlockBytes(call.shape, type) > kCacheBytes;
}

// Returns the range of at most `size` channels that begins with `begin`.
ChannelRange RangeAt(const ActivationShape& shape, int64_t begin,
                     int64_t size) {
  return {.begin = begin, .size = std::min(size, shape.c - begin)};
}

}  // namespace

absl::Status CpuBatchNormKernels::ComputeMoments(const ActivationShape& shape,
                                                 ConstBuffer x,
                                                 std::byte* record) {
  return ReduceMoments(shape, x, record, AllChannels(shape), unit_, scratch_);
}

absl::Status CpuBatchNormKernels::Normalize(const NormalizeCall& call) {
  return NormalizeChannels(call, AllChannels(call.shape), unit_, scratch_);
}

absl::Status CpuBatchNormKernels::BackwardReduce(const BackwardCall& call) {
  return ReduceGradients(call, AllChannels(call.shape), /*gradient=*/{}, unit_,
                         scratch_);
}

absl::Status CpuBatchNormKernels::BackwardInput(const BackwardCall& call) {
  return InputGradientOfChannels(call, AllChannels(call.shape), unit_,
                                 scratch_);
}

absl::Status CpuBatchNormKernels::Merge(const MergeCall& call) {
  MergeRecords(call, {.begin = 0, .size = call.record.channels});
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CpuBatchNormKernels::ReadCount(const std::byte* saved) {
  return StatisticsRecord::Count(saved);
}

absl::Status CpuBatchNormKernels::UseRunning(const RunningCall& call) {
  CopyRunningStatistics(call);
  return absl::OkStatus();
}

absl::Status CpuBatchNormKernels::ForwardLocal(const NormalizeCall& call,
                                               const MergeOptions& options,
                                               std::byte* record) {
  const ActivationShape& shape = call.shape;
  const MergeCall merge = {RecordOf(shape.c, call.x.type),
                           record,
                           /*ranks=*/1,
                           options,
                           call.running,
                           call.saved.bytes()};
  const int64_t size = ChannelsAtOnce(shape, call.x.type, /*arrays=*/1);
  for (int64_t begin = 0; begin < shape.c; begin += size) {
    const ChannelRange range = RangeAt(shape, begin, size);
    LOCKSTEP_RETURN_IF_ERROR(
        ReduceMoments(shape, call.x, record, range, unit_, scratch_));
    MergeRecords(merge, range);
    if (shape.n > 0)
      LOCKSTEP_RETURN_IF_ERROR(NormalizeChannels(call, range, unit_, scratch_));
  }
  return absl::OkStatus();
}

absl::Status CpuBatchNormKernels::BackwardLocal(
    const BackwardCall& call, absl::FunctionRef<void()> gradients_ready) {
  const ActivationShape& shape = call.shape;
  const int arrays = call.relu ? 3 : 2;
  Buffer gradient;
  BackwardCall input = call;
  if (KeepsGradient(call, arrays)) {
    gradient = call.dresidual.count > 0 ? call.dresidual : call.dx;
    input.relu = false;
    input.dy = gradient;
    input.dresidual = {};
  }
  const int64_t size = ChannelsAtOnce(shape, call.x.type, arrays);
  for (int64_t begin = 0; begin < shape.c; begin += size) {
    const ChannelRange range = RangeAt(shape, begin, size);
    LOCKSTEP_RETURN_IF_ERROR(
        ReduceGradients(call, range, gradient, unit_, scratch_));
    if (range.begin + range.size == shape.c) gradients_ready();
    if (shape.n > 0)
      LOCKSTEP_RETURN_IF_ERROR(
          InputGradientOfChannels(input, range, unit_, scratch_));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
