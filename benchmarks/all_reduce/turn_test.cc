// Tests of flags, sizes, and the subjects, calls and memory that they imply; of
// the teams' commands; of the order of turns; of one turn; and of ExactPattern.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The tests of the command use every value of each flag.
TEST(ParseTest, ReadsLists) {
  EXPECT_THAT(ParseBackends("processes,mpi,processes"),
              IsOkAndHolds(ElementsAre(TeamKind::kProcesses, TeamKind::kMpi)));
  EXPECT_THAT(ParsePeers(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseAlgorithms("ring,auto"),
              IsOkAndHolds(ElementsAre(Algorithm::kRing, Algorithm::kAuto)));
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
  // Sizes are cut to whole elements.
  EXPECT_THAT(MessageSizes(9, 20, 2, 4), IsOkAndHolds(ElementsAre(8, 16)));
  const auto error = [](const char* flag) {
    return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(flag));
  };
  EXPECT_THAT(MessageSizes(3, 64, 2, 4), error("--min_bytes: 3"));
  EXPECT_THAT(MessageSizes(8, 7, 2, 4),
              error("--max_bytes (7 B) is smaller than --min_bytes (8 B)"));
  EXPECT_THAT(MessageSizes(8, int64_t{1} << 41, 2, 4), error("--max_bytes: "));
  EXPECT_THAT(MessageSizes(8, 64, 1, 4), error("--factor: 1"));
}

// On GPUs there are two subjects of NCCL and no updates. Only the direct
// algorithm is measured with both kinds of buffers.
TEST(SubjectsTest, AreEveryBackendWithEveryAlgorithmAndMemoryThenThePeers) {
  const std::pair<AllReduceSettings, std::vector<std::string>> cases[] = {
      {{.backends = {TeamKind::kThreads, TeamKind::kProcesses},
        .algorithms = {Algorithm::kAuto, Algorithm::kRing},
        .peers = {TeamKind::kGloo, TeamKind::kOneCcl}},
       {"threads auto ordinary", "threads auto group", "threads ring ordinary",
        "threads ring group", "processes auto ordinary", "processes auto group",
        "processes ring ordinary", "processes ring group", "Gloo", "Gloo bcube",
        "Gloo halving-doubling", "oneCCL", "oneCCL nreduce",
        "oneCCL recursive_doubling", "oneCCL ring", "update"}},
      {{.backends = {TeamKind::kNccl},
        .algorithms = {Algorithm::kAuto, Algorithm::kDirect},
        .peers = {TeamKind::kPlainNccl}},
       {"nccl auto ordinary", "nccl direct ordinary", "nccl direct group",
        "NCCL", "NCCL_ALGO=Ring"}},
      {{.backends = {TeamKind::kNccl}, .buffers = {BufferKind::kGroup}},
       {"nccl auto group"}}};
  for (const auto& [settings, want] : cases) {
    std::vector<std::string> names;
    for (const Subject& subject : SubjectsOf(settings)) {
      names.push_back(Name(subject));
    }
    EXPECT_EQ(names, want);
  }
  EXPECT_THAT(TeamsOf(cases[0].first), SizeIs(7));
  EXPECT_TRUE(OnGpu(cases[1].first));
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
    for (const auto& [operation, kind, want] :
         {std::tuple(Operation::kAllReduce, TeamKind::kOpenMpi, asked),
          {Operation::kAllGather, TeamKind::kNccl, asked},
          {Operation::kReduceScatter, TeamKind::kGloo, asked},
          {Operation::kReduceScatter, TeamKind::kOneCcl, asked},
          {Operation::kReduceScatter, TeamKind::kOpenMpi, false},
          {Operation::kBroadcast, TeamKind::kThreads, true},
          {Operation::kAllToAll, TeamKind::kThreads, false}}) {
      EXPECT_EQ(InPlace({.in_place = asked}, operation, kind), want)
          << Name(operation);
    }
  }
}

