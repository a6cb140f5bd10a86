// Flags, sizes and what follows from them; commands of teams; the order of
// turns; one turn; and patterns whose exact result is known.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/exact_pattern.h"
#include "benchmarks/all_reduce/nccl_log.h"
#include "benchmarks/all_reduce/report.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(ParseTest, ReadsLists) {
  EXPECT_THAT(ParseBackends("threads,mpi"),
              IsOkAndHolds(ElementsAre(TeamKind::kThreads, TeamKind::kMpi)));
  EXPECT_THAT(ParseBackends("processes,processes"),
              IsOkAndHolds(ElementsAre(TeamKind::kProcesses)));
  EXPECT_THAT(ParsePeers(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParsePeers("gloo,mpi"),
              IsOkAndHolds(ElementsAre(TeamKind::kGloo, TeamKind::kOpenMpi)));
  EXPECT_THAT(ParseAlgorithms("ring,auto"),
              IsOkAndHolds(ElementsAre(Algorithm::kRing, Algorithm::kAuto)));
  EXPECT_THAT(ParseBuffers("group"),
              IsOkAndHolds(ElementsAre(BufferKind::kGroup)));
  EXPECT_THAT(
      ParseCollectives("broadcast,all_reduce"),
      IsOkAndHolds(ElementsAre(Operation::kBroadcast, Operation::kAllReduce)));
  EXPECT_THAT(ParseType("uint8"), IsOkAndHolds(DataType::kUInt8));
  EXPECT_THAT(ParseOperation("avg"), IsOkAndHolds(ReduceOp::kAverage));
}

TEST(ParseBytesTest, ReadsUnitsAndNothingElse) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},       {"8", 8},          {"8B", 8},
      {"4k", 4096},   {"4K", 4096},      {"4KB", 4096},
      {"4KiB", 4096}, {"64M", 64 << 20}, {"1GiB", 1 << 30}};
  for (const auto& [text, bytes] : cases) {
    EXPECT_THAT(ParseBytes("--x", text), IsOkAndHolds(bytes)) << text;
  }
  for (const char* text : {"", "K", "-1", "1.5M", "4 K", "4iB", "4T", "0x10",
                           "99999999999999999999", "9999999999G"}) {
    EXPECT_THAT(ParseBytes("--max_bytes", text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("--max_bytes: '")))
        << text;
  }
}

TEST(MessageSizesTest, MultipliesUpToTheMaximumAndNamesTheFlag) {
  EXPECT_THAT(MessageSizes(8, 64, 2, 4),
              IsOkAndHolds(ElementsAre(8, 16, 32, 64)));
  EXPECT_THAT(MessageSizes(8, 63, 2, 4), IsOkAndHolds(ElementsAre(8, 16, 32)));
  EXPECT_THAT(MessageSizes(4096, 4096, 2, 4), IsOkAndHolds(ElementsAre(4096)));
  EXPECT_THAT(MessageSizes(8, 512, 8, 8),
              IsOkAndHolds(ElementsAre(8, 64, 512)));
  // Cut to whole elements.
  EXPECT_THAT(MessageSizes(9, 20, 2, 4), IsOkAndHolds(ElementsAre(8, 16)));
  const auto error = [](const char* flag) {
    return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(flag));
  };
  EXPECT_THAT(MessageSizes(3, 64, 2, 4), error("--min_bytes: 3"));
  EXPECT_THAT(MessageSizes(8, 7, 2, 4), error("--max_bytes: 7"));
  EXPECT_THAT(MessageSizes(8, int64_t{1} << 41, 2, 4), error("--max_bytes: "));
  EXPECT_THAT(MessageSizes(8, 64, 1, 4), error("--factor: 1"));
}

TEST(SubjectsTest, AreEveryBackendWithEveryAlgorithmAndMemoryThenThePeers) {
  AllReduceSettings settings;
  settings.backends = {TeamKind::kThreads, TeamKind::kProcesses};
  settings.algorithms = {Algorithm::kAuto, Algorithm::kRing};
  settings.peers = {TeamKind::kGloo};
  std::vector<std::string> names;
  for (const Subject& subject : SubjectsOf(settings)) {
    names.push_back(Name(subject));
  }
  EXPECT_THAT(names,
              ElementsAre("threads auto ordinary", "threads auto group",
                          "threads ring ordinary", "threads ring group",
                          "processes auto ordinary", "processes auto group",
                          "processes ring ordinary", "processes ring group",
                          "Gloo", "copy"));
  EXPECT_EQ(TeamsOf(settings).size(), 6u);
}

