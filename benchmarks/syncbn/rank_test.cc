// Timers on a clock that is made up; steps of ResNet-18; turns of every kind.
#include "benchmarks/syncbn/rank.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/fake_python.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "collectives/testing/fake_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep::benchmarks {
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
  CallTiming timing = {.clock = Now, .call = {}};
  FakeKernels fake;
  TimedKernels kernels(fake, timing);
  EXPECT_THAT(kernels.Allocate(1), IsOk());
  EXPECT_THAT(kernels.UseRunning({}, {}, 0, nullptr), IsOk());
  EXPECT_THAT(timing.call.kernels, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(kernels.ComputeMoments({}, {}, nullptr), IsOk());
  EXPECT_THAT(kernels.Merge({}, nullptr, 1, {}, {}, nullptr),
              StatusIs(absl::StatusCode::kAborted, "no merge"));
  EXPECT_THAT(kernels.Normalize({}), IsOk());
  EXPECT_THAT(kernels.BackwardReduce({}, {}, {}, {}), IsOk());
  EXPECT_THAT(kernels.BackwardInput({}, {}, {}, {}), IsOk());
  EXPECT_THAT(timing.call.kernels, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(kernels.Normalize({}), IsOk());
  EXPECT_THAT(timing.call.kernels, ElementsAre(1, 2, 8, 8, 16));
  EXPECT_THAT(timing.call.messages, IsEmpty());
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
  CallTiming timing = {.clock = Now, .call = {}};
  FakeGroup fake;
  TimedCommunicator group(fake, timing);
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.world_size(), 1);
  std::vector<float> values(6);
  now = 10;
  EXPECT_THAT(group.AllReduce(Buffer(values)), IsOk());
  now = 20;
  EXPECT_THAT(group.Barrier(), StatusIs(absl::StatusCode::kAborted, "late"));
  ASSERT_THAT(timing.call.messages, SizeIs(2));
  EXPECT_EQ(timing.call.messages[0].entered, 10);
  EXPECT_EQ(timing.call.messages[0].left, 13);
  EXPECT_EQ(timing.call.messages[0].bytes, 24);
  EXPECT_EQ(timing.call.messages[1].entered, 20);
  Communicator& any = group;
  EXPECT_THAT(any.Split(0, 0), StatusIs(absl::StatusCode::kUnimplemented,
                                        "a fake does not split"));
  EXPECT_THAT(any.Allocate(1), StatusIs(absl::StatusCode::kUnimplemented,
                                        "a fake allocates nothing"));
}

// Steps of ResNet-18 on one image or two.

SyncBnRequest Step(SyncBnSubject subject) {
  SyncBnRequest request;
  request.subject = subject;
  request.network = 1;
  request.layer.n = 2;
  return request;
}

// ResNet-18 has 17 batch norms, since d2l's shortcuts have none: 1, and in each
// of 8 blocks 2; each sends one message forward and one backward.
TEST(SyncBnNetworkTest, StepsAndCountsMessages) {
  const SyncBnSubject subjects[] = {SyncBnSubject::kLocal, SyncBnSubject::kSync,
                                    SyncBnSubject::kSplit};
  RankTurn turns[3][2];
  const auto run = [&](Communicator& group) -> absl::Status {
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(group, timing, /*seed=*/3, /*batch=*/2));
    for (size_t i = 0; i < 3; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(turns[i][group.rank()],
                                network->Time(Step(subjects[i])));
    }
    return absl::OkStatus();
  };
  ASSERT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
  for (size_t i = 0; i < 3; ++i) {
    const absl::StatusOr<TeamTurn> turn = CombineTurns(turns[i]);
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->wrong, 0);
    ASSERT_EQ(turn->forward.size(), 1u);
    EXPECT_GT(turn->forward[0].seconds, 0);
    EXPECT_EQ(turn->forward[0].messages, i == 2 ? 34 : 0);
  }
}

// On rank 1 the first element of every sum of floats has another last bit.
class Corrupting : public Communicator {
 public:
  explicit Corrupting(Communicator& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  absl::Status Run(const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(group_.Run(call));
    if (rank() == 1 && call.operation == Operation::kAllReduce) {
      *static_cast<unsigned char*>(call.output.data) ^= 1;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return group_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return group_.Split(color, key, site);
  }

 private:
  Communicator& group_;
};

TEST(SyncBnNetworkTest, CountsGradientsThatDifferBetweenRanks) {
  int64_t wrong[2] = {0, 0};
  const auto run = [&](Communicator& group) -> absl::Status {
    Corrupting corrupting(group);
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(corrupting, timing, /*seed=*/3, /*batch=*/1));
    LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn,
                              network->Time(Step(SyncBnSubject::kSync)));
    wrong[group.rank()] = turn.wrong;
    return absl::OkStatus();
  };
  ASSERT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
  EXPECT_EQ(wrong[0], 0);
  EXPECT_GT(wrong[1], 0);
}

