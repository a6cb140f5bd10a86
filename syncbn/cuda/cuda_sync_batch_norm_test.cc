// SyncBatchNorm on the CUDA kernels and NCCL against one float64 batch norm of
// the whole batch. Linked with the stand-in it needs no GPU; with CUDA and NCCL
// it runs on the GPUs there are, several ranks on one if need be.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/kernel_testing.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kChannels = 5;
constexpr int64_t kPixels = 9;

struct Case {
  std::vector<int64_t> samples;  // Of each rank.
  DataType type = DataType::kFloat32;
  Layout layout = Layout::kNchw;
  BatchNormSemantics semantics = kTorchBatchNorm;
  bool relu = true;
  double mean = 3;
};

ProblemOptions ProblemOf(const Case& c) {
  ProblemOptions options;
  options.shape = {
      std::accumulate(c.samples.begin(), c.samples.end(), int64_t{0}),
      kChannels, kPixels, c.layout};
  options.type = c.type;
  options.relu = c.relu;
  options.mean = c.mean;
  return options;
}

absl::Status Near(std::string_view name, const std::vector<double>& got,
                  const std::vector<double>& want, DataType type,
                  double error) {
  const testing::AssertionResult result = AllNear(got, want, [&](size_t i) {
    return error + RoundingError(type, want[i]);
  });
  if (result) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(name.data(), ": ", result.message()));
}

std::vector<double> Part(const std::vector<double>& all, int64_t begin,
                         int64_t count) {
  return {all.begin() + begin, all.begin() + begin + count};
}

// One rank's layer and its tensors.
struct RankState {
  RankState(const Case& c, const Problem& p, int rank)
      : shape(p.shape),
        begin(std::accumulate(c.samples.begin(), c.samples.begin() + rank,
                              int64_t{0}) *
              kChannels * kPixels),
        size(c.samples[static_cast<size_t>(rank)] * kChannels * kPixels),
        x(c.type, Part(p.x, begin, size), 1),
        residual(c.type, Part(p.residual, begin, size), 1),
        dy(c.type, Part(p.dy, begin, size)),
        y(c.type, size, 1),
        dx(c.type, size),
        dresidual(c.type, size),
        weight(DataType::kFloat32, p.weight),
        bias(DataType::kFloat32, p.bias),
        dweight(DataType::kFloat32, kChannels),
        dbias(DataType::kFloat32, kChannels),
        mean(DataType::kFloat32, std::vector<double>(kChannels, 0.0)),
        variance(DataType::kFloat32, std::vector<double>(kChannels, 1.0)) {
    shape.n = c.samples[static_cast<size_t>(rank)];
  }

  BatchNorm::Forwards Forwards(const Case& c, std::byte* saved, int64_t bytes,
                               bool training) {
    return {shape,
            training,
            c.relu,
            x.buffer(),
            residual.buffer(),
            weight.buffer(),
            bias.buffer(),
            {mean.buffer(), variance.buffer(), &batches},
            y.buffer(),
            {saved, bytes, DataType::kUInt8}};
  }
  BatchNorm::Backwards Backwards(const Case& c, std::byte* saved,
                                 int64_t bytes) {
    return {shape,
            true,
            c.relu,
            x.buffer(),
            y.buffer(),
            dy.buffer(),
            weight.buffer(),
            {saved, bytes, DataType::kUInt8},
            dweight.buffer(),
            dbias.buffer(),
            dx.buffer(),
            dresidual.buffer()};
  }

  ActivationShape shape;
  int64_t begin;
  int64_t size;
  DeviceTensor x, residual, dy, y, dx, dresidual;
  DeviceTensor weight, bias, dweight, dbias, mean, variance;
  int64_t batches = 0;
};

