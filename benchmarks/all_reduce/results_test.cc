// Tests of the order of turns, and of the formulas.
#include "benchmarks/all_reduce/results.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

// Checks nccl-tests' definitions, the number of messages in each bound, and the
// bytes that the updates moved, which are twice as many out of place.
TEST(DeriveSizeTest, KnowsEveryCollective) {
  struct Case {
    Operation operation;
    bool in_place;
    double bus_factor, bound, updated;
    int64_t count;
  };
  constexpr int64_t kBytes = 8 << 20;
  const Case cases[] = {
      {Operation::kAllReduce, true, 1.5, 8, 8, kBytes / 4},
      {Operation::kAllReduce, false, 1.5, 8, 16, kBytes / 4},
      {Operation::kReduceScatter, true, 0.75, 5, 8, kBytes / 16},
      {Operation::kAllGather, true, 0.75, 4, 8, kBytes / 16},
      {Operation::kAllGather, false, 0.75, 5, 16, kBytes / 16},
      {Operation::kBroadcast, true, 1, 4, 8, kBytes / 4},
      {Operation::kAllToAll, true, 0.75, 8, 16, kBytes / 16}};
  for (const Case& c : cases) {
    const AllReduceSize size =
        DeriveSize({.world_size = 4, .in_place = c.in_place},
                   {.operation = c.operation,
                    .bytes = kBytes,
                    .rows = {{{{TeamKind::kProcesses}}, {1.0}, 0},
                             {{{TeamKind::kUpdate}}, {1.0}, 0}}});
    SCOPED_TRACE(CollectiveName(c.operation));
    EXPECT_DOUBLE_EQ(size.rows[0].alg_bw, kBytes);
    EXPECT_DOUBLE_EQ(size.rows[0].bus_bw, kBytes * c.bus_factor);
    EXPECT_DOUBLE_EQ(size.update_bw, kBytes * c.updated);
    EXPECT_DOUBLE_EQ(*size.bound_seconds, c.bound / c.updated);
    EXPECT_EQ(size.count, c.count);
  }
  EXPECT_EQ(BusFactor(Operation::kAllReduce, 1), 0);
  EXPECT_EQ(BusFactor(Operation::kAllReduce, 2), 1);
}

// The p50 of the exchange bounds small messages, and no update does.
TEST(DeriveSizeTest, BoundsSmallMessagesByAnExchange) {
  AllReduceSize measured = {
      .bytes = kSmallestWithBound - 4,
      .rows = {{{{TeamKind::kProcesses}}, {4.0}, 0},
               {{{TeamKind::kUpdate}}, {1e-9}, 2},
               {{{TeamKind::kExchange}}, {0.1, 3.0, 9.0}, 5}}};
  const AllReduceSize size = DeriveSize({.world_size = 2}, measured);
  ASSERT_EQ(size.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(*size.bound_seconds, 3);
  EXPECT_DOUBLE_EQ(*size.rows[0].bound_fraction, 0.75);
  EXPECT_EQ(size.control_wrong, 7);
}

TEST(DeriveSizeTest, GivesNoBoundForSmallMessagesOrOneRank) {
  AllReduceSettings settings;
  AllReduceSize measured = {.bytes = kSmallestWithBound - 4,
                            .rows = {{{{TeamKind::kThreads}}, {1.0}, 0},
                                     {{{TeamKind::kUpdate}}, {1.0}, 0}}};
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
  EXPECT_FALSE(
      DeriveSize(settings, measured).rows[0].bound_fraction.has_value());
  measured.bytes = kSmallestWithBound;
  EXPECT_TRUE(DeriveSize(settings, measured).bound_seconds.has_value());
  settings.world_size = 1;
  EXPECT_FALSE(DeriveSize(settings, measured).bound_seconds.has_value());
}

}  // namespace
}  // namespace lockstep::benchmarks