// Ranks that take turns of every kind.

using ::testing::HasSubstr;

SyncBnRequest Request(SyncBnSubject subject,
                      DataType type = DataType::kFloat32) {
  SyncBnRequest request;
  request.subject = subject;
  request.layer = {.n = 2, .h = 4, .w = 4, .c = 16, .type = type};
  request.warmup = 1;
  request.iterations = 2;
  return request;
}

// Takes the turns on `world_size` ranks, and combines each.
std::vector<TeamTurn> Take(int world_size,
                           const std::vector<SyncBnRequest>& requests) {
  std::vector<std::vector<RankTurn>> turns(requests.size());
  for (auto& ranks : turns) ranks.resize(static_cast<size_t>(world_size));
  SyncBnRankOptions options;
  options.pythons = {"/absent/python"};
  const auto run = [&](Communicator& group) -> absl::Status {
    SyncBnRank rank(group, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(turns[i][static_cast<size_t>(group.rank())],
                                rank.Take(requests[i]));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(world_size, GroupOptions(), run), IsOk());
  std::vector<TeamTurn> combined;
  for (const auto& ranks : turns) {
    const absl::StatusOr<TeamTurn> turn = CombineTurns(ranks);
    EXPECT_THAT(turn, IsOk());
    combined.push_back(*turn);
  }
  return combined;
}

TEST(SyncBnRankTest, IsRightAndTimesEveryCall) {
  for (const int world_size : {1, 2, 3}) {
    for (const TeamTurn& turn : Take(
             world_size,
             {Request(SyncBnSubject::kLocal), Request(SyncBnSubject::kSync),
              Request(SyncBnSubject::kSplit), Request(SyncBnSubject::kOwnLocal),
              Request(SyncBnSubject::kLocal)})) {
      EXPECT_EQ(turn.wrong, 0);
      ASSERT_THAT(turn.forward, SizeIs(2));
      ASSERT_THAT(turn.backward, SizeIs(2));
      for (const TeamCall& call : turn.forward) EXPECT_GT(call.seconds, 0);
    }
  }
}

// A group that keeps the messages that pass through it, barriers apart.
class RecordingGroup : public Communicator {
 public:
  using Message = std::pair<Operation, int64_t>;  // And the bytes given.

  explicit RecordingGroup(Communicator& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  absl::Status Run(const Collective& call) override {
    if (call.operation != Operation::kBarrier) {
      messages.emplace_back(call.operation, call.input.size_bytes());
    }
    return group_.Run(call);
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return group_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return group_.Split(color, key, site);
  }

  std::vector<Message> messages;

 private:
  Communicator& group_;
};

// The messages of a turn of SyncBN, and of its messages alone: the same ones,
// also where records are padded to 16 bytes.
TEST(SyncBnRankTest, SendsSyncBatchNormsMessagesAlone) {
  for (const int64_t channels : {1, 3, 7, 16, 65}) {
    const auto run = [&](Communicator& group) -> absl::Status {
      RecordingGroup recording(group);
      SyncBnRank rank(recording, SyncBnRankOptions());
      SyncBnRequest request = Request(SyncBnSubject::kSync);
      request.layer.c = channels;
      LOCKSTEP_RETURN_IF_ERROR(rank.Take(request).status());  // Its reference.
      for (const SyncBnSubject subject :
           {SyncBnSubject::kSync, SyncBnSubject::kMessage}) {
        request.subject = subject;
        recording.messages.clear();
        LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn, rank.Take(request));
        EXPECT_EQ(turn.wrong, 0);
        const int64_t padded = 16 + (8 * channels + 15) / 16 * 16;
        const RecordingGroup::Message forward = {Operation::kAllGather, padded};
        const RecordingGroup::Message backward = {Operation::kAllReduce,
                                                  8 * channels};
        EXPECT_THAT(recording.messages,
                    ElementsAre(forward, backward, forward, backward, forward,
                                backward))
            << Name(subject) << ", " << channels << " channels";
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(RunOnThreads(3, GroupOptions(), run), IsOk());
  }
}

// 16 + 8 c bytes forward, 8 c backward, for an even c: one message each.
TEST(SyncBnRankTest, SplitsSyncBatchNormAlone) {
  const std::vector<TeamTurn> turns =
      Take(2, {Request(SyncBnSubject::kSync), Request(SyncBnSubject::kSplit)});
  EXPECT_EQ(turns[0].forward[0].messages, 0);
  EXPECT_EQ(turns[0].forward[0].Kernels(), 0);
  for (const TeamCall& call : turns[1].forward) {
    EXPECT_EQ(call.messages, 1);
    EXPECT_EQ(call.message_bytes, 16 + 8 * 16);
    EXPECT_GT(call.kernels[static_cast<size_t>(TimedKernel::kMoments)], 0);
    EXPECT_GT(call.kernels[static_cast<size_t>(TimedKernel::kMerge)], 0);
    EXPECT_GT(call.kernels[static_cast<size_t>(TimedKernel::kNormalize)], 0);
    EXPECT_GT(call.communication, 0);
    EXPECT_GE(call.wait, 0);
    EXPECT_GE(call.other, 0);
  }
  for (const TeamCall& call : turns[1].backward) {
    EXPECT_EQ(call.messages, 1);
    EXPECT_EQ(call.message_bytes, 8 * 16);
    EXPECT_GT(call.kernels[static_cast<size_t>(TimedKernel::kBackwardReduce)],
              0);
    EXPECT_GT(call.kernels[static_cast<size_t>(TimedKernel::kBackwardInput)],
              0);
  }
}

TEST(SyncBnRankTest, TimesMessagesAndCopies) {
  const std::vector<TeamTurn> turns = Take(
      2, {Request(SyncBnSubject::kMessage), Request(SyncBnSubject::kCopy)});
  EXPECT_THAT(turns[0].forward, SizeIs(2));
  EXPECT_THAT(turns[0].backward, SizeIs(2));
  EXPECT_GT(turns[0].forward[0].seconds, 0);
  EXPECT_THAT(turns[1].forward, SizeIs(2));
  EXPECT_THAT(turns[1].backward, IsEmpty());
  EXPECT_GT(turns[1].forward[0].seconds, 0);
  EXPECT_EQ(turns[1].wrong, 0);
}

TEST(SyncBnRankTest, SaysWhatIsMissing) {
  const std::vector<TeamTurn> turns =
      Take(2, {Request(SyncBnSubject::kTorch),
               Request(SyncBnSubject::kLocal, DataType::kFloat16),
               Request(SyncBnSubject::kSync, DataType::kFloat16)});
  EXPECT_THAT(turns[0].missing, HasSubstr("/absent/python: "));
  EXPECT_THAT(turns[1].missing, HasSubstr("float16"));
  EXPECT_EQ(turns[2].missing, "");
  EXPECT_EQ(turns[2].wrong, 0);
}

// Rank 0's hangs, in the turn or before it; rank 1's is fast. Both ranks know
// well before the deadline of a turn, and do not wait for it again.
TEST(SyncBnRankTest, GivesUpPyTorchThatHangs) {
  const std::string ready = "echo lockstep: ready 2.1.0 no; ";
  const std::string good = MakePython(absl::StrCat(
      ready, "while read line; do echo lockstep: timed 1 2 3 4; done"));
  for (const std::string& before : {ready, std::string()}) {
    const std::string hangs = MakePython(absl::StrCat(before, "sleep 1000"));
    const auto run = [&](Communicator& group) -> absl::Status {
      SyncBnRankOptions options;
      options.pythons = {group.rank() == 0 ? hangs : good};
      options.timeout = absl::Seconds(group.rank() == 0 ? 1 : 100);
      SyncBnRank rank(group, options);
      const absl::Time begin = absl::Now();
      for (int turn = 0; turn < 20; ++turn) {
        LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn answer,
                                  rank.Take(Request(SyncBnSubject::kTorch)));
        EXPECT_EQ(answer.missing,
                  group.rank() == 0
                      ? absl::StrCat(hangs, ": it did not answer in time")
                      : "");
      }
      EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
      return absl::OkStatus();
    };
    EXPECT_THAT(RunOnThreads(2, GroupOptions(), run), IsOk());
  }
}

TEST(SyncBnRankTest, NeedsALauncherForProcesses) {
  EXPECT_THAT(RunSyncBnRank("00", RankKind::kProcesses, 2, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "a rank needs a launcher"));
}

}  // namespace
}  // namespace lockstep::benchmarks
