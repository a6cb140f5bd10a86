// From the ranks' statistics to what a batch is normalised with.
#ifndef LOCKSTEP_SYNCBN_CPU_MERGE_RECORDS_H_
#define LOCKSTEP_SYNCBN_CPU_MERGE_RECORDS_H_

#include <cstddef>
#include <cstdint>

#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// BatchNormKernels::Merge, in host memory.
int64_t MergeRecords(const StatisticsRecord& record, const std::byte* gathered,
                     int ranks, const MergeOptions& options,
                     const RunningStatistics& running, std::byte* saved);

// BatchNormKernels::UseRunning, in host memory.
void UseRunningStatistics(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_MERGE_RECORDS_H_
