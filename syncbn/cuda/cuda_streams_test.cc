// Tests that kernels and messages wait for each other: the result must be the
// same in any order in which streams run. Uses the stand-in, which can choose
// the order.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {
namespace {

using standin::Order;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::Not;

constexpr int kRanks = 2;

absl::StatusOr<std::unique_ptr<NcclCommunicator>> MakeGroup(
    Communicator& control, cudaStream_t stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(0, 0));
  NcclOptions options;
  options.device = control.rank();
  options.stream = stream;
  return NcclCommunicator::Create(std::move(owned), options);
}

// Trains one step. Rank 0 has four zeros and rank 1 four twos: mean 1, variance
// 1. One gradient of each rank is 1, so the mean gradient is 1/4 and the
// cross-term 0.
absl::Status TrainOnce(const BatchNormOptions& options, SyncBatchNorm& layer,
                       cudaStream_t stream, int rank) {
  LayerTensors tensors(options, {1, 1, 4}, DataType::kFloat32,
                       {.x = std::vector<double>(4, 2.0 * rank),
                        .residual = {},
                        .dy = {1, 0, 0, 0},
                        .weight = {1},
                        .bias = {0}});
  LOCKSTEP_RETURN_IF_ERROR(tensors.Run(layer, {}));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  const std::vector<double> wanted_dx = {0.75, -0.25, -0.25, -0.25};
  if (tensors.y.Read() != std::vector<double>(4, 2.0 * rank - 1) ||
      tensors.dx.Read() != wanted_dx) {
    return absl::DataLossError("y or dx is wrong");
  }
  return absl::OkStatus();
}

// Trains on all ranks. one_stream: whether the group uses the stream of the
// kernels, as it must.
std::vector<absl::Status> Train(Order order, bool one_stream) {
  standin::SetDevices({.count = kRanks});
  standin::SetSchedule({.order = order});
  const auto statuses = RunRanks(
      Backend::kThreads, kRanks, [&](Communicator& control) -> absl::Status {
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaSetDevice(control.rank()), "cudaSetDevice"));
        LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
        LOCKSTEP_ASSIGN_OR_RETURN(
            const auto group,
            MakeGroup(control, one_stream ? stream.get() : nullptr));
        LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                                  CudaBatchNormKernels::Create(stream.get()));
        BatchNormOptions options;
        options.epsilon = 0;
        options.affine = false;
        options.track_running_stats = false;
        LOCKSTEP_ASSIGN_OR_RETURN(
            const auto layer, SyncBatchNorm::Create(options, *kernels, *group));
        return TrainOnce(options, *layer, stream.get(), control.rank());
      });
  standin::SetSchedule({});
  return statuses;
}