TEST(IterationsTest, ShrinkWithTheMessageAsTheWarmUpDoes) {
  struct Case {
    AllReduceSettings settings;
    int64_t bytes;
    int round, warmup, iterations;
  };
  const std::vector<TeamKind> gpu = {TeamKind::kNccl};
  for (const Case& c :
       {Case{{}, 8, 9, 5, 400}, Case{{}, 4 << 10, 0, 5, 128},
        Case{{}, 512 << 10, 0, 5, 1}, Case{{}, 4 << 20, 0, 1, 1},
        Case{{}, 4 << 20, 1, 0, 1}, Case{{.iterations = 7}, 1 << 30, 1, 0, 7},
        Case{{.warmup = 2}, 4 << 20, 1, 2, 1},
        Case{{.warmup = 0}, 8, 0, 0, 400},
        Case{{.backends = gpu}, 8, 5, 3 * 21, 20},
        Case{{.backends = gpu}, 64 << 20, 5, 3 * 5, 4},
        Case{{.backends = gpu}, 1 << 30, 5, 3 * 2, 1},
        Case{{.backends = gpu, .warmup = 4}, 8, 5, 4 * 21, 20}}) {
    EXPECT_EQ(TimedIterations(c.settings, c.bytes), c.iterations) << c.bytes;
    EXPECT_EQ(WarmupIterations(c.settings, c.bytes, c.round), c.warmup);
  }
}

TEST(MemoryNeededTest, CountsEveryTeamsBuffers) {
  constexpr int64_t kMessage = 1 << 20;
  AllReduceSettings settings;
  // Two ranks have ordinary buffers, group buffers, and updates.
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 3 * 2 * kMessage);
  settings.peers = {TeamKind::kOpenMpi};
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 5 * 2 * kMessage);
  settings.in_place = false;
  EXPECT_EQ(MemoryNeeded(settings, kMessage), 9 * 2 * kMessage);
  // Each of oneCCL's four algorithms has its own ranks.
  settings.peers = {TeamKind::kOneCcl};
  EXPECT_EQ(MemoryNeeded(settings, kMessage), (6 + 4 * 3) * 2 * kMessage);
  // Twenty timed calls and one extra call have buffers.
  AllReduceSettings gpu = {.backends = {TeamKind::kNccl}};
  EXPECT_EQ(MemoryNeeded(gpu, kMessage), 21 * 2 * kMessage);
  gpu.in_place = false;
  EXPECT_EQ(MemoryNeeded(gpu, kMessage), 2 * 21 * 2 * kMessage);
}

// The commands that start teams.

// Returns the command, the number of launched processes, the number of ranks,
// and the ranks' variables. TMPDIR is omitted if there is no MPI folder.
std::string CommandText(const Team& team, int ranks,
                        const std::string& mpi_folder = "",
                        int32_t peer_algorithm = 0) {
  const TeamSetting setting = {.folder = "/bin",
                               .store = "/store",
                               .mpi_folder = mpi_folder,
                               .cores = 2,
                               .timeout = {}};
  TeamCommand command = CommandOf(setting, team, ranks, "name", peer_algorithm);
  std::erase(command.argv, "--allow-run-as-root");  // Only there for root.
  std::string text = absl::StrCat(absl::StrJoin(command.argv, " "), "; ",
                                  command.nproc, " ", command.world_size);
  for (const auto& [name, value] : command.environment) {
    if (name == "HOME") continue;  // Only there if the test has no HOME.
    if (name == "TMPDIR" && mpi_folder.empty()) continue;
    absl::StrAppend(&text, " ", name, "=", value);
  }
  return text;
}

