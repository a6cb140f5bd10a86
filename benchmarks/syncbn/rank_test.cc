// What ResNet-18 takes of memory, and its steps; turns of every kind;
// PyTorch's.
#include "benchmarks/syncbn/rank.h"

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
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/rank_suite.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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
class Corrupting : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::Status Run(const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(inner().Run(call));
    if (rank() == 1 && call.operation == Operation::kAllReduce) {
      *static_cast<unsigned char*>(call.output.data) ^= 1;
    }
    return absl::OkStatus();
  }
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

}  // namespace

std::vector<TeamTurn> TakeTurns(int world_size,
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

namespace {

// A group that keeps the messages that pass through it, barriers apart.
class RecordingGroup : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  using Message = std::pair<Operation, int64_t>;  // And the bytes given.

  absl::Status Run(const Collective& call) override {
    if (call.operation != Operation::kBarrier) {
      messages.emplace_back(call.operation, call.input.size_bytes());
    }
    return inner().Run(call);
  }

  std::vector<Message> messages;
};

// The messages of a turn of SyncBN, and of its messages alone: the same ones,
// also where records are padded to 16 bytes.
TEST(SyncBnRankTest, SendsSyncBatchNormsMessagesAlone) {
  for (const int64_t channels : {1, 3, 7, 16, 65}) {
    const auto run = [&](Communicator& group) -> absl::Status {
      RecordingGroup recording(group);
      SyncBnRank rank(recording, SyncBnRankOptions());
      SyncBnRequest request = LayerRequest(SyncBnSubject::kSync);
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

TEST(SyncBnRankTest, SaysWhatIsMissing) {
  const std::vector<TeamTurn> turns =
      TakeTurns(2, {LayerRequest(SyncBnSubject::kTorch),
                    LayerRequest(SyncBnSubject::kLocal, DataType::kFloat16),
                    LayerRequest(SyncBnSubject::kSync, DataType::kFloat16)});
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
        LOCKSTEP_ASSIGN_OR_RETURN(
            const RankTurn answer,
            rank.Take(LayerRequest(SyncBnSubject::kTorch)));
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

// Programs in the place of Python, and PyTorch itself, where there is one.

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

absl::StatusOr<TorchProcess> Start(const std::string& script) {
  return StartSyncBnPeer({MakePython(script)}, Later());
}

SyncBnRequest PeerRequest(int iterations) {
  SyncBnRequest request;
  request.layer = {.n = 2, .h = 3, .w = 5, .c = 7, .seed = 11};
  request.warmup = 1;
  request.iterations = iterations;
  return request;
}

constexpr char kReady[] = "echo 'lockstep: ready 2.1.0 ValueError: no'; ";

TEST(SyncBnPeerTest, HandsOnWhatItTookOrCannot) {
  absl::StatusOr<TorchProcess> peer = Start(absl::StrCat(
      kReady, "while read line; do echo lockstep: timed 1 2 3 4; done"));
  ASSERT_THAT(peer, IsOk());
  const absl::StatusOr<RankTurn> turn =
      TimePeer(*peer, PeerRequest(2), Later());
  ASSERT_THAT(turn, IsOk());
  EXPECT_THAT(turn->note,
              AllOf(HasSubstr("PyTorch 2.1.0 ("),
                    HasSubstr("SyncBatchNorm on the CPU: ValueError: no")));
  ASSERT_THAT(turn->forward, SizeIs(2));
  ASSERT_THAT(turn->backward, SizeIs(2));
  EXPECT_EQ(turn->forward[1].end, 3);
  EXPECT_EQ(turn->backward[1].end, 4);
  const absl::StatusOr<RankTurn> none =
      ParsePeerAnswer(PeerRequest(2), "cannot RuntimeError: no Half");
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->missing, "RuntimeError: no Half");
  EXPECT_THAT(none->forward, IsEmpty());
}

TEST(PeerLineTest, SaysWhatToTime) {
  SyncBnRequest request = PeerRequest(3);
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nhwc float32 11 1 3");
  request.layer.layout = Layout::kNchw;
  request.layer.type = DataType::kBFloat16;
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nchw bfloat16 11 1 3");
}

TEST(ParsePeerAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParsePeerAnswer(PeerRequest(1), "timed 0.5 1e-3"), IsOk());
  for (const char* answer :
       {"", "timed", "timed 1", "timed 1 2 3", "took 1 2", "timed 0 1",
        "timed nan 1", "timed inf 1", "timed -1 1", "timed 1 x"}) {
    EXPECT_THAT(
        ParsePeerAnswer(PeerRequest(1), answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("is not understood")))
        << answer;
  }
}

// With the script itself, if some Python has PyTorch.
TEST(SyncBnPeerTest, TimesPyTorch) {
  absl::StatusOr<TorchProcess> peer =
      StartSyncBnPeer(PythonsToTry(""), Later());
  if (!peer.ok()) GTEST_SKIP() << peer.status();
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    SyncBnRequest request = PeerRequest(3);
    request.layer.layout = layout;
    const absl::StatusOr<RankTurn> turn = TimePeer(*peer, request, Later());
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->missing, "");
    EXPECT_THAT(turn->forward, SizeIs(3));
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
