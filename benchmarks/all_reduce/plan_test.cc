// Flags, sizes and what follows from them; commands of teams; the order of
// turns.
#include "benchmarks/all_reduce/plan.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/measure.h"
#include "benchmarks/all_reduce/ranks.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/rank_team.h"
#include "collectives/group_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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
  EXPECT_THAT(ParseType("uint8"), IsOkAndHolds(DataType::kUInt8));
  EXPECT_THAT(ParseOperation("avg"), IsOkAndHolds(ReduceOp::kAverage));
}

TEST(ParseTest, NamesTheFlagAndTheItem) {
  EXPECT_THAT(ParseBackends("mpi,nccl"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--backend: 'nccl' is not one of threads, processes, "
                       "mpi"));
  EXPECT_THAT(ParseBackends(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                          StartsWith("--backend: ''")));
  EXPECT_THAT(ParsePeers("mpi,"), StatusIs(absl::StatusCode::kInvalidArgument,
                                           StartsWith("--peers: ''")));
  EXPECT_THAT(ParseAlgorithms("star"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--algorithm: 'star' is not one of auto, ring, tree, "
                       "direct"));
  EXPECT_THAT(ParseBuffers("shared"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--buffers: 'shared' is not one of ordinary, group"));
  EXPECT_THAT(ParseType("float"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--dtype: 'float' is not one of float64, float32, "
                       "float16, bfloat16, int32, int64, uint8"));
  EXPECT_THAT(ParseOperation("mean"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--op: 'mean' is not one of sum, prod, min, max, avg"));
}

TEST(ParseBytesTest, ReadsUnits) {
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, int64_t>>{{"0", 0},
                                                    {"8", 8},
                                                    {"8B", 8},
                                                    {"4k", 4096},
                                                    {"4K", 4096},
                                                    {"4KB", 4096},
                                                    {"4KiB", 4096},
                                                    {"64M", 64 << 20},
                                                    {"1GiB", 1 << 30}}) {
    EXPECT_THAT(ParseBytes("--x", text), IsOkAndHolds(bytes)) << text;
  }
}

TEST(ParseBytesTest, RefusesAnythingElse) {
  for (const char* text : {"", "K", "-1", "1.5M", "4 K", "4iB", "4T", "0x10",
                           "99999999999999999999", "9999999999G"}) {
    EXPECT_THAT(ParseBytes("--max_bytes", text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("--max_bytes: '")))
        << text;
  }
}

TEST(MessageSizesTest, MultipliesUpToTheMaximum) {
  EXPECT_THAT(MessageSizes(8, 64, 2, 4),
              IsOkAndHolds(ElementsAre(8, 16, 32, 64)));
  EXPECT_THAT(MessageSizes(8, 63, 2, 4), IsOkAndHolds(ElementsAre(8, 16, 32)));
  EXPECT_THAT(MessageSizes(4096, 4096, 2, 4), IsOkAndHolds(ElementsAre(4096)));
  EXPECT_THAT(MessageSizes(8, 512, 8, 8),
              IsOkAndHolds(ElementsAre(8, 64, 512)));
}

TEST(MessageSizesTest, CutsToWholeElements) {
  EXPECT_THAT(MessageSizes(9, 20, 2, 4), IsOkAndHolds(ElementsAre(8, 16)));
}

TEST(MessageSizesTest, NamesTheFlag) {
  const auto error = [](const char* flag) {
    return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(flag));
  };
  EXPECT_THAT(MessageSizes(3, 64, 2, 4), error("--min_bytes: 3"));
  EXPECT_THAT(MessageSizes(8, 7, 2, 4), error("--max_bytes: 7"));
  EXPECT_THAT(MessageSizes(8, int64_t{1} << 41, 2, 4), error("--max_bytes: "));
  EXPECT_THAT(MessageSizes(8, 64, 1, 4), error("--factor: 1"));
}

TEST(ValidateTest, NamesTheFlag) {
  EXPECT_THAT(Validate(AllReduceSettings()), IsOk());
  using Change = std::function<void(AllReduceSettings&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"--world_size: 0", [](auto& s) { s.world_size = 0; }},
      {"--world_size: 65", [](auto& s) { s.world_size = 65; }},
      {"--rounds: -1", [](auto& s) { s.rounds = -1; }},
      {"--iterations: -1", [](auto& s) { s.iterations = -1; }},
      {"--iterations: 5000", [](auto& s) { s.iterations = 5000; }},
      {"--warmup: -2", [](auto& s) { s.warmup = -2; }},
      {"--seconds: 0", [](auto& s) { s.seconds = 0; }},
      {"--seconds: nan", [](auto& s) { s.seconds = 0.0 / 0.0; }}};
  for (const auto& [message, change] : cases) {
    AllReduceSettings settings;
    change(settings);
    EXPECT_THAT(Validate(settings), StatusIs(absl::StatusCode::kInvalidArgument,
                                             StartsWith(message)));
  }
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

TEST(IterationsTest, ShrinkWithTheMessage) {
  AllReduceSettings settings;
  EXPECT_EQ(TimedIterations(settings, 8), 400);
  EXPECT_EQ(TimedIterations(settings, 4 << 10), 128);
  EXPECT_EQ(TimedIterations(settings, 512 << 10), 1);
  EXPECT_EQ(TimedIterations(settings, 1 << 30), 1);
  settings.iterations = 7;
  EXPECT_EQ(TimedIterations(settings, 1 << 30), 7);
}

TEST(IterationsTest, WarmUpLessBeforeLargeMessages) {
  AllReduceSettings settings;
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
}

// The commands that start teams.

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

TeamSetting Setting() {
  return {.folder = "/bin/there", .store = "/store", .cores = 2, .timeout = {}};
}

TeamCommand Command(const Team& team, int world_size) {
  return CommandOf(Setting(), team, world_size, "name");
}

TEST(CommandOfTest, LaunchesOneProcessForEachRank) {
  const TeamCommand command =
      Command({TeamKind::kProcesses, Algorithm::kRing}, 3);
  EXPECT_THAT(command.argv, ElementsAre("/bin/there/allreduce", "--worker=name",
                                        "--worker_kind=processes",
                                        "--algorithm=ring", "--world_size=3"));
  EXPECT_EQ(command.nproc, 3);
  EXPECT_EQ(command.connections, 3);
  EXPECT_EQ(command.world_size, 3);
}

TEST(CommandOfTest, LaunchesOneProcessForAllThreads) {
  const TeamCommand command = Command({TeamKind::kThreads}, 3);
  EXPECT_EQ(command.nproc, 1);
  EXPECT_EQ(command.connections, 3);
  EXPECT_EQ(command.world_size, 3);
}

TEST(CommandOfTest, HasOneCopierForAllRanks) {
  const TeamCommand command = Command({TeamKind::kCopy}, 3);
  EXPECT_THAT(command.argv, Contains("--worker_kind=copy"));
  EXPECT_THAT(command.argv, Contains("--world_size=3"));
  EXPECT_EQ(command.nproc, 1);
  EXPECT_EQ(command.connections, 1);
  EXPECT_EQ(command.world_size, 1);
}

TEST(CommandOfTest, LeavesMpiRanksToMpirun) {
  for (const auto& [kind, program] :
       {std::pair(TeamKind::kOpenMpi, "/bin/there/allreduce_peer_mpi"),
        std::pair(TeamKind::kMpi, "/bin/there/allreduce_rank_mpi")}) {
    const TeamCommand command = Command({kind}, 2);
    EXPECT_EQ(command.argv[0], "mpirun");
    EXPECT_THAT(command.argv, AllOf(Contains("--oversubscribe"), Contains("2"),
                                    Contains(program), Contains("name")));
    EXPECT_EQ(command.nproc, 1);
    EXPECT_EQ(command.connections, 2);
    EXPECT_EQ(command.world_size, 2);
  }
}

TEST(CommandOfTest, AsksMpiToYieldWhereRanksShareCores) {
  const std::pair<std::string, std::string> yields = {
      "OMPI_MCA_mpi_yield_when_idle", "1"};
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 2).environment,
              Not(Contains(yields)));
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 3).environment, Contains(yields));
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

