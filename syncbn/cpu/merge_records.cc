// Merges in float64, for some channels at a time: ranks have one count for all
// channels, so that a merge divides once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/moments.h"

namespace lockstep {
namespace {

constexpr int64_t kChunk = 64;

int64_t CountOf(const std::byte* record) {
  int64_t count;
  std::memcpy(&count, record, sizeof(count));
  return count;
}

struct Chunk {
  double mean[kChunk] = {};
  double m2[kChunk] = {};
  int64_t count = 0;
};

// The ranks' channels [begin, begin + size), in rank order.
template <typename T>
Chunk MergeChunk(const StatisticsRecord& record, const std::byte* gathered,
                 int ranks, int64_t begin, int64_t size) {
  Chunk chunk;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::byte* const more = gathered + rank * record.size_bytes();
    const int64_t count = CountOf(more);
    const T* const mean = record.Mean<T>(more) + begin;
    const T* const m2 = record.Second<T>(more) + begin;
    for (int64_t j = 0; j < size; ++j) {
      const Moments<double> merged = MergeMoments<double>(
          {chunk.count, chunk.mean[j], chunk.m2[j]}, {count, mean[j], m2[j]});
      chunk.mean[j] = merged.mean;
      chunk.m2[j] = merged.m2;
    }
    chunk.count += count;
  }
  return chunk;
}

template <typename T>
void UpdateRunning(const Chunk& chunk, const MergeOptions& options,
                   const RunningStatistics& running, int64_t begin,
                   int64_t size) {
  T* const mean = static_cast<T*>(running.mean.data) + begin;
  T* const variance = static_cast<T*>(running.variance.data) + begin;
  const double weight = options.weight_of_batch;
  for (int64_t j = 0; j < size; ++j) {
    const Moments<double> moments = {chunk.count, chunk.mean[j], chunk.m2[j]};
    const double batch_variance = options.unbiased_running_variance
                                      ? UnbiasedVariance(moments)
                                      : BiasedVariance(moments);
    mean[j] =
        static_cast<T>((1 - weight) * double{mean[j]} + weight * moments.mean);
    variance[j] = static_cast<T>((1 - weight) * double{variance[j]} +
                                 weight * batch_variance);
  }
}

template <typename T>
int64_t MergeOf(const BatchNormKernels::MergeCall& call) {
  const StatisticsRecord& record = call.record;
  T* const mean = record.Mean<T>(call.saved);
  T* const inverse = record.Second<T>(call.saved);
  int64_t count = 0;
  for (int64_t begin = 0; begin < record.channels; begin += kChunk) {
    const int64_t size = std::min(kChunk, record.channels - begin);
    const Chunk chunk =
        MergeChunk<T>(record, call.gathered, call.ranks, begin, size);
    count = chunk.count;
    const double n = static_cast<double>(std::max<int64_t>(count, 1));
    for (int64_t j = 0; j < size; ++j) {
      mean[begin + j] = static_cast<T>(chunk.mean[j]);
      inverse[begin + j] = static_cast<T>(
          InverseDeviation(chunk.m2[j] / n, call.options.epsilon));
    }
    const bool refused = count == 1 && call.options.refuses_one_value;
    if (call.running.tracked() && count > 0 && !refused) {
      UpdateRunning<T>(chunk, call.options, call.running, begin, size);
    }
  }
  return count;
}

template <typename T>
void CopyRunning(const BatchNormKernels::RunningCall& call) {
  const int64_t channels = call.record.channels;
  T* const inverse = call.record.Second<T>(call.saved);
  const T* const variance = static_cast<const T*>(call.running.variance.data);
  std::copy_n(static_cast<const T*>(call.running.mean.data), channels,
              call.record.Mean<T>(call.saved));
  for (int64_t j = 0; j < channels; ++j) {
    inverse[j] =
        static_cast<T>(InverseDeviation(double{variance[j]}, call.epsilon));
  }
}

// Clears a record, since its gaps are saved and sent too, and sets its count.
void StartRecord(const StatisticsRecord& record, int64_t count,
                 std::byte* saved) {
  std::memset(saved, 0, static_cast<size_t>(record.size_bytes()));
  std::memcpy(saved, &count, sizeof(count));
}

}  // namespace

absl::StatusOr<int64_t> CpuBatchNormKernels::Merge(const MergeCall& call) {
  int64_t count = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    count += CountOf(call.gathered + rank * call.record.size_bytes());
  }
  StartRecord(call.record, count, call.saved);
  return call.record.type == DataType::kFloat64 ? MergeOf<double>(call)
                                                : MergeOf<float>(call);
}

absl::Status CpuBatchNormKernels::UseRunning(const RunningCall& call) {
  StartRecord(call.record, /*count=*/0, call.saved);
  if (call.record.type == DataType::kFloat64) {
    CopyRunning<double>(call);
  } else {
    CopyRunning<float>(call);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