TEST(SubjectsTest, OnGpusHaveNcclTwiceAndNoCopy) {
  AllReduceSettings settings = {.backends = {TeamKind::kNccl},
                                .buffers = {BufferKind::kGroup},
                                .peers = {TeamKind::kPlainNccl}};
  std::vector<std::string> names;
  for (const Subject& subject : SubjectsOf(settings)) {
    names.push_back(Name(subject));
  }
  EXPECT_THAT(names, ElementsAre("nccl auto group", "NCCL", "NCCL_ALGO=Ring"));
  EXPECT_TRUE(OnGpu(settings));
}

TEST(SizesOfTest, HaveAsManyElementsForEachRank) {
  const AllReduceSettings settings = {.world_size = 3, .sizes = {8, 16, 100}};
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kBroadcast}) {
    EXPECT_THAT(SizesOf(settings, operation), ElementsAre(8, 16, 100));
  }
  for (const Operation operation :
       {Operation::kReduceScatter, Operation::kAllGather,
        Operation::kAllToAll}) {
    EXPECT_THAT(SizesOf(settings, operation), ElementsAre(12, 96));
  }
}

TEST(InPlaceTest, IsWhatTheCollectiveAllows) {
  for (const bool asked : {false, true}) {
    const AllReduceSettings settings = {.in_place = asked};
    const auto in_place = [&](Operation operation, TeamKind kind) {
      return InPlace(settings, operation, kind);
    };
    EXPECT_EQ(in_place(Operation::kAllReduce, TeamKind::kOpenMpi), asked);
    EXPECT_EQ(in_place(Operation::kAllGather, TeamKind::kNccl), asked);
    EXPECT_EQ(in_place(Operation::kReduceScatter, TeamKind::kGloo), asked);
    EXPECT_FALSE(in_place(Operation::kReduceScatter, TeamKind::kOpenMpi));
    EXPECT_TRUE(in_place(Operation::kBroadcast, TeamKind::kThreads));
    EXPECT_FALSE(in_place(Operation::kAllToAll, TeamKind::kThreads));
  }
}

TEST(IterationsTest, ShrinkWithTheMessageAsTheWarmUpDoes) {
  AllReduceSettings settings;
  EXPECT_EQ(TimedIterations(settings, 8), 400);
  EXPECT_EQ(TimedIterations(settings, 4 << 10), 128);
  EXPECT_EQ(TimedIterations(settings, 512 << 10), 1);
  EXPECT_EQ(TimedIterations(settings, 1 << 30), 1);
  const AllReduceSettings gpu = {.backends = {TeamKind::kNccl}};
  EXPECT_EQ(TimedIterations(gpu, 8), 20);
  EXPECT_EQ(TimedIterations(gpu, 64 << 20), 4);
  EXPECT_EQ(TimedIterations(gpu, 1 << 30), 1);
  EXPECT_EQ(WarmupIterations(gpu, 8, 5), 3 * 21);
  EXPECT_EQ(WarmupIterations(gpu, 1 << 30, 5), 3 * 2);
  settings.iterations = 7;
  EXPECT_EQ(TimedIterations(settings, 1 << 30), 7);
  EXPECT_EQ(WarmupIterations(settings, 8, 0), 5);
  EXPECT_EQ(WarmupIterations(settings, 8, 9), 5);
  EXPECT_EQ(WarmupIterations(settings, 4 << 20, 0), 1);
  EXPECT_EQ(WarmupIterations(settings, 4 << 20, 1), 0);
  settings.warmup = 2;
  EXPECT_EQ(WarmupIterations(settings, 4 << 20, 1), 2);
  settings.warmup = 0;
  EXPECT_EQ(WarmupIterations(settings, 8, 0), 0);
}

TEST(MemoryNeededTest, CountsEveryTeamsBuffers) {
  constexpr int64_t kMessage = 1 << 20;
  AllReduceSettings settings;
  // Ordinary, group, copy; of two ranks.
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 3 * 2 * kMessage);
  settings.peers = {TeamKind::kOpenMpi};
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 5 * 2 * kMessage);
  settings.in_place = false;
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 9 * 2 * kMessage);
  // Twenty calls and one more, of both kinds of buffers.
  const AllReduceSettings gpu = {.backends = {TeamKind::kNccl}};
  EXPECT_EQ(MemoryNeeded(gpu, kMessage), 2 * 21 * 2 * kMessage);
}

