// Tests steps of networks, turns of every kind, and PyTorch's turns. Then tests
// the commands as users run them: syncbn on small batches, the experiment on
// few images.
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/rank_suite.h"
#include "benchmarks/syncbn/report.h"
#include "benchmarks/syncbn/torch_peer_py.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/idx_files.h"
#include "nlohmann/json.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

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
        StatusIs(absl::StatusCode::kInternal, HasSubstr("is not understood")))
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
      EXPECT_EQ(turn->missing,
                "ArithmeticError: its y is not what it should give");
    }
  }
}

// The command.

CommandOutcome RunSyncBn(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/syncbn ", flags),
                    /*deadline_seconds=*/120);
}

constexpr char kSmall[] =
    " --shapes=resnet18_d2l --network=none --per_rank_batch=1 --rounds=1";

// Returns the report of a run with `flags`, and expects that the run succeeds.
nlohmann::json Report(const std::string& flags) {
  const std::string folder = TestPath("");
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", folder));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    const bool free_text = absl::StrContains(line, testing::TempDir()) ||
                           absl::StrContains(line, "benchmarks/syncbn/syncbn ");
    if (!free_text) ExpectNarrow(line);
  }
  EXPECT_THAT(
      ReadFile(folder + "/syncbn.html"),
      IsOkAndHolds(AllOf(StartsWith("<!DOCTYPE html>"),
                         HasSubstr("<h1>Lockstep SyncBN report</h1>"))));
  return ReadJson(folder + "/syncbn.json");
}

void ExpectLayers(const nlohmann::json& json) {
  ASSERT_EQ(json["layers"].size(), 4u);
  for (const auto& layer : json["layers"]) {
    EXPECT_EQ(layer["wrong"], 0);
    for (const char* pass : {"forward", "backward", "both"}) {
      EXPECT_GT(layer["passes"][pass]["sync"]["median"], 0);
      EXPECT_GT(layer["passes"][pass]["own_local"]["median"], 0);
      EXPECT_GT(layer["passes"][pass]["message"], 0);
      EXPECT_GT(layer["passes"][pass]["split"]["kernels"], 0);
    }
    for (const auto& kernel : layer["kernels"]) EXPECT_GT(kernel["seconds"], 0);
    EXPECT_GT(layer["copy_bandwidth"], 0);
  }
}

TEST(SyncBnCommandTest, MeasuresLayersOnProcessesAndThreads) {
  for (const std::string backend : {"processes", "threads"}) {
    const nlohmann::json json =
        Report(absl::StrCat("--peers= --backend=", backend, kSmall));
    ExpectLayers(json);
    EXPECT_EQ(json["settings"]["backend"], backend);
    EXPECT_TRUE(json["layers"][0]["passes"]["both"]["beyond"].is_number());
    if (json["machine"]["cores"] >= 2) {
      EXPECT_EQ(json["bars"].size(), 4u);
      EXPECT_FALSE(json.contains("no_bar"));
    } else {
      EXPECT_THAT(json["no_bar"].dump(), HasSubstr("a core each"));
    }
    EXPECT_TRUE(json["network"].is_null());
  }
}

TEST(SyncBnCommandTest, TakesEveryTypeAndLayout) {
  for (const char* flags :
       {"--dtype=float16 --layout=nchw", "--dtype=bfloat16 --layout=nhwc",
        "--layout=nchw16c"}) {
    const nlohmann::json json =
        Report(absl::StrCat(flags, " --peers= --world_size=3", kSmall));
    ExpectLayers(json);
    EXPECT_FALSE(json.contains("bars"));
    EXPECT_EQ(json["no_bar"], "it is for 2 ranks");
  }
}

