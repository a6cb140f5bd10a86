// Compares SyncBatchNorm on the CUDA kernels and NCCL with one float64 batch
// norm of the whole batch. Linked with the stand-in, the test needs no GPU.
// With CUDA and NCCL it runs on all available GPUs, with several ranks on one
// if necessary.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cuda_test_device.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kChannels = 5;
constexpr double kEpsilon = 1e-3;

struct Case {
  std::vector<int64_t> samples;  // One number for each rank.
  DataType type = DataType::kFloat32;
  Layout layout = Layout::kNchw;
  BatchNormSemantics semantics = kTorchBatchNorm;
  bool relu = true;
  double mean = 3;  // The mean of x, in deviations.
  int64_t pixels = 9;
};

// The batch of all ranks and the results of one float64 layer for it.
struct Whole {
  explicit Whole(const Case& c) : precision(PrecisionOf(c.type)) {
    const auto parameters = [](uint32_t seed, double mean, double deviation) {
      return RoundedTo(DataType::kFloat32,
                       RandomValues(kChannels, seed, mean, deviation));
    };
    layer = {.channels = kChannels,
             .hw = c.pixels,
             .epsilon = kEpsilon,
             .relu = c.relu,
             .weight = parameters(4, 1, 0.2),
             .bias = parameters(5, 0, 1)};
    uint32_t seed = 10;
    for (const int64_t n : c.samples) {
      const auto draw = [&](double mean) {
        return RoundedTo(c.type,
                         RandomValues(n * kChannels * c.pixels, seed++, mean));
      };
      ReferenceBatch batch;
      batch.n = n;
      batch.x = draw(c.mean);
      batch.residual = draw(0);
      batch.dy = draw(0);
      ranks.push_back(batch);
    }
    statistics = StatisticsOf(layer, ranks, precision);
    // Rounding must not decide whether ReLU passes a gradient.
    for (ReferenceBatch& batch : ranks) {
      const Bounded y =
          ReferenceBeforeRelu(layer, statistics, batch, precision);
      for (size_t i = 0; i < batch.dy.size(); ++i) {
        if (std::abs(y.value[i]) <= y.bound[i]) batch.dy[i] = 0;
      }
    }
    want = ReferenceOf(layer, statistics, ranks, precision);
  }

  Precision precision;
  ReferenceLayer layer;
  std::vector<ReferenceBatch> ranks;
  ReferenceStatistics statistics;
  ReferenceResult want;
};

absl::Status Near(std::string_view name, const std::vector<double>& got,
                  const Bounded& want) {
  const testing::AssertionResult result =
      AllNear(got, want.value, [&](size_t i) { return want.bound[i]; });
  if (result) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(name.data(), ": ", result.message()));
}

BatchNormOptions OptionsOf(const Case& c) {
  return {.channels = kChannels,
          .semantics = c.semantics,
          .epsilon = kEpsilon,
          .momentum = c.semantics.default_momentum};
}

// One rank's layer and its tensors.
struct RankState {
  static absl::StatusOr<std::unique_ptr<RankState>> Create(
      const Case& c, int rank, Communicator& group) {
    auto state = std::make_unique<RankState>(c, rank);
    LOCKSTEP_ASSIGN_OR_RETURN(state->kernels,
                              CudaBatchNormKernels::Create(nullptr));
    LOCKSTEP_ASSIGN_OR_RETURN(
        state->layer,
        SyncBatchNorm::Create(OptionsOf(c), *state->kernels, group));
    return state;
  }
  RankState(const Case& c, int rank)
      : whole(c),
        rank(static_cast<size_t>(rank)),
        batch(whole.ranks[this->rank]),
        shape{batch.n, kChannels, c.pixels, c.layout},
        call{.relu = c.relu, .residual = true},
        tensors(OptionsOf(c), shape, c.type,
                {.x = ToLayout(shape, batch.x),
                 .residual = ToLayout(shape, batch.residual),
                 .dy = ToLayout(shape, batch.dy),
                 .weight = whole.layer.weight,
                 .bias = whole.layer.bias},
                /*offset=*/1) {}

  std::vector<double> Read(const DeviceTensor& activations) const {
    return FromLayout(shape, activations.Read());
  }