// The commands that start teams.

TeamSetting Setting() {
  return {.folder = "/bin/there", .store = "/store", .cores = 2, .timeout = {}};
}

TeamCommand Command(const Team& team, int world_size) {
  return CommandOf(Setting(), team, world_size, "name");
}

// The command, the processes that are launched, and the ranks that connect.
TEST(CommandOfTest, StartsTheRanksOfEveryKind) {
  struct Case {
    Team team;
    std::vector<std::string> argv;
    int nproc, world_size;
  };
  const auto own = [](const char* kind, const char* algorithm) {
    return std::vector<std::string>{"/bin/there/allreduce", "--worker=name",
                                    std::string("--worker_kind=") + kind,
                                    std::string("--algorithm=") + algorithm,
                                    "--world_size=3"};
  };
  const auto mpirun = [](std::vector<std::string> command) {
    const char* const before[] = {"mpirun", "--oversubscribe", "-np", "3"};
    command.insert(command.begin(), std::begin(before), std::end(before));
    return command;
  };
  const Case cases[] = {
      {{TeamKind::kProcesses, Algorithm::kRing},
       own("processes", "ring"),
       3,
       3},
      {{TeamKind::kThreads}, own("threads", "auto"), 1, 3},
      {{TeamKind::kCopy}, own("copy", "auto"), 1, 1},
      {{TeamKind::kOpenMpi},
       mpirun({"/bin/there/allreduce_peer_mpi", "name"}),
       1,
       3},
      {{TeamKind::kMpi},
       mpirun({"/bin/there/allreduce_rank_mpi", "name", "auto"}),
       1,
       3},
      {{TeamKind::kGloo},
       {"/bin/there/allreduce_peer_gloo", "name", "/store"},
       3,
       3},
      {{TeamKind::kNccl, Algorithm::kDirect},
       {"/bin/there/allreduce_rank_nccl", "name", "nccl", "direct"},
       3,
       3},
      {{TeamKind::kPlainNccl, Algorithm::kRing},
       {"/bin/there/allreduce_rank_nccl", "name", "NCCL", "ring"},
       3,
       3}};
  for (const Case& c : cases) {
    TeamCommand command = Command(c.team, 3);
    std::erase(command.argv, "--allow-run-as-root");  // If we are root.
    EXPECT_EQ(command.argv, c.argv);
    EXPECT_EQ(command.nproc, c.nproc) << Name(c.team.kind);
    EXPECT_EQ(command.world_size, c.world_size) << Name(c.team.kind);
  }
}

TEST(CommandOfTest, AsksMpiToYieldWhereRanksShareCores) {
  const std::pair<std::string, std::string> yields = {
      "OMPI_MCA_mpi_yield_when_idle", "1"};
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 2).environment,
              Not(Contains(yields)));
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 3).environment, Contains(yields));
}

TEST(CommandOfTest, SetsNcclsAlgorithmForOnePeerAlone) {
  const std::pair<std::string, std::string> ring = {"NCCL_ALGO", "Ring"};
  EXPECT_THAT(Command({TeamKind::kPlainNccl, Algorithm::kRing}, 2).environment,
              ElementsAre(ring));
  EXPECT_THAT(Command({TeamKind::kPlainNccl}, 2).environment, IsEmpty());
  EXPECT_THAT(Command({TeamKind::kNccl, Algorithm::kRing}, 2).environment,
              IsEmpty());
}

TEST(CommandOfTest, KeepsTheFilesOfMpiTogether) {
  TeamSetting setting = Setting();
  for (const auto& [folder, temporary] :
       {std::pair<std::string, std::string>("/memory/x", "/memory/x"),
        {"/memory/" + std::string(100, 'x'), "/tmp"}}) {
    setting.mpi_folder = folder;
    EXPECT_THAT(CommandOf(setting, {TeamKind::kOpenMpi}, 2, "name").environment,
                AllOf(Contains(std::pair<std::string, std::string>(
                          "OMPI_MCA_btl_vader_backing_directory", folder)),
                      Contains(std::pair<std::string, std::string>(
                          "TMPDIR", temporary))));
  }
}

