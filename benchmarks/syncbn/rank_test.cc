// Tests steps of networks, turns of every kind, and PyTorch's turns.
#include "benchmarks/syncbn/rank.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
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
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/rank_suite.h"
#include "benchmarks/syncbn/torch_peer_py.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SyncBnRequest Step(SyncBnSubject subject) {
  return {.subject = subject, .network = 1, .layer = {.n = 2}};
}

// Lets two ranks take a step of each replica, on two images each. Expects that
// the replica with timers sends so many messages.
void ExpectSteps(const TrainedNetwork& trained, int64_t messages) {
  SCOPED_TRACE(trained.spec);
  const SyncBnSubject subjects[] = {SyncBnSubject::kLocal, SyncBnSubject::kSync,
                                    SyncBnSubject::kSplit};
  RankTurn turns[3][2];
  const auto run = [&](Communicator& group) -> absl::Status {
    SetComputeThreads(1);
    CallTiming timing = {.clock = SteadySeconds, .call = {}};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnNetwork> network,
        SyncBnNetwork::Create(group, timing, trained, /*seed=*/3,
                              /*batch=*/2));
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
    EXPECT_EQ(turn->forward[0].messages, i == 2 ? messages : 0);
  }
}

// Every batch norm sends one message forward and one backward. resnet18_d2l has
// 17 batch norms: one, and two in each of 8 blocks. torchvision's ResNet-18 has
// three more, in its shortcuts.
TEST(SyncBnNetworkTest, StepsAndCountsMessages) {
  const std::pair<TrainedNetwork, int64_t> cases[] = {
      {{}, 34},
      {{.spec = "lenet_bn", .input = {.channels = 2, .height = 18}}, 4},
      {{.spec = "resnet18:width=2",
        .input = {.channels = 3, .height = 33, .width = 20, .classes = 3}},
       40}};
  for (const auto& [trained, messages] : cases) {
    ExpectSteps(trained, messages);
  }
}

// Changes, on rank 1, the last bit of the first element of every sum of floats.
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
        SyncBnNetwork::Create(corrupting, timing, TrainedNetwork(), /*seed=*/3,
                              /*batch=*/1));
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
  SyncBnRankOptions options = {.pythons = {"/absent/python"}};
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

// A group that keeps the messages that pass through it, except barriers.
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

// A turn of SyncBN and a turn of its messages alone send the same messages,
// also if records are padded to 16 bytes.
TEST(SyncBnRankTest, SendsSyncBatchNormsMessagesAlone) {
  for (const int64_t channels : {1, 3, 7, 16, 65}) {
    const auto run = [&](Communicator& group) -> absl::Status {
      RecordingGroup recording(group);
      SyncBnRank rank(recording, SyncBnRankOptions());
      SyncBnRequest request = LayerRequest(SyncBnSubject::kSync);
      request.layer.c = channels;
      LOCKSTEP_RETURN_IF_ERROR(rank.Take(request).status());  // Its reference
                                                              // sends too.
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
                    LayerRequest(SyncBnSubject::kSync, DataType::kFloat16),
                    LayerRequest(SyncBnSubject::kTorch, DataType::kFloat32,
                                 Layout::kNchw16c)});
  EXPECT_THAT(turns[0].missing, HasSubstr("/absent/python: "));
  EXPECT_THAT(turns[1].missing, HasSubstr("float16"));
  EXPECT_EQ(turns[2].missing, "");
  EXPECT_EQ(turns[2].wrong, 0);
  EXPECT_THAT(turns[3].missing, HasSubstr("nchw16c"));
}

// Rank 0's PyTorch hangs, in the turn or before it; rank 1's is fast. Both
// ranks learn of it well before the deadline of a turn, and do not wait for
// PyTorch again.
TEST(SyncBnRankTest, GivesUpPyTorchThatHangs) {
  const std::string ready = "echo lockstep: ready 2.1.0 no; ";
  const std::string good = MakePython(absl::StrCat(
      ready, "while read line; do echo lockstep: timed 1 2 3 4; done"));
  for (const std::string& before : {ready, std::string()}) {
    const std::string hangs = MakePython(absl::StrCat(before, "sleep 1000"));
    const auto run = [&](Communicator& group) -> absl::Status {
      SyncBnRankOptions options = {
          .pythons = {group.rank() == 0 ? hangs : good},
          .timeout = absl::Seconds(group.rank() == 0 ? 1 : 100)};
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
                       "no launcher started this process: start it with "
                       "//collectives:launch, torchrun, mpirun or srun"));
}

