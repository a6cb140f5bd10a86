// What is right passes; every way to be wrong is counted.
#include "benchmarks/syncbn/layer.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/uniform.h"
#include "benchmarks/syncbn/check.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::benchmarks {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr int64_t kBatch = 3, kPixels = 7, kChannels = 5;

int64_t ChannelOf(Layout layout, int64_t i) {
  return layout == Layout::kNhwc ? i % kChannels : i / kPixels % kChannels;
}

float Narrow(float x, float) { return x; }
Float16 Narrow(float x, Float16) { return ToFloat16(x); }
BFloat16 Narrow(float x, BFloat16) { return ToBFloat16(x); }
double Wide(float x) { return x; }
double Wide(Float16 x) { return ToFloat(x); }
double Wide(BFloat16 x) { return ToFloat(x); }

// Inputs, and the outputs by the formulas of batch norm, of `ranks` ranks that
// lie one after the other.
template <typename T>
struct Example {
  Example(Layout layout, int ranks) : layout(layout), ranks(ranks) {
    const size_t size = static_cast<size_t>(ranks * kPart);
    for (size_t i = 0; i < size; ++i) {
      const auto at = static_cast<int64_t>(i);
      const double shift = 0.25 * static_cast<double>(at / kPart);
      x.push_back(Narrow(static_cast<float>(2 + shift + Uniform(1, at)), T()));
      dy.push_back(Narrow(static_cast<float>(0.1 + Uniform(2, at)), T()));
    }
    for (int64_t c = 0; c < kChannels; ++c) {
      weight.push_back(0.5f + static_cast<float>(c));
      bias.push_back(1.0f - static_cast<float>(c));
    }
    y = dx = x;
    dweight.assign(static_cast<size_t>(ranks) * kChannels, 0);
    dbias = dweight;
    for (int64_t c = 0; c < kChannels; ++c) Compute(c);
  }

  void Compute(int64_t c) {
    std::vector<size_t> own;
    for (size_t i = 0; i < x.size(); ++i) {
      if (ChannelOf(layout, static_cast<int64_t>(i) % kPart) == c) {
        own.push_back(i);
      }
    }
    const auto n = static_cast<double>(own.size());
    double mean = 0, variance = 0, sum = 0, product = 0;
    for (const size_t i : own) mean += Wide(x[i]) / n;
    for (const size_t i : own) variance += std::pow(Wide(x[i]) - mean, 2) / n;
    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    const auto at = static_cast<size_t>(c);
    for (const size_t i : own) {
      const double normalised = (Wide(x[i]) - mean) * inverse;
      const size_t to = i / kPart * kChannels + at;
      dbias[to] += static_cast<float>(Wide(dy[i]));
      dweight[to] += static_cast<float>(Wide(dy[i]) * normalised);
      sum += Wide(dy[i]);
      product += Wide(dy[i]) * normalised;
    }
    for (const size_t i : own) {
      const double normalised = (Wide(x[i]) - mean) * inverse;
      y[i] =
          Narrow(static_cast<float>(normalised * weight[at] + bias[at]), T());
      dx[i] = Narrow(static_cast<float>(
                         weight[at] * inverse *
                         (Wide(dy[i]) - sum / n - normalised * product / n)),
                     T());
    }
  }

  LayerInputs Inputs(int rank) const {
    return {.shape = {kBatch, kChannels, kPixels, layout},
            .x = Part(x, rank),
            .dy = Part(dy, rank),
            .weight = weight,
            .bias = bias};
  }
  LayerOutputs Outputs(int rank) const {
    const size_t at = static_cast<size_t>(rank) * kChannels;
    return {.y = Part(y, rank),
            .dx = Part(dx, rank),
            .dweight = std::span(dweight).subspan(at, kChannels),
            .dbias = std::span(dbias).subspan(at, kChannels)};
  }
  static ConstBuffer Part(const std::vector<T>& all, int rank) {
    return ConstBuffer(all).Part(rank * kPart, kPart);
  }

  static constexpr int64_t kPart = kBatch * kPixels * kChannels;
  const Layout layout;
  const int ranks;
  std::vector<T> x, dy, y, dx;
  std::vector<float> weight, bias, dweight, dbias;
};