// Teams on GPUs, whose ranks are nccl_rank_fake: what they log before they are
// timed, and that they log nothing then.
TEST(AllReduceTeamsTest, ReadsTheLogOfTeamsOnGpusBeforeTheyAreTimed) {
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("programs");
  ASSERT_THAT(folder, IsOk());
  std::filesystem::create_symlink(
      std::filesystem::absolute("benchmarks/all_reduce/nccl_rank_fake"),
      folder->path() + "/allreduce_rank_nccl");
  const AllReduceSettings settings = {
      .backends = {TeamKind::kNccl},
      .buffers = {BufferKind::kGroup},
      .peers = {TeamKind::kPlainNccl},
      .collectives = {Operation::kAllReduce, Operation::kAllGather},
      .sizes = {512, 4096}};
  std::vector<MissingPeer> missing;
  const absl::StatusOr<std::unique_ptr<AllReduceTeams>> teams =
      AllReduceTeams::Start(settings,
                            {.folder = folder->path(),
                             .store = folder->path(),
                             .timeout = absl::Seconds(60)},
                            missing);
  ASSERT_THAT(teams, IsOk());
  EXPECT_THAT(missing, IsEmpty());
  const std::vector<NcclProbe>& probes = (*teams)->probes();
  ASSERT_THAT(probes, SizeIs(3));
  const NcclChoice unknown;
  for (const NcclProbe& probe : probes) {
    const bool ring = probe.team.algorithm == Algorithm::kRing;
    SCOPED_TRACE(Name(probe.team));
    EXPECT_EQ(probe.facts.version, "2.99.0+cuda13.0");
    EXPECT_THAT(probe.facts.transports, ElementsAre("P2P/CUMEM"));
    EXPECT_EQ(probe.facts.environment.at("NCCL_ALGO"), ring ? "Ring" : "");
    EXPECT_EQ(probe.gpu, "fakeINFO");
    EXPECT_TRUE(probe.shared_gpu);
    std::vector<NcclChoice> choices;
    for (const NcclProbe::Call& call : probe.calls) {
      choices.push_back(call.choice);
    }
    if (!IsPeer(probe.team.kind)) {
      EXPECT_THAT(choices, ElementsAre(unknown, unknown, unknown, unknown));
      continue;
    }
    const std::string algorithm = ring ? "RING" : "TREE";
    const NcclChoice low = {algorithm, "LL", "2"};
    const NcclChoice simple = {algorithm, "SIMPLE", "2"};
    EXPECT_THAT(choices, ElementsAre(low, simple, low, simple));
    const TurnRequest request = RequestOf(settings, Operation::kAllReduce, 4096,
                                          {probe.team, BufferKind::kOrdinary});
    const absl::StatusOr<AllReduceTurn> turn =
        (*teams)->TakeTurn(probe.team, request);
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->gpu, "fake");
    EXPECT_EQ(turn->calls.wrong, 0);
  }
  EXPECT_THAT((*teams)->Stop(), IsOk());
}

// The order of turns, with teams and a clock that are made up.

AllReduceSettings Settings() {
  return {.buffers = {BufferKind::kGroup},
          .peers = {TeamKind::kOpenMpi},
          .sizes = {1 << 20, 1 << 21},
          .rounds = 3};
}

class MeasureSizeTest : public testing::Test {
 protected:
  absl::StatusOr<AllReduceSize> Measure(const AllReduceSettings& settings) {
    subjects_ = SubjectsOf(settings);
    return MeasureSize(
        settings, Operation::kAllReduce, 1 << 20,
        [this](const Team& team,
               const TurnRequest& request) -> absl::StatusOr<AllReduceTurn> {
          turns_.push_back(Name(team.kind));
          requests_.push_back(request);
          if (team.kind == failing_) return absl::AbortedError("it broke");
          now_ += 1;
          AllReduceTurn turn;
          if (team.kind == lacking_) turn.missing = "it has none";
          turn.calls = {{0.5}, 1};
          return turn;
        },
        [this] { return now_; }, subjects_, missing_);
  }

  TeamKind failing_ = TeamKind::kThreads;  // Which nobody here is.
  TeamKind lacking_ = TeamKind::kThreads;
  double now_ = 100;
  std::vector<std::string> turns_;
  std::vector<TurnRequest> requests_;
  std::vector<Subject> subjects_;
  std::vector<MissingPeer> missing_;
};