// On a machine with a GPU the command measures; otherwise it says why not.
TEST(SyncBnCommandTest, MeasuresOnGpusOrSaysThatThereAreNone) {
  const std::string flags = absl::StrCat("--backend=nccl", kSmall);
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", TestPath("")));
  if (outcome.exit_status == 0) {
    const nlohmann::json json = Report(flags);
    ExpectLayers(json);
    EXPECT_TRUE(json["gpu"].is_string());
    EXPECT_THAT(json["not_available"].dump(), HasSubstr("PyTorch: "));
    return;
  }
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output, AnyOf(StartsWith("syncbn: no GPU: "),
                                    StartsWith("syncbn: this program was "
                                               "built without CUDA")));
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1);
}

TEST(SyncBnCommandTest, TrainsTheNetwork) {
  const nlohmann::json json = Report(
      "--shapes= --network=resnet18_d2l --per_rank_batch=1 --rounds=1 "
      "--peers=");
  EXPECT_TRUE(json["layers"].empty());
  EXPECT_EQ(json["network"]["model"], "resnet18_d2l");
  EXPECT_EQ(json["network"]["image"].dump(), "[1,28,28]");
  EXPECT_EQ(json["network"]["messages"], 34);
  EXPECT_EQ(json["network"]["wrong"], 0);
  EXPECT_GT(json["network"]["sync"]["median"], 0);
  EXPECT_GT(json["network"]["ratio"]["median"], 0);
  // The bar is for 16 images.
  EXPECT_FALSE(json.contains("bars"));
}

TEST(SyncBnCommandTest, HoldsTheNetworksStepAgainstItsBar) {
  const nlohmann::json json =
      Report("--shapes= --network=resnet18_d2l --rounds=1 --peers=");
  if (json["machine"]["cores"] < 2) {
    EXPECT_THAT(json["no_bar"].dump(), HasSubstr("a core each"));
    return;
  }
  ASSERT_EQ(json["bars"].size(), 1u);
  const double ratio = json["network"]["ratio"]["median"];
  EXPECT_DOUBLE_EQ(json["bars"][0]["value"], 100 * (ratio - 1));
  EXPECT_EQ(json["bars"][0]["at_most"], 2);
}

// The number of messages shows the number of batch norms in the processes of
// the ranks, which get the network's flags.
TEST(SyncBnCommandTest, TrainsAnyNetworkWithBatchNormOnAnyImages) {
  constexpr char kOnce[] = " --shapes= --peers= --rounds=1 --per_rank_batch=2";
  const auto expect = [](const nlohmann::json& json, const char* model,
                         const char* image, int classes, int messages) {
    const nlohmann::json& network = json["network"];
    EXPECT_EQ(network["model"], model);
    EXPECT_EQ(network["image"].dump(), image);
    EXPECT_EQ(network["classes"], classes);
    EXPECT_EQ(network["messages"], messages);
    EXPECT_EQ(network["per_rank_batch"], 2);
    EXPECT_EQ(network["wrong"], 0);
    EXPECT_GT(network["sync"]["median"], 0);
    EXPECT_FALSE(json.contains("bars"));
  };
  expect(
      Report(absl::StrCat("--network=lenet_bn --image_size=20 --in_channels=3 "
                          "--num_classes=7",
                          kOnce)),
      "lenet_bn", "[3,20,20]", 7, 4);
  expect(Report(absl::StrCat(
             "--network=resnet50:width=8 --image_size=33x40 --backend=threads",
             kOnce)),
         "resnet50:width=8", "[3,33,40]", 10, 106);
}

// The rank does not get the memory for the detection set's shapes.
TEST(SyncBnCommandTest, ReportsWhatWasMeasuredBeforeAnError) {
  const std::string folder = TestPath("");
  const CommandOutcome outcome = RunCommand(
      absl::StrCat(
          "sh -c 'ulimit -v 600000; benchmarks/syncbn/syncbn "
          "--shapes=resnet18_d2l,detection --network=none --world_size=1 "
          "--per_rank_batch=2 --rounds=1 --peers= --output_dir=",
          folder, "'"),
      /*deadline_seconds=*/120);
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nnot measured: the rest: "));
  EXPECT_EQ(ReadJson(folder + "/syncbn.json")["layers"].size(), 4u);
}