// Programs that stand in for Python, and PyTorch itself, if there is one.

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

absl::StatusOr<TorchProcess> Start(const std::string& script) {
  const std::string pythons[] = {MakePython(script)};
  return TorchProcess::Start(pythons, SyncBnPeerTorch(), Later());
}

SyncBnRequest PeerRequest(int iterations) {
  return {.layer = {.n = 2, .h = 3, .w = 5, .c = 7, .seed = 11},
          .warmup = 1,
          .iterations = iterations};
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
  request.subject = SyncBnSubject::kTorchSync;
  EXPECT_EQ(PeerLine(request, "cuda 1 3 4 9 /a b"),
            "2 7 3 5 nchw bfloat16 11 1 3 sync cuda 1 3 4 9 /a b");
  request.subject = SyncBnSubject::kTorch;
  EXPECT_EQ(PeerLine(request, "cuda 1 3 4 9 /a b"),
            "2 7 3 5 nchw bfloat16 11 1 3 local cuda 1 3 4 9 /a b");
}

TEST(ParsePeerAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParsePeerAnswer(PeerRequest(1), "timed 0.5 1e-3"), IsOk());
  for (const char* answer :
       {"", "timed", "timed 1", "timed 1 2 3", "took 1 2", "timed 0 1",
        "timed nan 1", "timed inf 1", "timed -1 1", "timed 1 x"}) {
    EXPECT_THAT(
        ParsePeerAnswer(PeerRequest(1), answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("has an unknown form")))
        << answer;
  }
  // On GPUs the answer has laps.
  EXPECT_THAT(ParsePeerAnswer(PeerRequest(2), "timed 1 2", "cuda"), IsOk());
  EXPECT_FALSE(ParsePeerAnswer(PeerRequest(2), "timed 1 2 3", "cuda").ok());
  EXPECT_FALSE(ParsePeerAnswer(PeerRequest(1), "timed 1 2 3 4", "cuda").ok());
}

// Runs the script itself, if some Python has PyTorch.
TEST(SyncBnPeerTest, TimesPyTorch) {
  absl::StatusOr<TorchProcess> peer =
      TorchProcess::Start(PythonsToTry(""), SyncBnPeerTorch(), Later());
  if (!peer.ok()) GTEST_SKIP() << peer.status();
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    SyncBnRequest request = PeerRequest(3);
    request.layer.layout = layout;
    const absl::StatusOr<RankTurn> turn = TimePeer(*peer, request, Later());
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->missing, "");
    EXPECT_THAT(turn->forward, SizeIs(3));
  }
  const absl::StatusOr<RankTurn> on_gpu =
      TimePeer(*peer, PeerRequest(3), Later(), "cuda 0 0 1 2 /nowhere");
  ASSERT_THAT(on_gpu, IsOk());
  EXPECT_THAT(on_gpu->missing,
              AnyOf("", "RuntimeError: this PyTorch finds no GPU"));
}

// The script's part for GPUs, on a PyTorch whose GPU is the CPU and whose NCCL
// is Gloo. Rank 0 arrives a second late. SyncBatchNorm and the kernels of its
// one-rank form are right for maps of height 3. For other heights, the
// controls, they use statistics of the rank's own batch, or of one image.
constexpr char kFakeCuda[] = R"(
import time, torch
class Event:
    def __init__(self, enable_timing): pass
    def record(self): self.time = time.perf_counter()
    def elapsed_time(self, end): return 1e3 * (end.time - self.time)