TEST(CudaStreamsTest, EveryOrderGivesTheSame) {
  for (const Order order :
       {Order::kAtOnce, Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    EXPECT_THAT(Train(order, /*one_stream=*/true), Each(IsOk()));
  }
}

// The control: a group that was made with another stream gathers statistics
// before they are computed.
TEST(CudaStreamsTest, AnotherStreamIsSeen) {
  std::vector<absl::Status> wrong;
  for (const Order order :
       {Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    for (const absl::Status& status : Train(order, /*one_stream=*/false)) {
      if (!status.ok()) wrong.push_back(status);
    }
  }
  EXPECT_THAT(wrong, Not(IsEmpty()));
  EXPECT_THAT(wrong,
              Each(StatusIs(absl::StatusCode::kDataLoss, "y or dx is wrong")));
}

// Runs forward and backward of this rank while the stream is held back. x is
// `samples` samples of one pixel. Returns the host's waits in both passes.
// Returns an error if any work ran before the stream was released, or if y is
// wrong afterwards.
absl::StatusOr<int64_t> WaitsOfOneStep(BatchNormKernels& kernels,
                                       Communicator* group, cudaStream_t stream,
                                       int64_t samples) {
  BatchNormOptions options;
  options.channels = 2;
  options.semantics = kPaddleBatchNorm;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto layer, group == nullptr
                            ? SyncBatchNorm::CreateLocal(options, kernels)
                            : SyncBatchNorm::Create(options, kernels, *group));
  const std::vector<double> activations(static_cast<size_t>(2 * samples), 3);
  LayerTensors tensors(options, {samples, 2, 1}, DataType::kFloat32,
                       {.x = activations,
                        .residual = {},
                        .dy = activations,
                        .weight = {1, 1},
                        .bias = {5, 5}});
  const int64_t before = standin::CountsOfThisThread().host_waits;
  LOCKSTEP_RETURN_IF_ERROR(layer->Forward(tensors.ForwardBuffers({})));
  LOCKSTEP_RETURN_IF_ERROR(layer->Backward(tensors.BackwardBuffers({}), [] {}));
  const int64_t waits = standin::CountsOfThisThread().host_waits - before;
  // Memory that no work has written holds the fill value of fresh memory, NaN.
  if (waits == 0 && samples > 0 &&
      !std::isnan(*static_cast<const float*>(tensors.y.buffer().data))) {
    return absl::DataLossError("something ran");
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  if (group != nullptr) LOCKSTEP_RETURN_IF_ERROR(group->Wait());
  if (tensors.y.Read() != std::vector<double>(activations.size(), 5)) {
    return absl::DataLossError("y is wrong");
  }
  return waits;
}

// Calls step(kernels, group, stream, rank) on every rank, which has its own
// device. The group's stream is the kernels'. Work is held back until a rank
// waits. Returns the results.
template <typename T, typename Step>
std::vector<absl::StatusOr<T>> OnRanks(const Step& step) {
  standin::SetDevices({.count = kRanks});
  standin::SetSchedule({.order = Order::kOldestStreamFirst});
  std::vector<absl::StatusOr<T>> results(kRanks, T{});
  const auto statuses = RunRanks(
      Backend::kThreads, kRanks, [&](Communicator& control) -> absl::Status {
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaSetDevice(control.rank()), "cudaSetDevice"));
        LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
        LOCKSTEP_ASSIGN_OR_RETURN(const auto group,
                                  MakeGroup(control, stream.get()));
        LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                                  CudaBatchNormKernels::Create(stream.get()));
        const auto rank = static_cast<size_t>(control.rank());
        results[rank] = step(*kernels, *group, stream.get(), rank);
        return absl::OkStatus();
      });
  standin::SetSchedule({});
  EXPECT_THAT(statuses, Each(IsOk()));
  return results;
}

// Returns the waits of each rank, for a local layer or for a layer of both
// ranks.
std::vector<absl::StatusOr<int64_t>> HostWaits(
    bool local, const std::vector<int64_t>& samples) {
  return OnRanks<int64_t>([&](BatchNormKernels& kernels, Communicator& group,
                              cudaStream_t stream, size_t rank) {
    return WaitsOfOneStep(kernels, local ? nullptr : &group, stream,
                          samples[rank]);
  });
}

// The calls of a layer's second step of forward and backward.
struct StepCalls {
  int64_t launches = 0;
  int64_t allocations = 0;
  int64_t waits = 0;

  friend bool operator==(const StepCalls&, const StepCalls&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StepCalls& calls) {
    return out << calls.launches << " launches, " << calls.allocations
               << " allocations, " << calls.waits << " waits";
  }
};

