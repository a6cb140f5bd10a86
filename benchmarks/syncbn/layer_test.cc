// Tests that right outputs pass and every kind of wrong output is counted; and
// tests timers on a fake clock.
#include "benchmarks/syncbn/layer.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;

constexpr double kEpsilon = 1e-5;
constexpr int64_t kBatch = 3, kPixels = 7, kChannels = 32;

// Inputs of several ranks, and the outputs of batch norm over all of them
// together, by the formulas (syncbn/testing/batch_norm_reference.h).
class Example {
 public:
  Example(DataType type, Layout layout, int ranks)
      : type_(type), shape_{kBatch, kChannels, kPixels, layout} {
    ReferenceLayer layer = {.channels = kChannels,
                            .hw = kPixels,
                            .epsilon = kEpsilon,
                            .weight = {},
                            .bias = {}};
    for (int64_t c = 0; c < kChannels; ++c) {
      layer.weight.push_back(0.5 + static_cast<double>(c % 5));
      layer.bias.push_back(1.0 - static_cast<double>(c % 5));
    }
    weight_.assign(layer.weight.begin(), layer.weight.end());
    bias_.assign(layer.bias.begin(), layer.bias.end());
    std::vector<ReferenceBatch> batches;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<double> x, dy;
      for (int64_t i = 0; i < kElements; ++i) {
        x.push_back(2 + 0.25 * rank + Uniform(1, rank * kElements + i));
        dy.push_back(0.1 + Uniform(2, rank * kElements + i));
      }
      batches.push_back({.n = kBatch,
                         .x = RoundedTo(type, x),
                         .residual = {},
                         .dy = RoundedTo(type, dy)});
    }
    const Precision precision = PrecisionOf(type);
    const ReferenceStatistics statistics =
        StatisticsOf(layer, batches, precision);
    const ReferenceResult result =
        ReferenceOf(layer, statistics, batches, precision);
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      ranks_.push_back({.x = Stored(batches[rank].x),
                        .dy = Stored(batches[rank].dy),
                        .y = Stored(result.y[rank].value),
                        .dx = Stored(result.dx[rank].value)});
      AddGradients(batches[rank], statistics, ranks_.back());
    }
  }

  LayerInputs Inputs(int rank) const {
    const Rank& from = ranks_[static_cast<size_t>(rank)];
    return {.shape = shape_,
            .x = Elements(from.x),
            .dy = Elements(from.dy),
            .weight = weight_,
            .bias = bias_};
  }
  LayerOutputs Outputs(int rank) const {
    const Rank& from = ranks_[static_cast<size_t>(rank)];
    return {.y = Elements(from.y),
            .dx = Elements(from.dx),
            .dweight = from.dweight,
            .dbias = from.dbias};
  }
  // The outputs of rank 0, for tests to spoil.
  Buffer y() { return {ranks_[0].y.data(), kElements, type_}; }
  Buffer dx() { return {ranks_[0].dx.data(), kElements, type_}; }
  std::vector<float>& dweight() { return ranks_[0].dweight; }
  std::vector<float>& dbias() { return ranks_[0].dbias; }

  static constexpr int64_t kElements = kBatch * kPixels * kChannels;

 private:
  struct Rank {
    std::vector<std::byte> x, dy, y, dx;
    std::vector<float> dweight = {}, dbias = {};
  };

  std::vector<std::byte> Stored(const std::vector<double>& nchw) const {
    std::vector<std::byte> bytes(
        static_cast<size_t>(kElements * SizeOf(type_)));
    const std::vector<double> values = ToLayout(shape_, nchw);
    for (int64_t i = 0; i < kElements; ++i) {
      SetNumber({bytes.data(), kElements, type_}, i,
                values[static_cast<size_t>(i)]);
    }
    return bytes;
  }
  ConstBuffer Elements(const std::vector<std::byte>& bytes) const {
    return {bytes.data(), kElements, type_};
  }
  // Adds the rank's own part of the sums.
  static void AddGradients(const ReferenceBatch& batch,
                           const ReferenceStatistics& all, Rank& rank) {
    std::vector<double> dweight(kChannels), dbias(kChannels);
    for (size_t i = 0; i < batch.x.size(); ++i) {
      const size_t c = i / kPixels % kChannels;
      dbias[c] += batch.dy[i];
      dweight[c] += batch.dy[i] * (batch.x[i] - all.mean.value[c]) *
                    all.inverse_deviation.value[c];
    }
    rank.dweight.assign(dweight.begin(), dweight.end());
    rank.dbias.assign(dbias.begin(), dbias.end());
  }

  const DataType type_;
  const ActivationShape shape_;
  std::vector<float> weight_, bias_;
  std::vector<Rank> ranks_;
};

