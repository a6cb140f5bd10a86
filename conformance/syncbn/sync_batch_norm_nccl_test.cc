// Runs a part of the matrix on the CUDA kernels and the `nccl` backend, on the
// stand-in for CUDA and NCCL and on GPUs. The layer works on device copies of
// the checker's buffers (device_mirror.h). The mutants look at the result of
// each kernel and each call, so there each of these works on device copies. A
// test's ranks live through all of its cases. The stand-in takes a hundred
// times as long as a plain loop, so each part tries another problem.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "conformance/device_mirror.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::conformance {
namespace {

RunningStatistics DeviceCopyOf(DeviceMirror& mirror,
                               RunningStatistics running) {
  running.mean = mirror.DeviceCopy(running.mean);
  running.variance = mirror.DeviceCopy(running.variance);
  return running;
}

BatchNorm::ForwardBuffers DeviceCopyOf(DeviceMirror& mirror,
                                       BatchNorm::ForwardBuffers call) {
  for (ConstBuffer* const buffer :
       {&call.x, &call.residual, &call.weight, &call.bias}) {
    *buffer = mirror.DeviceCopy(*buffer);
  }
  call.running = DeviceCopyOf(mirror, call.running);
  call.y = mirror.DeviceCopy(call.y);
  call.saved = mirror.DeviceCopy(call.saved);
  return call;
}

BatchNorm::BackwardBuffers DeviceCopyOf(DeviceMirror& mirror,
                                        BatchNorm::BackwardBuffers call) {
  for (ConstBuffer* const buffer :
       {&call.x, &call.y, &call.dy, &call.weight, &call.saved}) {
    *buffer = mirror.DeviceCopy(*buffer);
  }
  for (Buffer* const buffer :
       {&call.dweight, &call.dbias, &call.dx, &call.dresidual}) {
    *buffer = mirror.DeviceCopy(*buffer);
  }
  return call;
}

std::shared_ptr<DeviceMirror> MirrorOf(Communicator& group) {
  return static_cast<MirroredCommunicator&>(group).mirror();
}

std::shared_ptr<void> AllocateArea(Communicator& group, size_t bytes) {
  return MirrorOf(group)->Allocate(static_cast<int64_t>(bytes)).value();
}

// SyncBatchNorm over CUDA kernels and NCCL, on device copies of its buffers.
class MirroredLayer : public BatchNorm {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNorm>> Create(
      const BatchNormOptions& options, Communicator& group) {
    auto made = std::unique_ptr<MirroredLayer>(
        new MirroredLayer(static_cast<MirroredCommunicator&>(group)));
    LOCKSTEP_ASSIGN_OR_RETURN(made->kernels_,
                              CudaBatchNormKernels::Create(nullptr));
    LOCKSTEP_ASSIGN_OR_RETURN(
        made->layer_,
        SyncBatchNorm::Create(options, *made->kernels_, made->group_.device()));
    return std::unique_ptr<BatchNorm>(std::move(made));
  }

  int64_t SavedBytes(DataType type) const override {
    return layer_->SavedBytes(type);
  }
  absl::Status Forward(const ForwardBuffers& buffers) override {
    LOCKSTEP_RETURN_IF_ERROR(mirror_.Begin());
    return End(layer_->Forward(DeviceCopyOf(mirror_, buffers)));
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    LOCKSTEP_RETURN_IF_ERROR(mirror_.Begin());
    absl::Status ready;
    absl::Status status = layer_->Backward(DeviceCopyOf(mirror_, buffers), [&] {
      ready = mirror_.CopyBack(absl::OkStatus());
      gradients_ready();
    });
    status.Update(ready);
    return End(std::move(status));
  }

 private:
  explicit MirroredLayer(MirroredCommunicator& group)
      : group_(group), mirror_(*group.mirror()) {}

  absl::Status End(absl::Status status) {
    if (status.ok()) status = group_.device().Wait();
    return mirror_.End(std::move(status));
  }