absl::StatusOr<StepCalls> CallsOfTheSecondStep(BatchNormKernels& kernels,
                                               Communicator* group,
                                               const ActivationShape& shape) {
  BatchNormOptions options;
  options.channels = shape.c;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto layer, group == nullptr
                            ? SyncBatchNorm::CreateLocal(options, kernels)
                            : SyncBatchNorm::Create(options, kernels, *group));
  const std::vector<double> channels(static_cast<size_t>(shape.c), 1);
  const std::vector<double> values = RandomValues(shape.size(), 1);
  LayerTensors tensors(options, shape, DataType::kBFloat16,
                       {.x = values,
                        .residual = {},
                        .dy = values,
                        .weight = channels,
                        .bias = channels});
  LOCKSTEP_RETURN_IF_ERROR(tensors.Run(*layer, {}));
  const standin::CallCounts before = standin::CountsOfThisThread();
  LOCKSTEP_RETURN_IF_ERROR(tensors.Run(*layer, {}));
  const standin::CallCounts after = standin::CountsOfThisThread();
  // Device memory must outlive the work that uses it.
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  return StepCalls{after.launches - before.launches,
                   after.allocations - before.allocations,
                   after.host_waits - before.host_waits};
}

std::vector<absl::StatusOr<StepCalls>> StepCallsOnRanks(
    bool local, const ActivationShape& shape) {
  return OnRanks<StepCalls>([&](BatchNormKernels& kernels, Communicator& group,
                                cudaStream_t, size_t) {
    return CallsOfTheSecondStep(kernels, local ? nullptr : &group, shape);
  });
}

// Shapes with one block for each channel or tile of channels, and with many.
constexpr ActivationShape kShapes[] = {{2, 5, 7, Layout::kNchw},
                                       {2, 3, 65536, Layout::kNchw},
                                       {2, 64, 7, Layout::kNhwc},
                                       {2, 64, 5000, Layout::kNhwc},
                                       {2, 256, 1200, Layout::kNhwc}};

// Forward and backward reduce and merge in one launch, and compute each element
// in another.
TEST(CudaStreamsTest, ALocalStepIsFourLaunches) {
  for (const ActivationShape& shape : kShapes) {
    EXPECT_THAT(StepCallsOnRanks(/*local=*/true, shape),
                Each(IsOkAndHolds(StepCalls{.launches = 4})))
        << Describe(shape);
  }
}

// The merge of the ranks' records is a launch after the all-gather.
TEST(CudaStreamsTest, AStepOfTwoRanksIsFiveLaunches) {
  for (const ActivationShape& shape : kShapes) {
    EXPECT_THAT(StepCallsOnRanks(/*local=*/false, shape),
                Each(IsOkAndHolds(StepCalls{.launches = 5})))
        << Describe(shape);
  }
}

// If a vector has elements of two pixels, each reduction needs a launch to
// merge.
TEST(CudaStreamsTest, AnOddNumberOfChannelsLastIsTwoLaunchesMore) {
  const ActivationShape shape = {2, 65, 700, Layout::kNhwc};
  EXPECT_THAT(StepCallsOnRanks(/*local=*/true, shape),
              Each(IsOkAndHolds(StepCalls{.launches = 6})));
  EXPECT_THAT(StepCallsOnRanks(/*local=*/false, shape),
              Each(IsOkAndHolds(StepCalls{.launches = 7})));
}

TEST(CudaStreamsTest, AStepWaitsForNothing) {
  EXPECT_THAT(HostWaits(/*local=*/true, {2, 7}), Each(IsOkAndHolds(0)));
  EXPECT_THAT(HostWaits(/*local=*/true, {0, 1}), Each(IsOkAndHolds(0)));
  EXPECT_THAT(HostWaits(/*local=*/false, {2, 7}), Each(IsOkAndHolds(0)));
}

// The control: a rank with fewer than two values must learn the other rank's
// count, so it waits. The other rank does not wait.
TEST(CudaStreamsTest, ARankWithAlmostNothingWaitsOnce) {
  EXPECT_THAT(HostWaits(/*local=*/false, {0, 7}),
              ElementsAre(IsOkAndHolds(Ge(1)), IsOkAndHolds(0)));
  EXPECT_THAT(HostWaits(/*local=*/false, {2, 1}),
              ElementsAre(IsOkAndHolds(0), IsOkAndHolds(Ge(1))));
}

}  // namespace
}  // namespace lockstep