torch.cuda.Event = Event
torch.cuda.is_available = lambda: True
torch.cuda.synchronize = lambda: None
torch.cuda.set_device = lambda device: None
torch.Tensor.cuda = lambda self: self.clone()
torch.nn.Module.cuda = lambda self: self
init = torch.distributed.init_process_group
def init_late(backend, file, rank, world_size):
    init("gloo", file, rank=rank, world_size=world_size)
    if rank == 0: time.sleep(1)
torch.distributed.init_process_group = init_late
def stats(x, eps):
    if x.shape[2] != 3: x = x[:1]
    return x.mean((0, 2, 3)), (x.var((0, 2, 3), False) + eps).rsqrt()
def wide(c):
    return c[:, None, None]
def reduce(dy, x, mean, scale, weight, *gradients):
    sums, products = dy.sum((0, 2, 3)), (dy * (x - wide(mean))).sum((0, 2, 3))
    return sums, products, products * scale, sums
def elemt(dy, x, mean, scale, weight, sums, products, count):
    return wide(scale * weight) * (dy - wide(sums / count) -
        (x - wide(mean)) * wide(scale ** 2 * products / count))
torch.batch_norm_stats = stats
torch.batch_norm_gather_stats_with_counts = (
    lambda x, mean, scale, *others: (mean[0], scale[0]))
torch.batch_norm_elemt = lambda x, weight, bias, mean, scale, eps: (
    (x - wide(mean)) * wide(scale * weight) + wide(bias))
torch.batch_norm_backward_reduce = reduce
torch.batch_norm_backward_elemt = elemt
class SyncBatchNorm(torch.nn.BatchNorm2d):
    def forward(self, x):
        if x.shape[2] != 3: return super().forward(x)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(2)]
        torch.distributed.all_gather(parts, x.detach())
        rank, n = torch.distributed.get_rank(), len(x)
        parts[rank] = x
        return super().forward(torch.cat(parts))[rank * n:rank * n + n]
torch.nn.SyncBatchNorm = SyncBatchNorm
)";

// A rank takes a second before its first call. This second is not in its time,
// even without a warm-up. PyTorch is refused if its ranks do not share one
// batch.
TEST(SyncBnPeerTest, TimesPyTorchOnSetsOfTensors) {
  const std::string script = absl::StrCat(kFakeCuda, SyncBnPeerTorch());
  std::vector<absl::StatusOr<TorchProcess>> peers;
  for (int rank = 0; rank < 2; ++rank) {
    peers.push_back(TorchProcess::Start(PythonsToTry(""), script, Later()));
    if (!peers[rank].ok()) GTEST_SKIP() << peers[rank].status();
  }
  const auto ask = [&](SyncBnSubject subject, int ranks, int64_t h) {
    SyncBnRequest request = PeerRequest(3);
    request.subject = subject;
    request.layer.h = h;
    request.warmup = 0;
    std::vector<absl::StatusOr<RankTurn>> turns(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        turns[rank] = TimePeer(
            *peers[rank], request, Later(),
            absl::StrCat("cuda 0 ", rank, " ", ranks, " 2 ", TestPath("")));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return turns;
  };
  for (const auto& [subject, ranks] : {std::pair(SyncBnSubject::kTorch, 2),
                                       {SyncBnSubject::kTorchSync, 2},
                                       {SyncBnSubject::kTorchSync, 1}}) {
    SCOPED_TRACE(ranks);
    for (const absl::StatusOr<RankTurn>& turn : ask(subject, ranks, 3)) {
      ASSERT_THAT(turn, IsOk());
      EXPECT_EQ(turn->missing, "");
      ASSERT_THAT(turn->forward, SizeIs(2));  // Laps of two sets.
      EXPECT_THAT(turn->backward, SizeIs(2));
      EXPECT_LT(turn->forward[0].end, 0.3);
    }
    if (subject == SyncBnSubject::kTorch) continue;
    for (const absl::StatusOr<RankTurn>& turn : ask(subject, ranks, 4)) {
      ASSERT_THAT(turn, IsOk());
      EXPECT_EQ(turn->missing, "ArithmeticError: its y is wrong");
    }
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