  const Whole whole;
  const size_t rank;
  const ReferenceBatch& batch;
  const ActivationShape shape;
  const LayerCall call;
  LayerTensors tensors;
  std::unique_ptr<CudaBatchNormKernels> kernels;
  std::unique_ptr<SyncBatchNorm> layer;
};

// Checks Forward and its effect on the running statistics.
absl::Status CheckForward(const Case& c, int64_t batches, RankState& rank) {
  const double w =
      c.semantics.momentum_of == BatchNormSemantics::MomentumOf::kBatch
          ? c.semantics.default_momentum
          : 1 - c.semantics.default_momentum;
  const ReferenceRunning want =
      EnterRunning(rank.tensors.mean.Read(), rank.tensors.variance.Read(), w,
                   c.semantics.unbiased_running_variance, rank.whole.statistics,
                   rank.whole.precision);
  LOCKSTEP_RETURN_IF_ERROR(
      rank.layer->Forward(rank.tensors.ForwardBuffers(rank.call)));
  LOCKSTEP_RETURN_IF_ERROR(
      Near("y", rank.Read(rank.tensors.y), rank.whole.want.y[rank.rank]));
  if (rank.tensors.batches != batches) {
    return absl::DataLossError(
        absl::StrCat(rank.tensors.batches, " batches tracked"));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Near("running mean", rank.tensors.mean.Read(), want.mean));
  return Near("running variance", rank.tensors.variance.Read(), want.variance);
}

absl::Status CheckGradients(const RankState& rank) {
  const Whole& whole = rank.whole;
  LOCKSTEP_RETURN_IF_ERROR(
      Near("dx", rank.Read(rank.tensors.dx), whole.want.dx[rank.rank]));
  // The gradients of the parameters belong to the rank's own values.
  const ReferenceResult own = ReferenceOf(whole.layer, whole.statistics,
                                          {&rank.batch, 1}, whole.precision);
  if (rank.Read(rank.tensors.dresidual) != own.dresidual[0]) {
    return absl::DataLossError("dresidual is not what ReLU let through");
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Near("dweight", rank.tensors.dweight.Read(), own.dweight));
  return Near("dbias", rank.tensors.dbias.Read(), own.dbias);
}

// Runs Forward twice and Backward, on one rank of `group`, and checks all
// results.
absl::Status CheckRank(const Case& c, int rank, Communicator& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto state,
                            RankState::Create(c, rank, group));
  const Bounded& dx = state->whole.want.dx[state->rank];
  if (dx.size() > 0 && Largest(dx.value) < 50 * Largest(dx.bound)) {
    return absl::InternalError("dx is too small to tell right from wrong");
  }
  for (const int64_t batches : {1, 2}) {
    LOCKSTEP_RETURN_IF_ERROR(CheckForward(c, batches, *state));
  }
  bool ready = false;
  LOCKSTEP_RETURN_IF_ERROR(state->layer->Backward(
      state->tensors.BackwardBuffers(state->call), [&ready] { ready = true; }));
  if (!ready) return absl::DataLossError("gradients were never ready");
  return CheckGradients(*state);
}

// Runs `fn` on every rank. Without a GPU the test is skipped, or fails if the
// environment says that there must be one.
void ExpectOnRanks(size_t world_size, const NcclRankFunction& fn,
                   const testing::Matcher<absl::Status>& matcher) {
  const std::vector<absl::Status> statuses =
      RunNcclRanks(static_cast<int>(world_size), NcclOptions(), fn);
  for (const absl::Status& status : statuses) {
    if (absl::IsNotFound(status) && !GpusRequired()) {
      GTEST_SKIP() << std::string(status.message());
    }
    EXPECT_THAT(status, matcher);
  }
}

std::vector<Case> Cases() {
  return {{.samples = {3}},
          {.samples = {2, 2}, .layout = Layout::kNhwc},
          {.samples = {3, 1}, .mean = 30},
          {.samples = {0, 4}, .semantics = kPaddleBatchNorm},
          {.samples = {1, 0, 2}, .type = DataType::kFloat16},
          {.samples = {2, 1, 3},
           .type = DataType::kBFloat16,
           .layout = Layout::kNhwc},
          {.samples = {1, 1, 1},
           .layout = Layout::kNhwc,
           .semantics = kPaddleBatchNorm,
           .relu = false}};
}

class CudaSyncBatchNormTest : public testing::TestWithParam<Case> {};