TEST(CommandOfTest, StartsTheRanksOfEveryKind) {
  const std::string mpi =
      "mpirun --oversubscribe -np 3 --bind-to core:overload-allowed "
      "/bin/allreduce_";
  const std::string nccl = "/bin/allreduce_rank_nccl name ";
  // Set if ranks share cores.
  const std::string yields = " OMPI_MCA_mpi_yield_when_idle=1";
  const std::string dynamic = " OMPI_MCA_coll_tuned_use_dynamic_rules=1";
  const std::string one_ccl = "/bin/allreduce_peer_oneccl name /store/oneccl_";
  const std::string one_ccl_environment =
      " CCL_PROCESS_LAUNCHER=none CCL_LOG_LEVEL=error CCL_KVS_IFACE=lo "
      "CCL_ATL_TRANSPORT=ofi CCL_ATL_SHM=1 FI_PROVIDER=tcp FI_TCP_IFACE=lo";
  const std::pair<Team, std::string> cases[] = {
      {{TeamKind::kProcesses, Algorithm::kRing},
       "/bin/allreduce --worker=name --worker_kind=processes --algorithm=ring "
       "--world_size=3; 3 3"},
      {{TeamKind::kThreads},
       "/bin/allreduce --worker=name --worker_kind=threads --algorithm=auto "
       "--world_size=3; 1 3"},
      {{TeamKind::kUpdate},
       "/bin/allreduce --worker=name --worker_kind=update --algorithm=auto "
       "--world_size=3; 1 1"},
      {{TeamKind::kOpenMpi}, mpi + "peer_mpi name; 1 3" + yields + dynamic},
      {{TeamKind::kMpi}, mpi + "rank_mpi name auto; 1 3" + yields},
      {{TeamKind::kGloo}, "/bin/allreduce_peer_gloo name /store; 3 3"},
      {{TeamKind::kOneCcl},
       one_ccl + "0; 3 3" + one_ccl_environment +
           " CCL_WORKER_OFFLOAD=1 CCL_YIELD=sched_yield CCL_SPIN_COUNT=1"},
      {{TeamKind::kNccl, Algorithm::kRing},
       nccl + "nccl ring; 3 3 NCCL_DEBUG=WARN"},
      {{TeamKind::kPlainNccl, Algorithm::kRing},
       nccl + "NCCL ring; 3 3 NCCL_DEBUG=WARN NCCL_ALGO=Ring"},
      {{TeamKind::kPlainNccl}, nccl + "NCCL auto; 3 3 NCCL_DEBUG=WARN"}};
  for (const auto& [team, text] : cases) {
    EXPECT_EQ(CommandText(team, 3), text);
  }
  // Each rank has its own core.
  for (const auto& [algorithm, setting] :
       {std::pair(0, ""), {1, " CCL_ALLREDUCE=nreduce"}}) {
    EXPECT_EQ(CommandText({TeamKind::kOneCcl}, 2, "", algorithm),
              absl::StrCat(one_ccl, algorithm, "; 2 2", one_ccl_environment,
                           " CCL_WORKER_OFFLOAD=0", setting));
  }
  const std::string long_name = "/memory/" + std::string(100, 'x');
  for (const auto& [folder, temporary] :
       {std::pair<std::string, std::string>("/memory/x", "/memory/x"),
        {long_name, "/tmp"}}) {
    EXPECT_EQ(CommandText({TeamKind::kOpenMpi}, 2, folder),
              absl::StrCat("mpirun --oversubscribe -np 2 "
                           "/bin/allreduce_peer_mpi name; 1 2 "
                           "OMPI_MCA_btl_vader_backing_directory=",
                           folder, " TMPDIR=", temporary, dynamic));
  }
}