TEST_F(MeasureSizeTest, GivesEachATurnInEveryRound) {
  AllReduceSettings settings = Settings();
  settings.iterations = 10;
  const absl::StatusOr<AllReduceSize> measured = Measure(settings);
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("processes", "Open MPI", "copy",  //
                                  "Open MPI", "processes", "copy",  //
                                  "Open MPI", "copy", "processes"));
  EXPECT_EQ(measured->rounds, 3);
  ASSERT_THAT(measured->rows, SizeIs(3));
  for (const AllReduceRow& subject : measured->rows) {
    EXPECT_THAT(subject.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(subject.wrong, 3);
  }
  // Every round has inputs of its own.
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(requests_[i].first, static_cast<int64_t>(i / 3 * 10));
    EXPECT_EQ(requests_[i].iterations, 10);
    EXPECT_EQ(requests_[i].count, 1 << 18);
    EXPECT_EQ(requests_[i].in_place, 1);
  }
}

TEST_F(MeasureSizeTest, StopsWhenTheSizesPartOfTheTimeIsOver) {
  AllReduceSettings settings = Settings();
  settings.rounds = 0;
  settings.seconds = 24;  // 12 for this size; a round takes 3.
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(4 * 3));
  turns_.clear();
  settings.seconds = 0.1;  // At least three, however long they take.
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(3 * 3));
}

TEST_F(MeasureSizeTest, GoesOnWithoutAPeerThatFails) {
  failing_ = TeamKind::kOpenMpi;
  const absl::StatusOr<AllReduceSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(measured->rows, SizeIs(2));
  EXPECT_THAT(subjects_, SizeIs(2));
  ASSERT_THAT(missing_, SizeIs(1));
  EXPECT_EQ(missing_[0].peer.kind, TeamKind::kOpenMpi);
  EXPECT_EQ(missing_[0].why, "it broke");
}

TEST_F(MeasureSizeTest, GoesOnWithoutAPeerThatLacksIt) {
  lacking_ = TeamKind::kOpenMpi;
  const absl::StatusOr<AllReduceSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(measured->rows, SizeIs(2));
  ASSERT_THAT(missing_, SizeIs(1));
  EXPECT_EQ(missing_[0].why, "it has none");
}

TEST_F(MeasureSizeTest, FailsWithOneOfOurs) {
  failing_ = TeamKind::kProcesses;
  EXPECT_THAT(Measure(Settings()), StatusIs(absl::StatusCode::kAborted,
                                            "processes auto group: it broke"));
  failing_ = TeamKind::kThreads;
  lacking_ = TeamKind::kProcesses;
  EXPECT_THAT(Measure(Settings()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("none")));
  EXPECT_THAT(missing_, IsEmpty());
}

TEST(CombineTurnsTest, TakesTheSlowestRank) {
  std::vector<AllReduceTurn> ranks(2);
  ranks[0].calls = {{0.5, 1}, 2};
  ranks[1].calls = {{1, 0.5}, 3};
  ranks[0].host_seconds = 0.25;
  ranks[1].host_seconds = 0.5;
  ranks[0].gpu = "H100";
  const absl::StatusOr<AllReduceTurn> all = CombineTurns(ranks);
  ASSERT_THAT(all, IsOk());
  EXPECT_THAT(all->calls.seconds, ElementsAre(1, 1));
  EXPECT_EQ(all->calls.wrong, 5);
  EXPECT_EQ(all->host_seconds, 0.5);
  EXPECT_EQ(all->gpu, "H100");
  ranks[1].calls.seconds.pop_back();
  EXPECT_THAT(CombineTurns(ranks),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
}

// A turn of one rank.

// Rank 0 of two. What the other rank gives is known: the exact pattern of the
// same iteration, so the sum can be made here.
class TwoRanks : public FakeCommunicator {
 public:
  // Spoils the output of call `call`, given what the right output is.
  using Bug = std::function<void(int call, Buffer output)>;

  TwoRanks(const TurnRequest& request, Bug bug = nullptr)
      : request_(request), bug_(std::move(bug)) {}

  int world_size() const override { return 2; }

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) return absl::OkStatus();
    const ConstBuffer& input = call.input;
    const int timed = calls_ - request_.warmup;
    const int64_t iteration =
        request_.first + (timed < 0 ? calls_ % request_.iterations : timed);
    std::vector<int32_t> other(static_cast<size_t>(input.count));
    ExactPattern pattern = *ExactPattern::Create(request_.type, request_.op,
                                                 /*rank=*/1, /*world_size=*/2);
    pattern.Fill(iteration, std::span<int32_t>(other));
    const auto* const mine = static_cast<const int32_t*>(input.data);
    auto* const sum = static_cast<int32_t*>(call.output.data);
    for (size_t i = 0; i < other.size(); ++i) sum[i] = mine[i] + other[i];
    if (bug_ && timed >= 0) bug_(timed, call.output);
    ++calls_;
    return status_;
  }

  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite) override {
    ++allocations_;
    group_.resize(static_cast<size_t>(bytes));
    return GroupBuffer(nullptr, group_);
  }

  void FailWith(absl::Status status) { status_ = std::move(status); }
  int calls() const { return calls_; }
  int allocations() const { return allocations_; }

 private:
  const TurnRequest request_;
  const Bug bug_;
  absl::Status status_;
  int calls_ = 0;
  int allocations_ = 0;
  std::vector<std::byte> group_;
};