TEST(CommandOfTest, TellsGlooWhereToMeet) {
  const TeamCommand command = Command({TeamKind::kGloo}, 2);
  EXPECT_THAT(command.argv,
              ElementsAre("/bin/there/allreduce_peer_gloo", "name", "/store"));
  EXPECT_EQ(command.nproc, 2);
}

// The order of turns, with teams and a clock that are made up.

using ::testing::HasSubstr;
using ::testing::SizeIs;

AllReduceSettings Settings() {
  AllReduceSettings settings;
  settings.buffers = {BufferKind::kGroup};
  settings.peers = {TeamKind::kOpenMpi};
  settings.sizes = {1 << 20, 1 << 21};
  settings.rounds = 3;
  return settings;
}

class MeasureSizeTest : public testing::Test {
 protected:
  absl::StatusOr<MeasuredSize> Measure(const AllReduceSettings& settings) {
    subjects_ = SubjectsOf(settings);
    return MeasureSize(
        settings, 1 << 20,
        [this](const Team& team,
               const TurnRequest& request) -> absl::StatusOr<TimedCalls> {
          turns_.push_back(Name(team.kind));
          requests_.push_back(request);
          if (team.kind == failing_) return absl::AbortedError("it broke");
          now_ += 1;
          return TimedCalls{{0.5}, 1};
        },
        [this] { return now_; }, subjects_, missing_);
  }