// The teams' ranks are nccl_rank_fake. They write a log before they are timed,
// and none while they are timed. Our ring makes one call.
TEST(AllReduceTeamsTest, ReadsTheLogOfTeamsOnGpusBeforeTheyAreTimed) {
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("programs");
  ASSERT_THAT(folder, IsOk());
  std::filesystem::create_symlink(
      std::filesystem::absolute("benchmarks/all_reduce/nccl_rank_fake"),
      folder->path() + "/allreduce_rank_nccl");
  const AllReduceSettings settings = {
      .backends = {TeamKind::kNccl},
      .algorithms = {Algorithm::kAuto, Algorithm::kRing},
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
  ASSERT_THAT(probes, SizeIs(4));
  const NcclChoice unknown;
  for (const NcclProbe& probe : probes) {
    const bool ring = probe.team.algorithm == Algorithm::kRing;
    SCOPED_TRACE(Name(probe.team));
    EXPECT_EQ(probe.facts.version, "2.99.0+cuda13.0");
    EXPECT_THAT(probe.facts.transports, ElementsAre("P2P/CUMEM"));
    EXPECT_EQ(probe.facts.environment.at("NCCL_ALGO"),
              ring && IsPeer(probe.team.kind) ? "Ring" : "");
    EXPECT_EQ(probe.gpu, "fakeINFO");
    EXPECT_TRUE(probe.shared_gpu);
    std::vector<NcclChoice> choices;
    for (const NcclProbe::Call& call : probe.calls) {
      choices.push_back(call.choice);
    }
    if (!IsPeer(probe.team.kind)) {
      EXPECT_THAT(choices, AllOf(SizeIs(ring ? 1 : 4), Each(unknown)));
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
    EXPECT_EQ(turn->gpu, "fakeWARN");
    EXPECT_EQ(turn->calls.wrong, 0);
  }
  EXPECT_THAT((*teams)->Stop(), IsOk());
}

// The order of turns, with fake teams and a fake clock.

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
    std::erase_if(subjects_, [&](const Subject& subject) {
      return subject.peer_algorithm >= peer_algorithms_;
    });
    return MeasureSize(
        settings, Operation::kAllReduce, 1 << 20,
        [this](const Team& team,
               const TurnRequest& request) -> absl::StatusOr<AllReduceTurn> {
          turns_.push_back(Name(team.kind));
          requests_.push_back(request);
          if (team.kind == failing_kind_) return absl::AbortedError("it broke");
          now_ += 1;
          AllReduceTurn turn;
          if (team.kind == unsupported_kind_) turn.missing = "it has none";
          turn.calls = {{request.peer_algorithm == slow_ ? 0.8 : 0.5}, 1};
          return turn;
        },
        [this] { return now_; }, subjects_, missing_);
  }

  TeamKind failing_kind_ = TeamKind::kThreads;  // No team here is of this kind.
  TeamKind unsupported_kind_ = TeamKind::kThreads;
  int peer_algorithms_ = 1;  // The number of algorithms that are measured.
  int slow_ = -1;            // The index of the slow algorithm.
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
  EXPECT_THAT(turns_, ElementsAre("processes", "Open MPI", "update",  //
                                  "Open MPI", "processes", "update",  //
                                  "Open MPI", "update", "processes"));
  ASSERT_THAT(measured->rows, SizeIs(3));
  for (const AllReduceRow& subject : measured->rows) {
    EXPECT_THAT(subject.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(subject.rounds, 3);
    EXPECT_EQ(subject.wrong, 3);
  }
  // Every round has its own inputs.
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
  settings.seconds = 24;  // 12 for this size, and a round takes 3.
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(4 * 3));
  turns_.clear();
  settings.seconds = 0.1;  // There are at least three rounds.
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(3 * 3));
}

TEST_F(MeasureSizeTest, GoesOnWithoutAPeerThatFailsOrLacksIt) {
  for (TeamKind* const which : {&failing_kind_, &unsupported_kind_}) {
    *which = TeamKind::kOpenMpi;
    const absl::StatusOr<AllReduceSize> measured = Measure(Settings());
    *which = TeamKind::kThreads;
    ASSERT_THAT(measured, IsOk());
    EXPECT_THAT(measured->rows, SizeIs(2));
    EXPECT_THAT(subjects_, SizeIs(2));
    ASSERT_FALSE(missing_.empty());
    EXPECT_EQ(missing_.back().peer.kind, TeamKind::kOpenMpi);
    EXPECT_EQ(missing_.back().why,
              which == &failing_kind_ ? "it broke" : "it has none");
  }
}