int64_t WrongAlone(const Example& example) {
  const absl::StatusOr<LayerReference> reference =
      LayerReference::Create(example.Inputs(0), kEpsilon, nullptr);
  EXPECT_THAT(reference, IsOk());
  return reference->CountWrong(example.Inputs(0), example.Outputs(0));
}

class LayerReferenceTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, LayerReferenceTest,
                         testing::Values(DataType::kFloat32, DataType::kFloat16,
                                         DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

TEST_P(LayerReferenceTest, TakesWhatIsRight) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNchw16c}) {
    EXPECT_EQ(WrongAlone(Example(GetParam(), layout, 1)), 0) << Name(layout);
  }
}

TEST_P(LayerReferenceTest, CountsEachElementThatIsWrong) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Example example(GetParam(), Layout::kNhwc, 1);
  SetNumber(example.y(), 0, kNan);
  SetNumber(example.y(), 1, kNan);
  SetNumber(example.y(), 2, GetNumber(example.y(), 2) * 1.05 + 0.05);
  SetNumber(example.dx(), 10, kNan);
  SetNumber(example.dx(), 11, GetNumber(example.dx(), 11) + 0.05);
  example.dweight()[0] += 1;
  example.dbias()[4] += 1;
  example.dbias()[3] = kNan;
  EXPECT_EQ(WrongAlone(example), 8);
}

// The whole batch's statistics differ from those of a part of it, and one
// layout's from another's.
TEST_P(LayerReferenceTest, CountsTheStatisticsOfAnotherBatch) {
  const Example both(GetParam(), Layout::kNhwc, 2);
  EXPECT_GT(WrongAlone(both), 2 * Example::kElements * 9 / 10);
  for (const Layout layout : {Layout::kNchw, Layout::kNchw16c}) {
    Example confused(GetParam(), Layout::kNhwc, 1);
    Example other(GetParam(), layout, 1);
    std::memcpy(confused.y().data, other.y().data,
                static_cast<size_t>(other.y().size_bytes()));
    EXPECT_GT(WrongAlone(confused), Example::kElements / 2) << Name(layout);
  }
}

TEST_P(LayerReferenceTest, TakesTheBatchesOfAllRanksTogether) {
  const Example example(GetParam(), Layout::kNchw, 3);
  const auto run = [&](Communicator& group) -> absl::Status {
    const LayerInputs inputs = example.Inputs(group.rank());
    LOCKSTEP_ASSIGN_OR_RETURN(const LayerReference reference,
                              LayerReference::Create(inputs, kEpsilon, &group));
    EXPECT_EQ(reference.CountWrong(inputs, example.Outputs(group.rank())), 0);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(3, GroupOptions(), run), IsOk());
}

// Layers under the clock: right ones, and wrong ones.

SyncBnRequest Request() {
  return {
      .layer = {.n = 2, .h = 3, .w = 5, .c = 7}, .warmup = 1, .iterations = 3};
}

// A rank is a group of its own, but its outputs are compared with those of both
// ranks; or the other way round. All y and dx are then wrong, 2 * 210 on each
// of two ranks, except a few that happen to be near.
TEST(SyncBnLayerTest, FindsTheStatisticsOfTheWrongBatchWrong) {
  for (const bool alone : {false, true}) {
    for (const bool synchronised : {false, true}) {
      int64_t wrong[2] = {0, 0};
      const auto run = [&](Communicator& group) -> absl::Status {
        CallTiming timing = {.clock = SteadySeconds, .call = {}};
        CpuBatchNormKernels kernels;
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> own,
                                  group.Split(group.rank(), 0));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<BatchNorm> norm,
            SyncBatchNorm::Create(OptionsOf(Request().layer), kernels,
                                  alone ? *own : group));
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                                  SyncBnLayer::Create(Request().layer, group));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const RankTurn turn,
            layer->Time(*norm, synchronised, Request(), timing));
        wrong[group.rank()] = turn.wrong;
        return absl::OkStatus();
      };
      ASSERT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
      if (alone == synchronised) {
        EXPECT_GT(wrong[0] + wrong[1], 2 * 2 * 210 * 9 / 10);
      } else {
        EXPECT_EQ(wrong[0] + wrong[1], 0);
      }
    }
  }
}

