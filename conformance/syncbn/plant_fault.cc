// Plants faults in layers and asks the suite.
#include "conformance/syncbn/plant_fault.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/data_type.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/batch_norm_subject.h"
#include "conformance/syncbn/batch_norm_values.h"
#include "conformance/syncbn/faulty_batch_norm.h"
#include "conformance/syncbn/run_batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {
namespace {

// A group that a fault breaks has ended by then, and has not waited for it.
constexpr absl::Duration kGroupTimeout = absl::Seconds(10);
constexpr absl::Duration kDeadline = absl::Minutes(2);

RunRanksOptions GroupOf() {
  RunRanksOptions options;
  options.group.timeout = kGroupTimeout;
  options.deadline = kDeadline;
  return options;
}

LayerFactory MakeOnCpu(const BatchNormFault& fault) {
  return MakeFaulty(fault, [] {
    return std::unique_ptr<BatchNormKernels>(
        std::make_unique<CpuBatchNormKernels>());
  });
}

}  // namespace

std::vector<BatchNormFault> AllBatchNormFaults() {
  std::vector<BatchNormFault> all;
  for (const auto& some : {SumFaults(), StatisticsFaults(), RunningFaults(),
                           GradientFaults(), CallFaults()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<BatchNormProblem> FaultProblems(const BatchNormFault& fault) {
  if (fault.problems != nullptr) return fault.problems();
  std::vector<BatchNormProblem> grid;
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const Batches batches : kAllBatches) {
      for (const int world_size : {1, 3}) {
        for (const auto& problem : ProblemsOf(world_size, type, batches)) {
          if (problem.channels == 3 || problem.channels == 65) {
            grid.push_back(problem);
          }
        }
      }
      for (const auto& problem : FusedProblemsOf(3, type, batches)) {
        grid.push_back(problem);
      }
    }
  }
  std::vector<BatchNormProblem> sample;
  for (size_t i = 0; i < grid.size(); ++i) {
    if (Hash(i) % 3 == 0) sample.push_back(grid[i]);
  }
  return sample;
}

std::vector<absl::Status> CheckFaulty(
    const BatchNormFault& fault, const BatchNormExam& exam,
    const std::vector<BatchNormVariant>& variants) {
  const bool twice = fault.check == "SameBits";
  std::vector<BatchNormVariant> all = variants;
  if (twice) all.insert(all.end(), variants.begin(), variants.end());
  const auto runs =
      RunVariants(Backend::kThreads, exam, all, MakeOnCpu(fault), GroupOf());
  if (!runs.ok()) return {variants.size(), runs.status()};
  std::vector<absl::Status> statuses;
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto& run = (*runs)[v];
    absl::Status status = CheckRun(exam, variants[v], run);
    if (status.ok() && twice) {
      status = CheckSameBits(exam, variants[v], run,
                             (*runs)[variants.size() + v], "in another run");
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace lockstep