  MirroredCommunicator& group_;
  DeviceMirror& mirror_;
  std::unique_ptr<BatchNormKernels> kernels_;  // Must outlive layer_.
  std::unique_ptr<BatchNorm> layer_;
};

// CUDA kernels on device copies of their buffers. Each call has completed when
// it returns.
class MirroredKernels : public BatchNormKernels {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNormKernels>> Create(
      Communicator& group) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto real, CudaBatchNormKernels::Create(nullptr));
    return std::unique_ptr<BatchNormKernels>(
        new MirroredKernels(MirrorOf(group), std::move(real)));
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return mirror_->Allocate(bytes);
  }
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override {
    return Run([&] {
      return real_->ComputeMoments(
          shape, mirror_->DeviceCopy(x),
          DeviceCopy(RecordOf(shape.c, x.type), record));
    });
  }
  absl::Status Merge(const MergeCall& call) override {
    return Run([&] {
      MergeCall twin = call;
      twin.gathered =
          mirror_
              ->DeviceCopy(ConstBuffer(call.gathered,
                                       call.ranks * call.record.size_bytes(),
                                       DataType::kUInt8))
              .bytes();
      twin.running = DeviceCopyOf(*mirror_, call.running);
      twin.saved = DeviceCopy(call.record, call.saved);
      return real_->Merge(twin);
    });
  }
  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override {
    // Merge has already copied it to the host.
    return StatisticsRecord::Count(saved);
  }
  absl::Status UseRunning(const RunningCall& call) override {
    return Run([&] {
      RunningCall twin = call;
      twin.running = DeviceCopyOf(*mirror_, call.running);
      twin.saved = DeviceCopy(call.record, call.saved);
      return real_->UseRunning(twin);
    });
  }
  absl::Status Normalize(const NormalizeCall& call) override {
    return Run([&] { return real_->Normalize(DeviceCopyOf(*mirror_, call)); });
  }
  absl::Status BackwardReduce(const BackwardCall& call) override {
    return Run([&] { return real_->BackwardReduce(DeviceCopy(call)); });
  }
  absl::Status BackwardInput(const BackwardCall& call) override {
    return Run([&] { return real_->BackwardInput(DeviceCopy(call)); });
  }

 private:
  MirroredKernels(std::shared_ptr<DeviceMirror> mirror,
                  std::unique_ptr<BatchNormKernels> real)
      : mirror_(std::move(mirror)), real_(std::move(real)) {}

  absl::Status Run(absl::FunctionRef<absl::Status()> call) {
    LOCKSTEP_RETURN_IF_ERROR(mirror_->Begin());
    return mirror_->End(call());
  }
  std::byte* DeviceCopy(const StatisticsRecord& record, std::byte* data) {
    return mirror_
        ->DeviceCopy(Buffer(data, record.size_bytes(), DataType::kUInt8))
        .bytes();
  }
  BackwardCall DeviceCopy(const BackwardCall& call) {
    BackwardCall twin = call;
    static_cast<BatchNorm::BackwardBuffers&>(twin) = DeviceCopyOf(
        *mirror_, static_cast<const BatchNorm::BackwardBuffers&>(call));
    twin.sums = mirror_->DeviceCopy(call.sums);
    return twin;
  }

  const std::shared_ptr<DeviceMirror> mirror_;
  const std::unique_ptr<BatchNormKernels> real_;
};

// Returns problems of 3 channels with one pixel and of 65 channels with
// several, affine or far; and problems with every fusion, in place.
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
  if (!kOnStandin || IsExhaustive()) return some;
  const auto number = static_cast<size_t>(world_size) +
                      static_cast<size_t>(type) + static_cast<size_t>(batches);
  return {some[number % some.size()]};
}

// Returns each of the kernels' layouts, each profile and each way to track.
std::vector<BatchNormVariant> SomeVariants() {
  return {{Layout::kNchw, Tracking::kMomentum, kTorchBatchNorm},
          {Layout::kNhwc, Tracking::kCumulative, kPaddleBatchNorm},
          {Layout::kNhwc, Tracking::kNone, kTorchBatchNorm}};
}

using Part = std::tuple<int, DataType>;  // The world size and the type.

class SyncBatchNormNcclTest : public testing::TestWithParam<Part> {};

TEST_P(SyncBatchNormNcclTest, IsBatchNormOfTheWholeBatch) {
  const auto [world_size, type] = GetParam();
  ClaimRecorder recorder(
      {"sync_batch_norm",
       absl::StrCat(NcclBackendName(world_size), ", CUDA kernels"), world_size,
       Name(type)});
  if (!HasNcclRanks()) return;
  std::vector<SolvedProblem> problems;
  for (const RankBatches batches : kAllBatches) {
    for (const auto& problem : SomeProblems(world_size, type, batches)) {
      problems.push_back(SolveProblem(problem));
      ASSERT_THAT(CheckMeaning(problems.back()), IsOk());
    }
  }
  const std::vector<BatchNormVariant> variants = SomeVariants();
  const auto runs = RunProblems(MirroredNcclRanks(NcclOptions()), problems,
                                variants, MirroredLayer::Create, AllocateArea);
  ASSERT_THAT(runs, IsOk());
  for (size_t p = 0; p < problems.size(); ++p) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto error = MeasureRun(problems[p], variants[v], (*runs)[p][v]);
      ASSERT_THAT(error, IsOk());
      recorder.Measure(*error);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SyncBatchNormNcclTest,
    testing::Combine(testing::ValuesIn(NcclWorldSizes({1, 2})),
                     testing::Values(DataType::kFloat32, DataType::kFloat16,
                                     DataType::kBFloat16)),
    [](const auto& info) {
      return absl::StrCat("P", std::get<0>(info.param), "_",
                          Name(std::get<1>(info.param)));
    });

// The controls. Each is planted in the first case in which it must show.
class BatchNormNcclMutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(BatchNormNcclMutantTest, IsRejectedByWhatIsThereForIt) {
  if (!HasNcclRanks()) return;
  EXPECT_THAT(PlantAndExpectCaught(GetParam()), IsOk());
}

std::vector<Mutant> PlantedMutants() {
  std::vector<Mutant> all =
      BatchNormMutants({.run = MirroredNcclRanks(NcclOptions()),
                        .make_kernels = MirroredKernels::Create,
                        .allocate = AllocateArea,
                        .has_float64 = false,
                        .has_blocks = false})
          .mutants;
  return kOnStandin ? SliceOf(std::move(all), 6) : all;
}

INSTANTIATE_TEST_SUITE_P(Mutants, BatchNormNcclMutantTest,
                         testing::ValuesIn(PlantedMutants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::conformance
