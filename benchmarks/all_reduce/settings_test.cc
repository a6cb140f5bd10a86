// Tests of flags, sizes, and the subjects, calls and memory that they imply.
#include "benchmarks/all_reduce/settings.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
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

}  // namespace
}  // namespace lockstep::benchmarks