// Running statistics after two batches that were the same.
absl::Status CheckTracked(const Case& c, const Problem& p,
                          const ProblemErrors& errors, const RankState& rank) {
  if (rank.batches != 2) {
    return absl::DataLossError(absl::StrCat(rank.batches, " batches tracked"));
  }
  const double w =
      c.semantics.momentum_of == BatchNormSemantics::MomentumOf::kBatch
          ? c.semantics.default_momentum
          : 1 - c.semantics.default_momentum;
  const double n = static_cast<double>(p.shape.values_per_channel());
  const double entering =
      c.semantics.unbiased_running_variance && n > 1 ? n / (n - 1) : 1;
  const double kept = (1 - w) * (1 - w);
  std::vector<double> mean, variance;
  for (size_t k = 0; k < kChannels; ++k) {
    mean.push_back((1 - kept) * p.mean[k]);
    variance.push_back(kept + (1 - kept) * p.variance[k] * entering);
  }
  LOCKSTEP_RETURN_IF_ERROR(Near("running mean", rank.mean.Read(), mean,
                                DataType::kFloat32, 2 * errors.mean));
  return Near("running variance", rank.variance.Read(), variance,
              DataType::kFloat32,
              8 * Largest(p.variance) * errors.scale + 8 * kRoundOff);
}

absl::Status CheckGradients(const Problem& p, const ProblemErrors& errors,
                            const Case& c, const RankState& rank) {
  const auto part = [&](const std::vector<double>& all) {
    return Part(all, rank.begin, rank.size);
  };
  LOCKSTEP_RETURN_IF_ERROR(
      Near("dx", rank.dx.Read(), part(p.dx), c.type, errors.dx));
  LOCKSTEP_RETURN_IF_ERROR(
      Near("dresidual", rank.dresidual.Read(), part(p.g), c.type, 0));
  std::vector<double> dweight(kChannels), dbias(kChannels);
  for (int64_t i = rank.begin; i < rank.begin + rank.size; ++i) {
    const auto k = static_cast<size_t>(ChannelOf(p.shape, i));
    const auto at = static_cast<size_t>(i);
    dbias[k] += p.g[at];
    dweight[k] += p.g[at] * (p.x[at] - p.mean[k]) * p.inverse[k];
  }
  LOCKSTEP_RETURN_IF_ERROR(Near("dweight", rank.dweight.Read(), dweight,
                                DataType::kFloat32, errors.gradient));
  return Near("dbias", rank.dbias.Read(), dbias, DataType::kFloat32,
              errors.gradient);
}

// Forward twice, backward, and all of it compared, on one rank of `group`.
absl::Status CheckRank(const Case& c, int rank, Communicator& group) {
  const Problem p = MakeProblem(ProblemOf(c));
  const ProblemErrors errors(p);
  if (Largest(p.dx) < 50 * errors.dx) {
    return absl::InternalError("dx is too small to tell right from wrong");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                            CudaBatchNormKernels::Create(nullptr));
  BatchNormOptions options;
  options.channels = kChannels;
  options.semantics = c.semantics;
  options.momentum = c.semantics.default_momentum;
  options.epsilon = ProblemOf(c).epsilon;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto layer,
                            SyncBatchNorm::Create(options, *kernels, group));
  RankState state(c, p, rank);
  const int64_t bytes = layer->SavedBytes(c.type);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto saved, kernels->Allocate(bytes));
  for (int step = 0; step < 2; ++step) {
    LOCKSTEP_RETURN_IF_ERROR(
        layer->Forward(state.Forwards(c, saved.get(), bytes, true)));
  }
  LOCKSTEP_RETURN_IF_ERROR(Near("y", state.y.Read(),
                                Part(p.y, state.begin, state.size), c.type,
                                errors.y));
  LOCKSTEP_RETURN_IF_ERROR(CheckTracked(c, p, errors, state));
  bool ready = false;
  LOCKSTEP_RETURN_IF_ERROR(layer->Backward(
      state.Backwards(c, saved.get(), bytes), [&ready] { ready = true; }));
  if (!ready) return absl::DataLossError("gradients were never ready");
  return CheckGradients(p, errors, c, state);
}