TurnRequest Request() {
  return {.type = DataType::kInt32,
          .count = 1000,
          .warmup = 3,
          .iterations = 4,
          .first = 20};
}

int64_t WrongWith(const TurnRequest& request, TwoRanks::Bug bug) {
  TwoRanks group(request, std::move(bug));
  const absl::StatusOr<AllReduceTurn> result = TurnTaker(group).Take(request);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? result->calls.wrong : -1;
}

int32_t* Elements(Buffer buffer) { return static_cast<int32_t*>(buffer.data); }

class TurnTakerTest : public testing::TestWithParam<bool> {
 protected:
  TurnRequest request() const {
    TurnRequest request = Request();
    request.in_place = GetParam();
    return request;
  }
};

TEST_P(TurnTakerTest, TimesEveryCallAndFindsNothingWrong) {
  for (const BufferKind buffers : {BufferKind::kOrdinary, BufferKind::kGroup}) {
    TurnRequest turn = request();
    turn.buffers = buffers;
    TwoRanks group(turn);
    const absl::StatusOr<AllReduceTurn> result = TurnTaker(group).Take(turn);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->calls.seconds, SizeIs(4));
    EXPECT_THAT(result->calls.seconds, Each(Ge(0)));
    EXPECT_EQ(result->calls.wrong, 0);
    EXPECT_EQ(group.calls(), 7);
    EXPECT_EQ(group.allocations(), buffers == BufferKind::kGroup);
  }
}

TEST_P(TurnTakerTest, CountsAnAnswerOfTheCallBefore) {
  std::vector<int32_t> previous(1000);
  const int64_t wrong = WrongWith(request(), [&](int call, Buffer output) {
    const std::vector<int32_t> now(Elements(output), Elements(output) + 1000);
    if (call == 1) std::ranges::copy(previous, Elements(output));
    previous = now;
  });
  EXPECT_EQ(wrong, 1000);
}

TEST_P(TurnTakerTest, CountsOneBitInAnyCall) {
  for (const int bad : {0, 1, 2, 3}) {
    const int64_t wrong = WrongWith(request(), [&](int call, Buffer output) {
      if (call == bad) Elements(output)[999] ^= 1;
    });
    EXPECT_EQ(wrong, 1) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, TurnTakerTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "InPlace" : "OutOfPlace";
                         });

// Every collective, on ranks that are threads.

// Damages what a call leaves in its output.
using Damage = std::function<void(int rank, Buffer output)>;

class DamagedGroup : public ForwardingCommunicator {
 public:
  DamagedGroup(Communicator& inner, Damage damage)
      : ForwardingCommunicator(inner), damage_(std::move(damage)) {}

  absl::Status Run(const Collective& call) override {
    const absl::Status status = inner().Run(call);
    if (call.operation != Operation::kBarrier) damage_(rank(), call.output);
    return status;
  }

 private:
  const Damage damage_;
};

// Wrong elements of all ranks.
int64_t WrongOn(int world_size, const TurnRequest& request, Damage damage) {
  int64_t wrong = 0;
  const auto run = [&](Communicator& inner) -> absl::StatusOr<std::string> {
    DamagedGroup group(inner, damage);
    const absl::StatusOr<AllReduceTurn> turn = TurnTaker(group).Take(request);
    if (!turn.ok()) return turn.status();
    return Encode(*turn);
  };
  for (const absl::StatusOr<std::string>& bytes :
       RunRanksCollect(Backend::kThreads, world_size, run)) {
    EXPECT_THAT(bytes, IsOk());
    if (bytes.ok()) wrong += Decode<AllReduceTurn>(*bytes)->calls.wrong;
  }
  return wrong;
}

