// Flags, sizes and what follows from them; commands of teams; the order of
// turns.
#include "benchmarks/all_reduce/plan.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/ranks.h"
#include "benchmarks/all_reduce/report.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
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

TEST(IterationsTest, ShrinkWithTheMessageAsTheWarmUpDoes) {
  AllReduceSettings settings;
  EXPECT_EQ(TimedIterations(settings, 8), 400);
  EXPECT_EQ(TimedIterations(settings, 4 << 10), 128);
  EXPECT_EQ(TimedIterations(settings, 512 << 10), 1);
  EXPECT_EQ(TimedIterations(settings, 1 << 30), 1);
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

// The order of turns, with teams and a clock that are made up.

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
  AllReduceSettings settings = Settings();
  settings.iterations = 10;
  const absl::StatusOr<MeasuredSize> measured = Measure(settings);
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