  TeamKind failing_ = TeamKind::kThreads;  // Which nobody here is.
  double now_ = 100;
  std::vector<std::string> turns_;
  std::vector<TurnRequest> requests_;
  std::vector<Subject> subjects_;
  std::vector<MissingPeer> missing_;
};

TEST_F(MeasureSizeTest, GivesEachATurnInEveryRound) {
  const absl::StatusOr<MeasuredSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("processes", "Open MPI", "copy",  //
                                  "Open MPI", "processes", "copy",  //
                                  "Open MPI", "copy", "processes"));
  EXPECT_EQ(measured->rounds, 3);
  ASSERT_THAT(measured->subjects, SizeIs(3));
  for (const MeasuredSubject& subject : measured->subjects) {
    EXPECT_THAT(subject.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(subject.wrong, 3);
  }
}

TEST_F(MeasureSizeTest, GivesEveryRoundInputsOfItsOwn) {
  AllReduceSettings settings = Settings();
  settings.iterations = 10;
  ASSERT_THAT(Measure(settings), IsOk());
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
}

TEST_F(MeasureSizeTest, HasThreeRoundsHoweverLongTheyTake) {
  AllReduceSettings settings = Settings();
  settings.rounds = 0;
  settings.seconds = 0.1;
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(3 * 3));
}

TEST_F(MeasureSizeTest, GoesOnWithoutAPeerThatFails) {
  failing_ = TeamKind::kOpenMpi;
  const absl::StatusOr<MeasuredSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(measured->subjects, SizeIs(2));
  EXPECT_THAT(subjects_, SizeIs(2));
  ASSERT_THAT(missing_, SizeIs(1));
  EXPECT_EQ(missing_[0].peer, TeamKind::kOpenMpi);
  EXPECT_EQ(missing_[0].why, "it broke");
}

TEST_F(MeasureSizeTest, FailsWithOneOfOurs) {
  failing_ = TeamKind::kProcesses;
  EXPECT_THAT(Measure(Settings()), StatusIs(absl::StatusCode::kAborted,
                                            "processes auto group: it broke"));
  EXPECT_THAT(missing_, IsEmpty());
}

}  // namespace
}  // namespace lockstep::benchmarks