TEST(TurnTakerCollectiveTest, ChecksTheAnswersOfEach) {
  constexpr int kRanks = 3;
  const Damage none = [](int, Buffer) {};
  const Damage one_element = [](int rank, Buffer output) {
    if (rank == 1) Elements(output)[output.count - 1] ^= 1;
  };
  const Damage swapped = [](int, Buffer output) {
    int32_t* const data = Elements(output);
    std::rotate(data, data + output.count / 2, data + output.count);
  };
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
        Operation::kBroadcast, Operation::kAllToAll}) {
    for (const bool asked : {false, true}) {
      SCOPED_TRACE(absl::StrCat(Name(operation), asked ? " in place" : ""));
      TurnRequest request = Request();
      request.operation = operation;
      // Parts begin within blocks of the pattern.
      request.count = 5000 * kRanks;
      request.in_place =
          InPlace({.in_place = asked}, operation, TeamKind::kThreads);
      EXPECT_EQ(WrongOn(kRanks, request, none), 0);
      EXPECT_EQ(WrongOn(kRanks, request, one_element), request.iterations);
      const bool part = operation == Operation::kReduceScatter;
      EXPECT_GT(WrongOn(kRanks, request, swapped),
                request.iterations * (part ? 5000 : request.count));
    }
  }
}

TEST(TurnTakerErrorTest, SaysWhatALibraryLacks) {
  TwoRanks group(Request());
  group.FailWith(absl::UnimplementedError("no such thing"));
  const absl::StatusOr<AllReduceTurn> turn = TurnTaker(group).Take(Request());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->missing, "no such thing");
}

TEST(TurnTakerErrorTest, HandsOnTheGroupsAndReportsMemoryThatIsNotThere) {
  TwoRanks group(Request());
  group.FailWith(absl::UnavailableError("rank 1 left"));
  EXPECT_THAT(TurnTaker(group).Take(Request()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 left"));
  TurnRequest request = Request();
  request.count = int64_t{1} << 56;
  EXPECT_THAT(TurnTaker(group).Take(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for")));
}

constexpr int64_t kCount = 5000;  // More than one block, the last not whole.

class ExactPatternTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp, int>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
  int world_size() const { return std::get<2>(GetParam()); }
  // The place of an element.
  size_t At(int64_t i) const { return static_cast<size_t>(i * SizeOf(type())); }

  ExactPattern Pattern(int rank) const {
    return *ExactPattern::Create(type(), op(), rank, world_size());
  }

  Bytes Input(int rank, int64_t iteration, int64_t count = kCount) const {
    Bytes bytes(At(count));
    Pattern(rank).Fill(iteration, {bytes.data(), count, type()});
    return bytes;
  }

  // By rank.
  std::vector<Bytes> Inputs(int64_t iteration, int64_t count = kCount) const {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < world_size(); ++rank) {
      inputs.push_back(Input(rank, iteration, count));
    }
    return inputs;
  }

  Bytes Reduced(const std::vector<Bytes>& inputs) const {
    return Reference(type(), op(), FoldOrder::kChain, inputs);
  }

  // The right answer.
  Bytes Result(int64_t iteration, int64_t count = kCount) const {
    return Reduced(Inputs(iteration, count));
  }

  int64_t WrongOf(int64_t iteration, const Bytes& bytes) const {
    const auto count = static_cast<int64_t>(bytes.size()) / SizeOf(type());
    return Pattern(0).CountWrong(iteration, {bytes.data(), count, type()});
  }
};

TEST_P(ExactPatternTest, KnowsTheResult) {
  for (const int64_t iteration : {0, 1, 77}) {
    for (const int64_t count : {int64_t{1}, int64_t{4096}, kCount}) {
      EXPECT_EQ(WrongOf(iteration, Result(iteration, count)), 0)
          << iteration << " " << count;
    }
  }
}

// The inputs are such that no rounding happens on the way, in any order.
TEST_P(ExactPatternTest, StaysExactInEveryType) {
  const double limit = type() == DataType::kBFloat16 ? 256 : 2048;
  std::vector<double> sums(kCount);
  for (int rank = 0; rank < world_size(); ++rank) {
    const Bytes input = Input(rank, 3);
    for (int64_t i = 0; i < kCount; ++i) {
      const double value = std::abs(ElementAt(type(), &input[At(i)]));
      ASSERT_EQ(value, std::trunc(value));
      double& sum = sums[static_cast<size_t>(i)];
      sum = op() == ReduceOp::kProduct && rank > 0 ? sum * value : sum + value;
    }
  }
  const bool is_half =
      type() == DataType::kBFloat16 || type() == DataType::kFloat16;
  if (!is_half || op() == ReduceOp::kMin || op() == ReduceOp::kMax) return;
  // The largest that any partial result can be.
  EXPECT_LE(*std::ranges::max_element(sums), limit);
}

TEST_P(ExactPatternTest, HasTheSamePiecesWhereverTheyBegin) {
  const Bytes whole = Result(2, 3 * kCount);
  ExactPattern pattern = Pattern(0);
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{4095}, kCount}) {
    Bytes piece(At(kCount));
    pattern.FillResult(2, {piece.data(), kCount, type()}, begin);
    EXPECT_EQ(std::memcmp(piece.data(), &whole[At(begin)], At(kCount)), 0);
    const ConstBuffer right(&whole[At(begin)], kCount, type());
    EXPECT_EQ(pattern.CountWrong(2, right, begin), 0);
    EXPECT_GT(pattern.CountWrong(2, right, begin + 1), kCount / 3);
  }
}