// The command measures PyTorch if there is one; otherwise it says why not.
TEST(SyncBnCommandTest, ComparesWithPyTorch) {
  const nlohmann::json json = Report(kSmall);
  if (json["peer"].is_null()) {
    EXPECT_THAT(json["not_available"].dump(), HasSubstr("PyTorch: "));
  } else {
    EXPECT_GT(json["layers"][0]["passes"]["both"]["torch"]["median"], 0);
  }
  const nlohmann::json without =
      Report(absl::StrCat("--python=/absent/python", kSmall));
  EXPECT_THAT(without["not_available"].dump(), HasSubstr("/absent/python"));
  const std::string hangs = MakePython("sleep 1000");
  const nlohmann::json late = Report(
      absl::StrCat("--timeout=6 --world_size=1 --python=", hangs, kSmall));
  ExpectLayers(late);
  ASSERT_EQ(late["not_available"].size(), 1u);
  EXPECT_THAT(late["not_available"][0].get<std::string>(),
              AllOf(StartsWith("PyTorch: "), HasSubstr(hangs),
                    HasSubstr("it did not answer in time")));
}

TEST(SyncBnCommandTest, RefusesToBeARank) {
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  const CommandOutcome outcome = RunSyncBn(kSmall);
  ASSERT_EQ(unsetenv("RANK"), 0);
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output, StartsWith("syncbn: it starts its ranks itself"));
}

// Every wrong flag gives exit status 2 and one line, which names the flag.
TEST(SyncBnCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--shapes=resnet18_d2l,vgg",
       "--shapes: 'vgg' is not one of resnet18_d2l, resnet50, mobilenet, "
       "detection"},
      {"--network=lenet", "--network=lenet: has no batch norm; networks with "},
      {"--network=vit", "--network=vit: has no batch norm"},
      {"--network=vgg", "--network=vgg: no such model; there are lenet, "},
      {"--network=", "--network=: must be a network, or none"},
      {"--network=resnet18:depth=2", "--network=resnet18:depth=2: "},
      {"--network=lenet_bn --image_size=5", "--network=lenet_bn: "},
      {"--image_size=12x", "--image_size=12x: '12x' must be 0, a size"},
      {"--in_channels=-1", "--in_channels: -1"},
      {"--num_classes=-1", "--num_classes: -1"},
      {"--shapes= --network=none", "--shapes: empty"},
      {"--world_size=0", "--world_size: 0"},
      {"--nproc=0", "--world_size: 0"},
      {"--world_size=65", "--world_size: 65"},
      {"--world_size=two", "--world_size=two"},
      {"--backend=mpi",
       "--backend: 'mpi' is not one of processes, threads, nccl"},
      {"--per_rank_batch=-1", "--per_rank_batch: -1"},
      {"--per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28x"},
      {"--shapes= --per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28, to train resnet18_d2l"},
      {"--layout=chwn", "--layout: 'chwn' is not one of nhwc, nchw, nchw16c"},
      {"--layout=nchw16c --backend=nccl", "--layout: nchw16c is for the CPU"},
      // The layers support it, but the check could not tell right from wrong.
      {"--dtype=float64", "--dtype: 'float64'"},
      {"--peers=apex", "--peers: 'apex'"},
      {"--rounds=-1", "--rounds: -1"},
      {"--seconds=0", "--seconds: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--timeout=0", "--timeout: 0"},
      {"--timeout=1e7", "--timeout: 1e+07 is not above 0 and below 1e+06"},
      {"--seed=-1", "--seed"},
      {"--output_dir=/dev/null/out", "--output_dir: cannot write to /dev/null"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunSyncBn(flags), "syncbn", flags, expected);
  }
}