template <typename T>
int64_t WrongAlone(const Example<T>& example, int rank = 0) {
  const absl::StatusOr<LayerReference> reference =
      LayerReference::Create(example.Inputs(rank), kEpsilon, nullptr);
  EXPECT_THAT(reference, IsOk());
  return reference->CountWrong(example.Inputs(rank), example.Outputs(rank));
}

template <typename T>
class LayerReferenceTest : public testing::Test {};
using Types = testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(LayerReferenceTest, Types);

TYPED_TEST(LayerReferenceTest, TakesWhatIsRight) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    EXPECT_EQ(WrongAlone(Example<TypeParam>(layout, 1)), 0) << Name(layout);
  }
}

TYPED_TEST(LayerReferenceTest, CountsEachElementThatIsWrong) {
  const TypeParam nan =
      Narrow(std::numeric_limits<float>::quiet_NaN(), TypeParam());
  Example<TypeParam> example(Layout::kNhwc, 1);
  example.y[0] = example.y[1] = nan;
  example.y[2] =
      Narrow(static_cast<float>(Wide(example.y[2]) * 1.05 + 0.05), TypeParam());
  example.dx[10] = nan;
  example.dx[11] =
      Narrow(static_cast<float>(Wide(example.dx[11]) + 0.05), TypeParam());
  example.dweight[0] += 1;
  example.dbias[4] += 1;
  example.dbias[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(WrongAlone(example), 8);
}

// The whole batch's statistics are not those of a part of it, nor the one
// layout's those of the other.
TYPED_TEST(LayerReferenceTest, CountsTheStatisticsOfAnotherBatch) {
  const Example<TypeParam> both(Layout::kNhwc, 2);
  EXPECT_GT(WrongAlone(both), 2 * Example<TypeParam>::kPart * 9 / 10);
  Example<TypeParam> confused(Layout::kNhwc, 1);
  const Example<TypeParam> other(Layout::kNchw, 1);
  confused.y = other.y;
  EXPECT_GT(WrongAlone(confused), Example<TypeParam>::kPart / 2);
}

TYPED_TEST(LayerReferenceTest, TakesTheBatchesOfAllRanksTogether) {
  const Example<TypeParam> example(Layout::kNchw, 3);
  const absl::Status status =
      RunOnThreads(3, GroupOptions(), [&](Communicator& group) -> absl::Status {
        const LayerInputs inputs = example.Inputs(group.rank());
        LOCKSTEP_ASSIGN_OR_RETURN(
            const LayerReference reference,
            LayerReference::Create(inputs, kEpsilon, &group));
        const int64_t wrong =
            reference.CountWrong(inputs, example.Outputs(group.rank()));
        return wrong == 0 ? absl::OkStatus()
                          : absl::DataLossError(absl::StrCat(wrong, " wrong"));
      });
  EXPECT_THAT(status, IsOk());
}

// Layers under the clock: right ones, and wrong ones.

SyncBnRequest Request(DataType type = DataType::kFloat32,
                      Layout layout = Layout::kNhwc) {
  SyncBnRequest request;
  request.layer = {
      .n = 2, .h = 3, .w = 5, .c = 7, .layout = layout, .type = type};
  request.warmup = 1;
  request.iterations = 3;
  return request;
}

// Runs SyncBatchNorm, whose outputs are held against those of `synchronised`,
// on two ranks; returns what they find wrong.
absl::StatusOr<int64_t> WrongOnTwoRanks(const SyncBnRequest& request,
                                        bool group_of_one, bool synchronised) {
  int64_t wrong[2] = {0, 0};
  const auto run = [&](Communicator& group) -> absl::Status {
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    CpuBatchNormKernels kernels;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> alone,
                              group.Split(group.rank(), 0));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BatchNorm> norm,
        SyncBatchNorm::Create(OptionsOf(request.layer), kernels,
                              group_of_one ? *alone : group));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                              SyncBnLayer::Create(request.layer, group));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const RankTurn turn, layer->Time(*norm, synchronised, request, timing));
    if (turn.forward.size() != 3 || turn.backward.size() != 3) {
      return absl::InternalError("not as many calls as asked for");
    }
    for (const CallTimes& call : turn.forward) {
      if (!(call.end > call.begin && call.begin > 0)) {
        return absl::InternalError("a call took no time");
      }
    }
    wrong[group.rank()] = turn.wrong;
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(RunOnThreads(2, GroupOptions(), run));
  return wrong[0] + wrong[1];
}