// If a peer fails, all its algorithms are removed.
TEST_F(MeasureSizeTest, TakesAllAlgorithmsOfAPeerThatFails) {
  peer_algorithms_ = 3;
  failing_kind_ = TeamKind::kOpenMpi;
  ASSERT_THAT(Measure(Settings()), IsOk());
  EXPECT_THAT(subjects_, SizeIs(2));
  EXPECT_THAT(missing_, SizeIs(1));
}

TEST_F(MeasureSizeTest, HasThreeTurnsForAnAlgorithmThatIsFarBehind) {
  peer_algorithms_ = 3;
  slow_ = 1;
  AllReduceSettings settings = Settings();
  settings.rounds = 5;
  const absl::StatusOr<AllReduceSize> measured = Measure(settings);
  ASSERT_THAT(measured, IsOk());
  ASSERT_THAT(measured->rows, SizeIs(5));
  for (const AllReduceRow& row : measured->rows) {
    const bool slow = row.subject.peer_algorithm == 1;
    EXPECT_THAT(row.seconds, SizeIs(slow ? 3 : 5)) << Name(row.subject);
  }
}

TEST_F(MeasureSizeTest, FailsWithOneOfOurs) {
  failing_kind_ = TeamKind::kProcesses;
  EXPECT_THAT(Measure(Settings()), StatusIs(absl::StatusCode::kAborted,
                                            "processes auto group: it broke"));
  failing_kind_ = TeamKind::kThreads;
  unsupported_kind_ = TeamKind::kProcesses;
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

// Turns of ranks that are threads.

// Damages the output of call `call`, which is -1 for a call that is not timed.
// before: the output of the previous call.
using Damage =
    std::function<void(int rank, int call, Buffer output, const Bytes& before)>;

class DamagedGroup : public ForwardingCommunicator {
 public:
  DamagedGroup(Communicator& inner, const TurnRequest& request, Damage damage)
      : ForwardingCommunicator(inner),
        calls_(-request.warmup),
        damage_(std::move(damage)) {}

  absl::Status Run(const Collective& call) override {
    const absl::Status status = inner().Run(call);
    if (call.operation == Operation::kBarrier) return status;
    const std::byte* const data = call.output.bytes();
    const Bytes right(data, data + call.output.size_bytes());
    damage_(rank(), std::max(calls_, -1), call.output, before_);
    ++calls_;
    before_ = right;
    return status;
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    allocated_ = true;
    return inner().Allocate(bytes, site);
  }

  int calls() const { return calls_; }
  bool allocated() const { return allocated_; }

 private:
  int calls_;  // The number of the next call; timed calls begin at 0.
  const Damage damage_;
  Bytes before_;
  bool allocated_ = false;
};

constexpr int kRanks = 3;

// Returns the number of wrong elements on all ranks.
int64_t CountWrongWith(const TurnRequest& request, const Damage& damage) {
  int64_t wrong = 0;
  const auto run = [&](Communicator& inner) -> absl::StatusOr<std::string> {
    DamagedGroup group(inner, request, damage);
    const absl::StatusOr<AllReduceTurn> turn = TurnTaker(group).Take(request);
    if (!turn.ok()) return turn.status();
    EXPECT_THAT(turn->calls.seconds, SizeIs(request.iterations));
    EXPECT_THAT(turn->calls.seconds, Each(Ge(0)));
    EXPECT_EQ(group.calls(), request.iterations);
    EXPECT_EQ(group.allocated(), request.buffers == BufferKind::kGroup);
    return Encode(*turn);
  };
  for (const absl::StatusOr<std::string>& bytes :
       RunRanksCollect(Backend::kThreads, kRanks, run)) {
    EXPECT_THAT(bytes, IsOk());
    if (bytes.ok()) wrong += Decode<AllReduceTurn>(*bytes)->calls.wrong;
  }
  return wrong;
}

// Returns a request whose parts begin within blocks of the pattern.
TurnRequest Request() {
  return {.type = DataType::kInt32,
          .count = 5000 * kRanks,
          .warmup = 3,
          .iterations = 4,
          .first = 20};
}

int32_t* Elements(Buffer buffer) { return static_cast<int32_t*>(buffer.data); }

TEST(TurnTakerTest, ChecksEveryElementOfEveryCallOfEveryCollective) {
  const Damage none = [](int, int, Buffer, const Bytes&) {};
  const Damage one_bit = [](int rank, int call, Buffer output, const Bytes&) {
    if (rank == call % kRanks) Elements(output)[output.count - 1] ^= 1;
  };
  const Damage swapped = [](int, int, Buffer output, const Bytes&) {
    int32_t* const data = Elements(output);
    std::rotate(data, data + output.count / 2, data + output.count);
  };
  // Replaces the output by that of the previous call.
  const Damage stale = [](int rank, int call, Buffer output,
                          const Bytes& before) {
    if (rank == 1 && call == 1) std::ranges::copy(before, output.bytes());
  };
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
        Operation::kBroadcast, Operation::kAllToAll}) {
    for (const bool asked : {false, true}) {
      SCOPED_TRACE(absl::StrCat(Name(operation), asked ? " in place" : ""));
      TurnRequest request = Request();
      request.operation = operation;
      request.buffers = asked ? BufferKind::kGroup : BufferKind::kOrdinary;
      request.in_place =
          InPlace({.in_place = asked}, operation, TeamKind::kThreads);
      EXPECT_EQ(CountWrongWith(request, none), 0);
      EXPECT_EQ(CountWrongWith(request, one_bit), request.iterations);
      const bool part = operation == Operation::kReduceScatter;
      EXPECT_EQ(CountWrongWith(request, stale), part ? 5000 : request.count);
      EXPECT_GT(CountWrongWith(request, swapped),
                request.iterations * (part ? 5000 : request.count));
    }
  }
}