// Leaves out one of the passes, or fails.
class LazyNorm : public BatchNorm {
 public:
  explicit LazyNorm(BatchNorm& norm) : norm_(norm) {}
  int64_t SavedBytes(DataType type) const override {
    return norm_.SavedBytes(type);
  }
  absl::Status Forward(const ForwardBuffers& buffers) override {
    if (fails) return absl::AbortedError("no forward");
    return skips_forward ? absl::OkStatus() : norm_.Forward(buffers);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
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

// Timers.

double now = 0;
double Now() { return now; }

// Each step of this clock is twice the step before, so that no two kernels take
// the same time.
double step = 1;
double Tick() { return now += step *= 2; }

class NoMerge : public CpuBatchNormKernels {
 public:
  absl::Status Normalize(const NormalizeCall&) override {
    return absl::OkStatus();
  }
  absl::Status UseRunning(const RunningCall&) override {
    return absl::OkStatus();
  }
  absl::Status Merge(const MergeCall&) override {
    return absl::AbortedError("no merge");
  }
};

// Returns the turn of SyncBatchNorm on those kernels, with timers, on one rank.
absl::StatusOr<RankTurn> TimeWith(BatchNormKernels& kernels) {
  now = 0;
  step = 1;
  CallTiming timing = {.clock = Tick, .call = {}};
  TimedKernels timed(kernels, timing);
  absl::StatusOr<RankTurn> turn;
  const auto run = [&](Communicator& group) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BatchNorm> norm,
        SyncBatchNorm::Create(OptionsOf(Request().layer), timed, group));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                              SyncBnLayer::Create(Request().layer, group));
    turn = layer->Time(*norm, true, Request(), timing);
    return turn.status();
  };
  LOCKSTEP_RETURN_IF_ERROR(RunOnThreads(1, GroupOptions(), run));
  return turn;
}

TEST(TimedKernelsTest, TimesEachKernelAndHandsItsResultOn) {
  CpuBatchNormKernels kernels;
  const absl::StatusOr<RankTurn> turn = TimeWith(kernels);
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->wrong, 0);
  // Kernels are timed in the order in which they ran, and nothing else is
  // timed.
  for (const CallTimes& call : turn->forward) {
    EXPECT_THAT(call.kernels, ElementsAre(Gt(0), Gt(call.kernels[0]),
                                          Gt(call.kernels[1]), 0, 0));
    EXPECT_THAT(call.messages, IsEmpty());
  }
  for (const CallTimes& call : turn->backward) {
    EXPECT_THAT(call.kernels, ElementsAre(0, 0, 0, Gt(0), Gt(call.kernels[3])));
  }
  NoMerge no_merge;
  EXPECT_THAT(TimeWith(no_merge),
              StatusIs(absl::StatusCode::kAborted, "no merge"));
}

TEST(TimedKernelsTest, AddsUpAKernelsCallsAndTimesNoMemory) {
  NoMerge kernels;
  CallTiming timing = {.clock = Tick, .call = {}};
  TimedKernels timed(kernels, timing);
  EXPECT_THAT(timed.Allocate(8), IsOk());
  EXPECT_THAT(timed.UseRunning({}), IsOk());
  EXPECT_THAT(timing.call.kernels, Each(0));
  now = 0;
  step = 1;  // The clock reads 2, 6, 14 and 30.
  for (int i = 0; i < 2; ++i) EXPECT_THAT(timed.Normalize({}), IsOk());
  EXPECT_THAT(timing.call.kernels, ElementsAre(0, 0, 20, 0, 0));
}

class FakeGroup : public FakeCommunicator {
 public:
  absl::Status Run(const Collective& call) override {
    now += 3;
    return call.operation == Operation::kBroadcast ? absl::AbortedError("late")
                                                   : absl::OkStatus();
  }
};

TEST(TimedCommunicatorTest, NotesWhenEachMessageIsEnteredAndLeft) {
  CallTiming timing = {.clock = Now, .call = {}};
  FakeGroup fake;
  TimedCommunicator group(fake, timing);
  std::vector<float> values(6);
  now = 10;
  EXPECT_THAT(group.AllReduce(Buffer(values)), IsOk());
  now = 20;
  EXPECT_THAT(group.Broadcast(Buffer(values), 0),
              StatusIs(absl::StatusCode::kAborted, "late"));
  EXPECT_EQ(timing.call.messages,
            (std::vector<MessageTimes>{{10, 13, 24}, {20, 23, 24}}));
}

TEST(TimeCallTest, HasWhatTheTimersSawAndNothingOlder) {
  now = 5;
  CallTiming timing = {.clock = Now, .call = {}};
  timing.call.kernels[0] = 99;
  FakeGroup group;
  const absl::StatusOr<CallTimes> call = TimeCall(group, timing, [&] {
    timing.call.kernels[1] += 2;
    now += 3;
    return absl::OkStatus();
  });
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(*call, (CallTimes{8, 11, {0, 2, 0, 0, 0}, {}}));
  EXPECT_THAT(TimeCall(group, timing, [] { return absl::AbortedError("no"); }),
              StatusIs(absl::StatusCode::kAborted, "no"));
}

}  // namespace
}  // namespace lockstep::benchmarks
