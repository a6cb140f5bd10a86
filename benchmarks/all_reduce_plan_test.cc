// Flags, sizes, and what follows from settings.
#include "benchmarks/all_reduce_plan.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
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

}  // namespace
}  // namespace lockstep