TEST(SyncBnLayerTest, FindsSyncBatchNormRightInEveryTypeAndLayout) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      EXPECT_THAT(WrongOnTwoRanks(Request(type, layout), false, true),
                  IsOkAndHolds(0))
          << Name(type) << " " << Name(layout);
    }
  }
}

// Every y and dx, of which there are 2 * 210 on each rank, but for a few that
// happen to be near.
TEST(SyncBnLayerTest, FindsTheStatisticsOfTheWrongBatchWrong) {
  for (const bool group_of_one : {false, true}) {
    const absl::StatusOr<int64_t> wrong =
        WrongOnTwoRanks(Request(), group_of_one, group_of_one);
    ASSERT_THAT(wrong, IsOk());
    EXPECT_GT(*wrong, 2 * 2 * 210 * 9 / 10);
    EXPECT_THAT(WrongOnTwoRanks(Request(), group_of_one, !group_of_one),
                IsOkAndHolds(0));
  }
}

// Leaves out one of the passes, or fails.
class LazyNorm : public BatchNorm {
 public:
  explicit LazyNorm(BatchNorm& norm) : norm_(norm) {}
  int64_t SavedBytes(DataType type) const override {
    return norm_.SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    if (fails) return absl::AbortedError("no forward");
    return skips_forward ? absl::OkStatus() : norm_.Forward(buffers);
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> ready) override {
    return skips_backward ? absl::OkStatus() : norm_.Backward(buffers, ready);
  }

  bool fails = false, skips_forward = false, skips_backward = false;

 private:
  BatchNorm& norm_;
};

TEST(SyncBnLayerTest, FindsWhatAnEarlierTurnLeftWrong) {
  const auto run = [&](Communicator& group) -> absl::Status {
    const SyncBnRequest request = Request();
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    CpuBatchNormKernels kernels;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BatchNorm> norm,
        SyncBatchNorm::Create(OptionsOf(request.layer), kernels, group));
    LazyNorm lazy(*norm);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                              SyncBnLayer::Create(request.layer, group));
    const auto wrong = [&] {
      const auto turn = layer->Time(lazy, true, request, timing);
      return turn.ok() ? turn->wrong : -1;
    };
    EXPECT_EQ(wrong(), 0);
    lazy.skips_backward = true;
    EXPECT_EQ(wrong(), 210 + 2 * 7);
    lazy.skips_forward = true;
    EXPECT_EQ(wrong(), 2 * 210 + 2 * 7);
    lazy.fails = true;
    EXPECT_EQ(wrong(), -1);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(1, GroupOptions(), run), IsOk());
}

TEST(TimeCallTest, HasWhatTheTimersSawAndNothingOlder) {
  const auto run = [](Communicator& group) -> absl::Status {
    static double now = 0;
    now = 5;
    CallTiming timing = {.clock = [] { return now; }, .call = {}};
    timing.call.kernels[0] = 99;
    const absl::StatusOr<CallTimes> call = TimeCall(group, timing, [&] {
      timing.call.kernels[1] += 2;
      now += 3;
      return absl::OkStatus();
    });
    EXPECT_THAT(call, IsOk());
    EXPECT_EQ(call->begin, 5);
    EXPECT_EQ(call->end, 8);
    EXPECT_EQ(call->kernels, (KernelSeconds{0, 2, 0, 0, 0}));
    EXPECT_THAT(
        TimeCall(group, timing, [] { return absl::AbortedError("no"); }),
        StatusIs(absl::StatusCode::kAborted, "no"));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(1, GroupOptions(), run), IsOk());
}

}  // namespace
}  // namespace lockstep::benchmarks
