// Layers under the clock: right ones, and wrong ones.
#include "benchmarks/syncbn_layer.h"

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/steady_clock.h"
#include "benchmarks/syncbn_plan.h"
#include "benchmarks/syncbn_probe.h"
#include "benchmarks/syncbn_turn.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/group_options.h"
#include "collectives/host/run_on_threads.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

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
    Probe probe = {.clock = SteadySeconds, .call = {}};
    CpuBatchNormKernels kernels;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> alone,
                              group.Split(group.rank(), 0));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BatchNorm> norm,
        SyncBatchNorm::Create(OptionsOf(request.layer), kernels,
                              group_of_one ? *alone : group));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                              SyncBnLayer::Create(request.layer, group));
    LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn,
                              layer->Time(*norm, synchronised, request, probe));
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
    Probe probe = {.clock = SteadySeconds, .call = {}};
    CpuBatchNormKernels kernels;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BatchNorm> norm,
        SyncBatchNorm::Create(OptionsOf(request.layer), kernels, group));
    LazyNorm lazy(*norm);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SyncBnLayer> layer,
                              SyncBnLayer::Create(request.layer, group));
    const auto wrong = [&] {
      const auto turn = layer->Time(lazy, true, request, probe);
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

TEST(TimeCallTest, HasWhatTheProbeSawAndNothingOlder) {
  const auto run = [](Communicator& group) -> absl::Status {
    static double now = 0;
    now = 5;
    Probe probe = {.clock = [] { return now; }, .call = {}};
    probe.call.kernels[0] = 99;
    const absl::StatusOr<CallTimes> call = TimeCall(group, probe, [&] {
      probe.call.kernels[1] += 2;
      now += 3;
      return absl::OkStatus();
    });
    EXPECT_THAT(call, IsOk());
    EXPECT_EQ(call->begin, 5);
    EXPECT_EQ(call->end, 8);
    EXPECT_EQ(call->kernels, (KernelSeconds{0, 2, 0, 0, 0}));
    EXPECT_THAT(TimeCall(group, probe, [] { return absl::AbortedError("no"); }),
                StatusIs(absl::StatusCode::kAborted, "no"));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(1, GroupOptions(), run), IsOk());
}

}  // namespace
}  // namespace lockstep