TEST_P(ExactPatternTest, CountsEveryElementOfAStaleResult) {
  for (const int64_t earlier : {4, 3}) {
    EXPECT_EQ(WrongOf(5, Result(earlier)), kCount);
  }
}

TEST_P(ExactPatternTest, CountsWhatIsLostSwappedOrShifted) {
  const Bytes right = Result(5), old = Result(4);
  Bytes lost = right;
  std::memcpy(&lost[At(kCount - 3)], &old[At(kCount - 3)], At(3));
  EXPECT_EQ(WrongOf(5, lost), 3);
  // Results take more than two values, so well over a third differ.
  Bytes swapped = right;
  std::ranges::rotate(swapped, swapped.begin() + At(kCount / 2));
  EXPECT_GT(WrongOf(5, swapped), kCount / 3);
  Bytes shifted = right;
  std::memmove(&shifted[At(1)], &shifted[0], At(kCount - 1));
  EXPECT_GT(WrongOf(5, shifted), kCount / 3);
}

TEST_P(ExactPatternTest, CountsARankThatIsCountedTwiceOrNotAtAll) {
  if (world_size() == 1 || op() != ReduceOp::kSum) return;
  const std::vector<Bytes> inputs = Inputs(5);
  for (const int rank : {0, 1, world_size() - 1}) {
    std::vector<Bytes> twice = inputs, without = inputs;
    twice.push_back(inputs[static_cast<size_t>(rank)]);
    without.erase(without.begin() + rank);
    EXPECT_GT(WrongOf(5, Reduced(twice)), kCount / 2) << rank;
    EXPECT_GT(WrongOf(5, Reduced(without)), kCount / 2) << rank;
  }
}

TEST_P(ExactPatternTest, DiffersByRankAndPosition) {
  if (op() == ReduceOp::kProduct) return;
  const Bytes first = Input(0, 5), next = Input(1 % world_size(), 5);
  int64_t same_rank = 0, same_position = 0;
  for (int64_t i = 1; i < kCount; ++i) {
    same_rank += std::memcmp(&first[At(i)], &next[At(i)], At(1)) == 0;
    same_position += std::memcmp(&first[At(i)], &first[At(i - 1)], At(1)) == 0;
  }
  if (world_size() > 1) {
    EXPECT_LT(same_rank, kCount / 2);
  }
  EXPECT_LT(same_position, kCount / 2);
}

INSTANTIATE_TEST_SUITE_P(All, ExactPatternTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::ValuesIn(kAllReduceOps),
                                          testing::Values(1, 2, 3, 8, 64)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               Name(std::get<1>(info.param)),
                                               "P", std::get<2>(info.param));
                         });

TEST(ExactPatternCreateTest, RefusesRanksThatCannotBe) {
  for (const auto& [rank, world_size] :
       {std::pair(0, 0), std::pair(0, 65), std::pair(2, 2), std::pair(-1, 2)}) {
    EXPECT_THAT(ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, rank,
                                     world_size),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("rank ", rank))));
  }
}

TEST(ExactPatternCreateTest, TakesMemoryOfAnyAlignment) {
  std::vector<std::byte> bytes(4 * 100 + 1);
  const Buffer odd(bytes.data() + 1, 100, DataType::kFloat32);
  ExactPattern pattern =
      *ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, 0, 1);
  pattern.Fill(0, odd);
  EXPECT_EQ(pattern.CountWrong(0, odd), 0);
}

}  // namespace
}  // namespace lockstep::benchmarks