// Runs `fn` on every rank. Without a GPU the test is skipped, or fails where
// the environment says that there must be one.
void ExpectOnRanks(size_t world_size, const NcclRankFunction& fn,
                   const testing::Matcher<absl::Status>& matcher) {
  const std::vector<absl::Status> statuses =
      RunNcclRanks(static_cast<int>(world_size), NcclOptions(), fn);
  for (const absl::Status& status : statuses) {
    const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
    const bool may_skip =
        required == nullptr || std::string_view(required) != "1";
    if (absl::IsNotFound(status) && may_skip) {
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

// The control: statistics of each rank's own batch are not taken for those of
// all.
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

// Trains on one value per channel, of which rank 1 has it.
absl::Status TrainOnOneValue(const BatchNormSemantics& semantics,
                             NcclCommunicator& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                            CudaBatchNormKernels::Create(nullptr));
  const BatchNormOptions options = {
      .channels = 2, .semantics = semantics, .epsilon = 1, .affine = false};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto layer,
                            SyncBatchNorm::Create(options, *kernels, group));
  const int64_t n = group.rank() == 1 ? 1 : 0;
  const DeviceTensor x(DataType::kFloat32,
                       std::vector<double>(static_cast<size_t>(2 * n), 4.0));
  const DeviceTensor y(DataType::kFloat32, 2 * n);
  const DeviceTensor mean(DataType::kFloat32, {0.0, 0.0});
  const DeviceTensor variance(DataType::kFloat32, {1.0, 1.0});
  const int64_t bytes = layer->SavedBytes(DataType::kFloat32);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto saved, kernels->Allocate(bytes));
  int64_t batches = 0;
  BatchNorm::Forwards forwards;
  forwards.shape = {n, 2, 1, Layout::kNchw};
  forwards.x = x.buffer();
  forwards.y = y.buffer();
  forwards.running = {mean.buffer(), variance.buffer(), &batches};
  forwards.saved = {saved.get(), bytes, DataType::kUInt8};
  const absl::Status status = layer->Forward(forwards);
  const std::vector<double> untouched = {0.0, 0.0};
  if (!status.ok() && (batches != 0 || mean.Read() != untouched)) {
    return absl::DataLossError("a refused batch was tracked");
  }
  if (status.ok() &&
      y.Read() != std::vector<double>(static_cast<size_t>(2 * n), 0.0)) {
    return absl::DataLossError("one value is not normalised to 0");
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

// Trains with one of rank 1's tensors too short, forward or backward.
absl::Status TrainOnTooLittle(bool forward, NcclCommunicator& group) {
  const Case c = {.samples = {2, 1}};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                            CudaBatchNormKernels::Create(nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto layer,
      SyncBatchNorm::Create({.channels = kChannels}, *kernels, group));
  RankState state(c, MakeProblem(ProblemOf(c)), group.rank());
  const int64_t bytes = layer->SavedBytes(c.type);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto saved, kernels->Allocate(bytes));
  auto forwards = state.Forwards(c, saved.get(), bytes, true);
  if (forward && group.rank() == 1) --forwards.x.count;
  LOCKSTEP_RETURN_IF_ERROR(layer->Forward(forwards));
  auto backwards = state.Backwards(c, saved.get(), bytes);
  if (group.rank() == 1) --backwards.dy.count;
  return layer->Backward(backwards, [] {});
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

// In evaluation: running statistics, and no message.
absl::Status Evaluate(NcclCommunicator& group) {
  const Case c = {.samples = {2, 1}, .relu = false};
  const Problem p = MakeProblem(ProblemOf(c));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto kernels,
                            CudaBatchNormKernels::Create(nullptr));
  const BatchNormOptions options = {.channels = kChannels};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto layer,
                            SyncBatchNorm::Create(options, *kernels, group));
  RankState state(c, p, group.rank());
  const int64_t bytes = layer->SavedBytes(c.type);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto saved, kernels->Allocate(bytes));
  // Rank 1 evaluates alone.
  if (group.rank() == 0) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(
      layer->Forward(state.Forwards(c, saved.get(), bytes, false)));
  std::vector<double> want;
  for (int64_t i = state.begin; i < state.begin + state.size; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto k = static_cast<size_t>(ChannelOf(p.shape, i));
    want.push_back(p.x[at] / std::sqrt(1 + options.epsilon) * p.weight[k] +
                   p.bias[k] + p.residual[at]);
  }
  const double error = 8 * kRoundOff *
                       (Largest(p.x) * Largest(p.weight) + Largest(p.bias) +
                        Largest(p.residual));
  return Near("y", state.y.Read(), want, c.type, error);
}

TEST(CudaSyncBatchNormEvaluationTest, UsesRunningStatistics) {
  ExpectOnRanks(2, Evaluate, IsOk());
}

}  // namespace
}  // namespace lockstep
