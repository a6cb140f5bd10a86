// Kernels and messages wait for each other: the same result in whatever order
// streams run. On the stand-in, which can choose the order.
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
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
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/device_tensor.h"
#include "tools/cuda/standin/control.h"

namespace lockstep {
namespace {

using standin::Order;
using testing::Each;
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

// Rank 0 has four zeros and rank 1 four twos: mean 1, variance 1. One gradient
// of each rank is 1, so that the mean gradient is 1/4 and the cross-term 0.
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

// Whether the group is made with the stream of the kernels, as it must be.
std::vector<absl::Status> Train(Order order, bool one_stream) {
  standin::SetDeviceCount(kRanks);
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
// that are not there yet.
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

}  // namespace
}  // namespace lockstep
