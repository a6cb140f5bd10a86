// A part of the matrix for the CUDA kernels and the `nccl` backend, on the
// stand-in for CUDA and NCCL: its device memory is the host's, so the same
// checker reads and writes it. The stand-in takes a hundred times as long as a
// loop would, so that always each part tries another one of its problems.
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::conformance {
namespace {

using testing::Each;

// Waits for what a call enqueued, so that the host may look at it.
absl::Status WaitForDevice() {
  return cudaDeviceSynchronize() == cudaSuccess
             ? absl::OkStatus()
             : absl::InternalError("the device failed");
}

absl::StatusOr<std::unique_ptr<BatchNormKernels>> MakeKernels() {
  return CudaBatchNormKernels::Create(nullptr);
}

// The device's.
std::shared_ptr<void> AllocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  return {memory, [](void* p) { EXPECT_EQ(cudaFree(p), cudaSuccess); }};
}

// Of 3 channels of one pixel and 65 of several, affine or far; and all that is
// fused, in place.
std::vector<BatchNormProblem> SomeProblems(int world_size, DataType type,
                                           RankBatches batches) {
  std::vector<BatchNormProblem> some;
  for (const auto& problem : ProblemsOf(world_size, type, batches)) {
    const bool small = problem.channels == 3 && problem.hw == 1;
    const bool large = problem.channels == 65 && problem.hw > 1;
    const bool far = problem.offsets == Offsets::kFar;
    if ((small || large) && problem.affine != far) some.push_back(problem);
  }
  for (const auto& problem : FusedProblemsOf(world_size, type, batches)) {
    if (problem.fused == Fused::kInPlace && problem.channels == 64 &&
        problem.affine && problem.hw > 1) {
      some.push_back(problem);
    }
  }
  return some;
}

// Each layout, profile and way to track.
std::vector<BatchNormVariant> SomeVariants() {
  return {{Layout::kNchw, Tracking::kMomentum, kTorchBatchNorm},
          {Layout::kNhwc, Tracking::kCumulative, kPaddleBatchNorm},
          {Layout::kNhwc, Tracking::kNone, kTorchBatchNorm}};
}

std::vector<MatrixPart> Parts() {
  return PartsOf(std::vector<int>{1, 2},
                 std::vector<DataType>{DataType::kFloat32, DataType::kFloat16,
                                       DataType::kBFloat16});
}

class SyncBatchNormNcclTest : public testing::TestWithParam<MatrixPart> {};

TEST_P(SyncBatchNormNcclTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder({"sync_batch_norm", "nccl stand-in, CUDA kernels",
                          world_size, Name(type)});
  const std::vector<BatchNormVariant> variants = SomeVariants();
  const LayerFactory make = SyncBatchNormOver(MakeKernels, WaitForDevice);
  std::vector<BatchNormProblem> problems =
      SomeProblems(world_size, type, batches);
  if (!IsExhaustive()) {
    const auto number = static_cast<size_t>(world_size) +
                        static_cast<size_t>(type) +
                        static_cast<size_t>(batches);
    problems = {problems[number % problems.size()]};
  }
  for (const auto& problem : problems) {
    const SolvedProblem solved = SolveProblem(problem);
    ASSERT_THAT(CheckMeaning(solved), IsOk());
    // By variant, then by rank.
    std::vector<std::vector<RankRun>> runs(
        variants.size(), std::vector<RankRun>(static_cast<size_t>(world_size)));
    const auto statuses =
        RunNcclRanks(world_size, NcclOptions(), [&](NcclCommunicator& group) {
          for (size_t v = 0; v < variants.size(); ++v) {
            LOCKSTEP_ASSIGN_OR_RETURN(
                runs[v][static_cast<size_t>(group.rank())],
                RunOnRank(solved, variants[v], make, group, AllocateOnDevice));
          }
          return absl::OkStatus();
        });
    ASSERT_THAT(statuses, Each(IsOk()));
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto error = MeasureRun(solved, variants[v], runs[v]);
      ASSERT_THAT(error, IsOk());
      recorder.Measure(*error);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SyncBatchNormNcclTest, testing::ValuesIn(Parts()),
                         [](const auto& info) { return ToString(info.param); });

}  // namespace
}  // namespace lockstep::conformance
