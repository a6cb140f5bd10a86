// Timers on a clock that is made up.
#include "benchmarks/syncbn_probe.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/syncbn_turn.h"
#include "collectives/buffer.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/fake_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

double now = 0;
double Now() { return now; }

// Each kernel takes another time; the merge fails.
class FakeKernels : public BatchNormKernels {
 public:
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t) override {
    now += 100;
    return std::shared_ptr<std::byte>();
  }
  absl::Status ComputeMoments(const ActivationShape&, ConstBuffer,
                              std::byte*) override {
    now += 1;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Merge(const StatisticsRecord&, const std::byte*, int,
                                const MergeOptions&, const RunningStatistics&,
                                std::byte*) override {
    now += 2;
    return absl::AbortedError("no merge");
  }
  absl::Status UseRunning(const StatisticsRecord&, const RunningStatistics&,
                          double, std::byte*) override {
    now += 100;
    return absl::OkStatus();
  }
  absl::Status Normalize(const NormalizeCall&) override {
    now += 4;
    return absl::OkStatus();
  }
  absl::Status BackwardReduce(const BackwardCall&, Buffer, Buffer,
                              Buffer) override {
    now += 8;
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const BackwardCall&, ConstBuffer, Buffer,
                             Buffer) override {
    now += 16;
    return absl::OkStatus();
  }
};

TEST(TimedKernelsTest, TimesEachKernelAndHandsItsResultOn) {
  Probe probe = {.clock = Now, .call = {}};
  FakeKernels fake;
  TimedKernels kernels(fake, probe);
  EXPECT_THAT(kernels.Allocate(1), IsOk());
  EXPECT_THAT(kernels.UseRunning({}, {}, 0, nullptr), IsOk());
  EXPECT_THAT(probe.call.kernels, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(kernels.ComputeMoments({}, {}, nullptr), IsOk());
  EXPECT_THAT(kernels.Merge({}, nullptr, 1, {}, {}, nullptr),
              StatusIs(absl::StatusCode::kAborted, "no merge"));
  EXPECT_THAT(kernels.Normalize({}), IsOk());
  EXPECT_THAT(kernels.BackwardReduce({}, {}, {}, {}), IsOk());
  EXPECT_THAT(kernels.BackwardInput({}, {}, {}, {}), IsOk());
  EXPECT_THAT(probe.call.kernels, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(kernels.Normalize({}), IsOk());
  EXPECT_THAT(probe.call.kernels, ElementsAre(1, 2, 8, 8, 16));
  EXPECT_THAT(probe.call.messages, IsEmpty());
}

class FakeGroup : public FakeCommunicator {
 public:
  absl::Status Run(const Collective& call) override {
    now += 3;
    return call.operation == Operation::kBarrier ? absl::AbortedError("late")
                                                 : absl::OkStatus();
  }
};

TEST(TimedCommunicatorTest, NotesWhenEachMessageIsEnteredAndLeft) {
  Probe probe = {.clock = Now, .call = {}};
  FakeGroup fake;
  TimedCommunicator group(fake, probe);
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.world_size(), 1);
  std::vector<float> values(6);
  now = 10;
  EXPECT_THAT(group.AllReduce(Buffer(values)), IsOk());
  now = 20;
  EXPECT_THAT(group.Barrier(), StatusIs(absl::StatusCode::kAborted, "late"));
  ASSERT_THAT(probe.call.messages, SizeIs(2));
  EXPECT_EQ(probe.call.messages[0].entered, 10);
  EXPECT_EQ(probe.call.messages[0].left, 13);
  EXPECT_EQ(probe.call.messages[0].bytes, 24);
  EXPECT_EQ(probe.call.messages[1].entered, 20);
  Communicator& any = group;
  EXPECT_THAT(any.Split(0, 0), StatusIs(absl::StatusCode::kUnimplemented,
                                        "a fake does not split"));
  EXPECT_THAT(any.Allocate(1), StatusIs(absl::StatusCode::kUnimplemented,
                                        "a fake allocates nothing"));
}

}  // namespace
}  // namespace lockstep