TEST(SyncBnCommandTest, ExplainsItsFlagsAndColumns) {
  const CommandOutcome outcome = RunSyncBn("--help");
  ExpectUsage(outcome, "syncbn", /*columns=*/100);
  EXPECT_THAT(outcome.output, HasSubstr("beyond: (SyncBN - message) /"));
}

// The experiment.

CommandOutcome RunExperiment(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/experiment ", flags),
                    /*deadline_seconds=*/240);
}

TEST(SyncbnExperimentTest, TrainsThreeTimesAndDrawsTheCurves) {
  const std::string data = TestPath("-data");
  const std::string output = TestPath("-output");
  std::filesystem::create_directories(data);
  WriteIdxFiles(data, /*train=*/24, /*test=*/10);
  const CommandOutcome outcome = RunExperiment(
      absl::StrCat("--data_dir=", data, " --output_dir=", output,
                   " --train_samples=20 --test_samples=9 --epochs=2"));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("== 1 rank =="),
                    HasSubstr("== 2 ranks, local batch norm =="),
                    HasSubstr("== 2 ranks, SyncBN =="),
                    HasSubstr("Mean distance of the train loss"),
                    HasSubstr("What SyncBN costs: an epoch takes "),
                    HasSubstr(absl::StrCat("Wrote ", output))));
  EXPECT_THAT(ReadFile(output + "/experiment.png"),
              IsOkAndHolds(StartsWith("\x89PNG")));
  const nlohmann::json json = ReadJson(output + "/experiment.json");
  ASSERT_EQ(json["runs"].size(), 3u);
  const int world_sizes[] = {1, 2, 2};
  const bool sync_bn[] = {false, false, true};
  for (int i = 0; i < 3; ++i) {
    const auto& metrics = json["runs"][i]["metrics"];
    EXPECT_EQ(metrics["world_size"], world_sizes[i]);
    EXPECT_EQ(metrics["sync_bn"], sync_bn[i]);
    EXPECT_EQ(metrics["batch_size"], 2 * world_sizes[i]);
    EXPECT_DOUBLE_EQ(metrics["lr"].get<double>(), 0.0025 * world_sizes[i]);
    EXPECT_EQ(metrics["threads_per_rank"], 1);
    ASSERT_EQ(metrics["epochs"].size(), 2u);
    EXPECT_EQ(metrics["epochs"][1]["train_samples"], 20);
    EXPECT_EQ(metrics["epochs"][1]["test_samples"], 9);
  }
  const auto loss = [&](int run) {
    return json["runs"][run]["metrics"]["epochs"][0]["train_loss"];
  };
  EXPECT_NE(loss(1), loss(2));  // If equal, --sync_bn did nothing.
}

TEST(SyncbnExperimentTest, NamesTheRunThatFails) {
  const CommandOutcome outcome = RunExperiment(absl::StrCat(
      "--data_dir=/nowhere --output_dir=", testing::TempDir(), "/failed"));
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("/nowhere"),
                    HasSubstr("syncbn_experiment: the run 'single' failed")));
}

TEST(SyncbnExperimentTest, NamesTheFlagThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"--epochs=0", "--epochs: 0: must be at least 1"},
      {"--ranks=1", "--ranks: 1: must be at least 2"},
      {"--per_rank_batch=x", "--per_rank_batch: invalid number value: 'x'"},
      {"--lr=-1", "--lr: -1: must be a positive number"},
      {"--output_dir=/dev/null/x", "--output_dir=/dev/null/x"},
      {"--unknown", "unrecognized arguments: --unknown"},
  };
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunExperiment(flags), "syncbn_experiment", flags,
                     expected);
  }
}

TEST(SyncbnExperimentTest, ExplainsItself) {
  const CommandOutcome outcome = RunExperiment("--help");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("--per_rank_batch"), HasSubstr("default: 2"),
                    HasSubstr("Exit status")));
}

}  // namespace
}  // namespace lockstep::benchmarks
