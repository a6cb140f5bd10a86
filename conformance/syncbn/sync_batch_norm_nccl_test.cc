// A slice of the matrix for the CUDA kernels and the `nccl` backend, on the
// stand-in for CUDA and NCCL: its device memory is the host's, so the same
// checker reads and writes it.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

using testing::Each;

absl::Status WaitForDevice() {
  return cudaDeviceSynchronize() == cudaSuccess
             ? absl::OkStatus()
             : absl::InternalError("the device failed");
}

// Waits for what a call enqueued, so that the host may look at it.
class WaitingLayer : public BatchNorm {
 public:
  WaitingLayer(std::unique_ptr<CudaBatchNormKernels> kernels,
               std::unique_ptr<BatchNorm> layer)
      : kernels_(std::move(kernels)), layer_(std::move(layer)) {}

  int64_t SavedBytes(DataType type) const override {
    return layer_->SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    LOCKSTEP_RETURN_IF_ERROR(layer_->Forward(buffers));
    return WaitForDevice();
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    absl::Status ready;
    LOCKSTEP_RETURN_IF_ERROR(layer_->Backward(buffers, [&] {
      ready = WaitForDevice();
      gradients_ready();
    }));
    LOCKSTEP_RETURN_IF_ERROR(ready);
    return WaitForDevice();
  }

 private:
  const std::unique_ptr<CudaBatchNormKernels> kernels_;  // Outlives layer_.
  const std::unique_ptr<BatchNorm> layer_;
};

absl::StatusOr<std::unique_ptr<BatchNorm>> MakeLayer(
    const BatchNormOptions& options, Communicator& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<CudaBatchNormKernels> kernels,
                            CudaBatchNormKernels::Create(nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                            SyncBatchNorm::Create(options, *kernels, group));
  return std::make_unique<WaitingLayer>(std::move(kernels), std::move(layer));
}

// The device's.
std::shared_ptr<void> AllocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  return {memory, [](void* p) { EXPECT_EQ(cudaFree(p), cudaSuccess); }};
}

// The stand-in takes a hundred times as long as a loop would. Of 3 channels of
// one pixel and 65 of several, affine or far; and all that is fused, in place.
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

struct Part {
  int world_size;
  DataType type;
  RankBatches batches;
};

std::vector<Part> Parts() {
  std::vector<Part> parts;
  for (const int world_size : {1, 2}) {
    for (const DataType type :
         {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
      for (const RankBatches batches : kAllBatches) {
        parts.push_back({world_size, type, batches});
      }
    }
  }
  return parts;
}

class SyncBatchNormNcclTest : public testing::TestWithParam<Part> {};

TEST_P(SyncBatchNormNcclTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder({"sync_batch_norm", "nccl stand-in, CUDA kernels",
                          world_size, Name(type)});
  const std::vector<BatchNormVariant> variants = SomeVariants();
  for (const auto& problem : SomeProblems(world_size, type, batches)) {
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
                RunOnRank(solved, variants[v], MakeLayer, group,
                          AllocateOnDevice));
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
                         [](const auto& info) {
                           return absl::StrCat("P", info.param.world_size, "_",
                                               Name(info.param.type), "_",
                                               Name(info.param.batches));
                         });

}  // namespace
}  // namespace lockstep