class FailingGroup : public FakeCommunicator {
 public:
  explicit FailingGroup(absl::Status status) : status_(std::move(status)) {}
  absl::Status Run(const Collective&) override { return status_; }

 private:
  const absl::Status status_;
};

TEST(TurnTakerTest, SaysWhatALibraryLacksAndHandsErrorsOn) {
  FailingGroup lacking(absl::UnimplementedError("no such thing"));
  const absl::StatusOr<AllReduceTurn> turn = TurnTaker(lacking).Take(Request());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->missing, "no such thing");
  FailingGroup failing(absl::UnavailableError("rank 1 left"));
  EXPECT_THAT(TurnTaker(failing).Take(Request()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 left"));
  TurnRequest request = Request();
  request.count = int64_t{1} << 56;
  EXPECT_THAT(TurnTaker(failing).Take(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for")));
}

constexpr int64_t kCount = 5000;  // More than one block; the last is partial.

class ExactPatternTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp, int>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
  int world_size() const { return std::get<2>(GetParam()); }
  // Returns the offset of an element in bytes.
  size_t At(int64_t i) const { return static_cast<size_t>(i * SizeOf(type())); }

  ExactPattern Pattern(int rank) const {
    return *ExactPattern::Create(type(), op(), rank, world_size());
  }

  Bytes Input(int rank, int64_t iteration, int64_t count = kCount) const {
    Bytes bytes(At(count));
    Pattern(rank).Fill(iteration, {bytes.data(), count, type()});
    return bytes;
  }

  // Returns the inputs of all ranks.
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

  // Returns the correct result.
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

// No intermediate result of the inputs is rounded, in any order of reduction.
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
  // The sum of all magnitudes bounds every partial result.
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