TEST_P(CudaSyncBatchNormTest, EqualsOneRankWithTheWholeBatch) {
  const Case& c = GetParam();
  ExpectOnRanks(
      c.samples.size(),
      [&c](NcclCommunicator& group) {
        return CheckRank(c, group.rank(), group);
      },
      IsOk());
}

INSTANTIATE_TEST_SUITE_P(All, CudaSyncBatchNormTest, testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           std::string name = absl::StrCat(
                               Name(info.param.type), Name(info.param.layout));
                           for (const int64_t n : info.param.samples)
                             absl::StrAppend(&name, "N", n);
                           return absl::StrCat(
                               name, std::string(info.param.semantics.name));
                         });

// The control: the check rejects statistics of each rank's own batch.
TEST(CudaSyncBatchNormCheckTest, RejectsLocalStatistics) {
  const Case c = {.samples = {2, 3}};
  ExpectOnRanks(
      2,
      [&c](NcclCommunicator& group) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto own, group.Split(group.rank(), 0));
        return CheckRank(c, group.rank(), *own);
      },
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("y: ")));
}

// Trains on one value per channel, which rank 1 has.
absl::Status TrainOnOneValue(const BatchNormSemantics& semantics,
                             NcclCommunicator& group) {
  const Case c = {.samples = {0, 1}, .semantics = semantics, .pixels = 1};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto state,
                            RankState::Create(c, group.rank(), group));
  const absl::Status status =
      state->layer->Forward(state->tensors.ForwardBuffers(state->call));
  if (status.ok()) {
    return Near("y", state->Read(state->tensors.y),
                state->whole.want.y[state->rank]);
  }
  if (state->tensors.batches != 0 ||
      state->tensors.mean.Read() != state->tensors.mean.values()) {
    return absl::DataLossError("a refused batch was tracked");
  }
  return status;
}

TEST(CudaSyncBatchNormOneValueTest, IsRefusedByTorchAlone) {
  const auto train = [](const BatchNormSemantics& semantics) {
    return [semantics](NcclCommunicator& group) {
      return TrainOnOneValue(semantics, group);
    };
  };
  ExpectOnRanks(2, train(kTorchBatchNorm),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("one value per channel")));
  ExpectOnRanks(2, train(kPaddleBatchNorm), IsOk());
}

// Trains with one of rank 1's tensors too short, forward or backward. Rank 0
// may get the error in a later call, or when it waits.
absl::Status TrainOnTooLittle(bool forward, NcclCommunicator& group) {
  const Case c = {.samples = {2, 1}};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto state,
                            RankState::Create(c, group.rank(), group));
  auto forwards = state->tensors.ForwardBuffers(state->call);
  if (forward && group.rank() == 1) --forwards.x.count;
  auto backwards = state->tensors.BackwardBuffers(state->call);
  if (group.rank() == 1) --backwards.dy.count;
  absl::Status status = state->layer->Forward(forwards);
  if (status.ok()) status = state->layer->Backward(backwards, [] {});
  status.Update(group.Wait());
  return status;
}

TEST(CudaSyncBatchNormArgumentsTest, OfOneRankEndOnAll) {
  for (const bool forward : {true, false}) {
    ExpectOnRanks(
        2,
        [forward](NcclCommunicator& group) {
          return TrainOnTooLittle(forward, group);
        },
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(forward ? ": x has 44" : ": dy has 44")));
  }
}

// Evaluates with running statistics. No message is sent, since only rank 1
// evaluates.
absl::Status Evaluate(NcclCommunicator& group) {
  const Case c = {.samples = {2, 1}, .relu = false};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto state,
                            RankState::Create(c, group.rank(), group));
  if (group.rank() == 0) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(state->layer->Forward(state->tensors.ForwardBuffers(
      {.training = false, .relu = false, .residual = true})));
  const Whole& whole = state->whole;
  const ReferenceStatistics running =
      ConstantStatistics(whole.layer, state->tensors.mean.values(),
                         state->tensors.variance.values(), whole.precision);
  return Near(
      "y", state->Read(state->tensors.y),
      ReferenceOf(whole.layer, running, {&state->batch, 1}, whole.precision)
          .y[0]);
}

TEST(CudaSyncBatchNormEvaluationTest, UsesRunningStatistics) {
  ExpectOnRanks(2, Evaluate, IsOk());
}

}  // namespace
}  // namespace lockstep
