// Batch norm's messages beside the sums of gradients: both at once, and how a
// step ends in which a rank fails between them.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/train/counting_model.h"
#include "models/train/data_parallel.h"

namespace lockstep {
namespace {

using testing::_;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

// A model whose step is what the test says.
class ScriptedModel : public CountingModel {
 public:
  using Script = std::function<absl::Status(
      ScriptedModel& model, Communicator& group, GradientReady ready)>;

  explicit ScriptedModel(Script script) : script_(std::move(script)) {}

  int ConvertSyncBatchNorm(Communicator& group) override {
    group_ = &group;
    return 1;
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch&, float,
                                          GradientReady ready) override {
    LOCKSTEP_RETURN_IF_ERROR(script_(*this, *group_, ready));
    return Metrics();
  }

 private:
  const Script script_;
  Communicator* group_ = nullptr;
};

// As batch norm's.
absl::Status Message(Communicator& group) {
  int64_t ranks = 1;
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(std::span<int64_t>(&ranks, 1)));
  return ranks == group.world_size()
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("sum is ", ranks));
}

// One step, of which the communicators are then left in the order in which
// data_parallel.h asks for it, or in the other.
absl::Status RunStep(Communicator& communicator, ScriptedModel::Script script,
                     bool group_first = true) {
  ScriptedModel model(std::move(script));
  auto reducer = std::make_unique<GradientReducer>(
      communicator, model.parameters(), /*bucket_bytes=*/1);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                            SynchroniseBatchNorm(communicator, model));
  const absl::Status status =
      TrainStep(model, *reducer, {}, /*global_samples=*/1, /*lr=*/1).status();
  if (group_first) group.reset();
  reducer.reset();
  return status;
}

class BackendTest : public testing::TestWithParam<std::tuple<Backend, int>> {};

INSTANTIATE_TEST_SUITE_P(Groups, BackendTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses),
                                          testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

TEST_P(BackendTest, MessagesPassWhileGradientsAreSummed) {
  const auto script = [](ScriptedModel& model, Communicator& group,
                         Model::GradientReady ready) -> absl::Status {
    for (int index = model.parameters().count() - 1; index >= 0; --index) {
      const std::span<float> gradient = model.parameters().gradient(index);
      std::fill(gradient.begin(), gradient.end(),
                static_cast<float>(group.rank() + 1));
      // Ranks differ in what comes first.
      if (group.rank() == index) LOCKSTEP_RETURN_IF_ERROR(Message(group));
      ready(index);
      if (group.rank() != index) LOCKSTEP_RETURN_IF_ERROR(Message(group));
    }
    return absl::OkStatus();
  };
  const auto [backend, world_size] = GetParam();
  EXPECT_THAT(
      RunRanks(backend, world_size,
               [&](Communicator& communicator) -> absl::Status {
                 ScriptedModel model(script);
                 GradientReducer reducer(communicator, model.parameters(), 1);
                 LOCKSTEP_ASSIGN_OR_RETURN(
                     const std::unique_ptr<Communicator> group,
                     SynchroniseBatchNorm(communicator, model));
                 const int ranks = communicator.world_size();
                 const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
                 for (int step = 1; step <= 20; ++step) {
                   LOCKSTEP_RETURN_IF_ERROR(
                       TrainStep(model, reducer, {}, 1, 1.0f).status());
                   for (const float value : model.parameters().values()) {
                     if (value == -sum * static_cast<float>(step)) continue;
                     return absl::DataLossError(absl::StrCat(value));
                   }
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(SynchroniseBatchNormTest, RefusesAModelWithoutBatchNorm) {
  EXPECT_THAT(
      RunRanks(Backend::kThreads, 2,
               [](Communicator& communicator) {
                 CountingModel model;
                 return SynchroniseBatchNorm(communicator, model).status();
               }),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr("no batch norm"))));
}

// Rank 1 fails where rank 0 waits for its message; `pending` of the two has
// begun to sum a gradient by then, which the other never will.
ScriptedModel::Script FailingScript(int pending,
                                    std::function<absl::Status()> fail) {
  return [pending, fail](ScriptedModel& model, Communicator& group,
                         Model::GradientReady ready) -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(Message(group));
    if (group.rank() == pending) ready(model.parameters().count() - 1);
    if (group.rank() == 1) return fail();
    return Message(group);
  };
}

absl::Status Fault() { return absl::DataLossError("a fault of rank 1"); }

TEST(SynchroniseBatchNormTest, NoRankWaitsForOneThatFailedBetweenMessages) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    for (const int pending : {0, 1}) {
      const std::vector<absl::Status> statuses =
          RunRanks(backend, 2, [&](Communicator& communicator) {
            return RunStep(communicator, FailingScript(pending, Fault));
          });
      // Not kDeadlineExceeded.
      EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable,
                                        HasSubstr("rank 1")));
      EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDataLoss, _));
    }
  }
}

// The control: rank 1 waits for rank 0's part of the sum, and rank 0 for rank
// 1's message, until one of the two waits is over: no sooner than the timeout.
TEST(SynchroniseBatchNormTest, InTheOtherOrderTheyWaitForEachOther) {
  RunRanksOptions options;
  options.group.timeout = absl::Milliseconds(300);
  const absl::Time start = absl::Now();
  const std::vector<absl::Status> statuses = RunRanks(
      Backend::kThreads, 2,
      [&](Communicator& communicator) {
        return RunStep(communicator, FailingScript(/*pending=*/1, Fault),
                       /*group_first=*/false);
      },
      options);
  EXPECT_GE(absl::Now() - start, options.group.timeout);
  EXPECT_THAT(statuses[0],
              AnyOf(StatusIs(absl::StatusCode::kDeadlineExceeded, _),
                    StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("rank 1 left"))));
}

TEST(SynchroniseBatchNormTest, TheDeathOfARankEndsAWaitForItsMessage) {
  for (const int pending : {0, 1}) {
    const std::vector<absl::Status> statuses =
        RunRanks(Backend::kProcesses, 2, [&](Communicator& communicator) {
          return RunStep(communicator, FailingScript(pending, [] {
                           raise(SIGKILL);
                           return absl::OkStatus();
                         }));
        });
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 1 (pid "), HasSubstr("died"),
                               HasSubstr("synchronise_batch_norm_test.cc"))));
    EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kAborted, _));
  }
}

}  // namespace
}  // namespace lockstep
