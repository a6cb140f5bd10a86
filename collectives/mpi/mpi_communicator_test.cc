// Groups under mpirun: the bits of every operation, every way to fail, and what
// threads, a fork and the exit of a process do to them.
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/testing/mpirun.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

// Disagreement and death are reported within a second where ranks get to run;
// more, for machines that are busy, and far from any timeout here.
constexpr absl::Duration kSoon = absl::Seconds(5);

constexpr AdditionOrder kOrder = AdditionOrder::kBySize;

std::vector<CheckedCall> Reductions() {
  std::vector<CheckedCall> calls;
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduce, Operation::kReduceScatter}) {
    for (const DataType type : kAllDataTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        calls.push_back({operation, type, op, /*count=*/19});
      }
    }
    for (const int64_t count : {0, 1, 203, 5000}) {
      for (const bool in_place : {false, true}) {
        calls.push_back({operation, DataType::kFloat32, ReduceOp::kSum, count,
                         0, in_place});
        calls.push_back({operation, DataType::kFloat16, ReduceOp::kAverage,
                         count, 0, in_place});
      }
    }
  }
  return calls;
}

std::vector<CheckedCall> Moves(int world_size) {
  std::vector<CheckedCall> calls;
  for (const DataType type : {DataType::kInt64, DataType::kUInt8}) {
    for (const int64_t count : {0, 1, 37, 2000}) {
      for (const Operation operation :
           {Operation::kAllGather, Operation::kBroadcast, Operation::kScatter,
            Operation::kGather, Operation::kAllToAll, Operation::kSend}) {
        calls.push_back({operation, type, {}, count, world_size - 1});
      }
    }
  }
  CheckedCall unequal = {Operation::kAllGather, DataType::kFloat64};
  for (int rank = 0; rank < world_size; ++rank) {
    unequal.counts.push_back(rank * 50);
  }
  calls.push_back(unequal);
  return calls;
}

class MpirunTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoMpirun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

class MpiCommunicatorTest : public MpirunTest,
                            public testing::WithParamInterface<int> {
 protected:
  int world_size() const { return GetParam(); }
};

TEST_P(MpiCommunicatorTest, EveryOperationGivesTheStatedBits) {
  RunRanksOptions options;
  options.group.slot_bytes = 256;  // So that messages have many pieces.
  EXPECT_THAT(RunMpiRanks(
                  world_size(),
                  [&](Communicator& communicator) {
                    LOCKSTEP_RETURN_IF_ERROR(
                        RunAndCheck(communicator, Reductions(), kOrder));
                    return RunAndCheck(communicator, Moves(world_size()),
                                       kOrder);
                  },
                  options),
              Each(IsOk()));
}

// Pieces beyond what MPI copies at once, in a second group of the same ranks.
TEST_P(MpiCommunicatorTest, LargeMessagesAndSeveralGroupsGiveTheStatedBits) {
  const int64_t count = 300'007;
  const std::vector<CheckedCall> calls = {
      {Operation::kAllReduce, DataType::kFloat32, ReduceOp::kSum, count},
      {Operation::kReduceScatter, DataType::kBFloat16, ReduceOp::kSum, count},
      {Operation::kBroadcast, DataType::kFloat64, {}, count},
      {Operation::kAllToAll, DataType::kInt32, {}, count / 8}};
  EXPECT_THAT(
      RunMpiRanks(
          world_size(),
          [&](Communicator& first) -> absl::Status {
            LOCKSTEP_ASSIGN_OR_RETURN(const auto second, JoinMpiGroup());
            LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(first, calls, kOrder));
            LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(*second, calls, kOrder));
            return first.Barrier();
          }),
      Each(IsOk()));
}

// Even and odd ranks apart, each in reverse, the last rank in none.
absl::Status CheckSplit(Communicator& communicator) {
  const int rank = communicator.rank();
  const int last = communicator.world_size() - 1;
  const int color = rank == last && last > 0 ? -1 : rank % 2;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto part, communicator.Split(color, -rank));
  if (color < 0) {
    return part == nullptr ? communicator.Barrier()
                           : absl::DataLossError("joined with color -1");
  }
  const int members = last > 0 ? (last - color + 1) / 2 : 1;
  if (part->world_size() != members || part->rank() != members - 1 - rank / 2) {
    return absl::DataLossError(
        absl::StrCat("rank ", part->rank(), " of ", part->world_size()));
  }
  LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(*part, Moves(members), kOrder));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto again, part->Split(0, rank));
  LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(*again, Moves(members), kOrder));
  return communicator.Barrier();
}

TEST_P(MpiCommunicatorTest, SplitsIntoIndependentGroups) {
  EXPECT_THAT(RunMpiRanks(world_size(), CheckSplit), Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, MpiCommunicatorTest,
                         testing::Values(1, 2, 3, 5, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

class MpiFailureTest : public MpirunTest {};

absl::Status AllReduceOf(Communicator& communicator, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1);
  return communicator.AllReduce(data);
}

// `status` if it came soon; what a rank reports, then, is the cause.
absl::Status Within(absl::Duration limit,
                    const std::function<absl::Status()>& call) {
  const absl::Time start = absl::Now();
  const absl::Status status = call();
  const absl::Duration took = absl::Now() - start;
  return took <= limit ? status
                       : absl::InternalError(
                             absl::StrCat("took ", absl::FormatDuration(took),
                                          ": ", std::string(status.message())));
}

TEST_F(MpiFailureTest, CheckRejectsWrongResults) {
  const CheckedCall call = {Operation::kAllReduce, DataType::kFloat32,
                            ReduceOp::kSum, 5000};
  const auto statuses = RunMpiRanks(3, [&](Communicator& communicator) {
    return RunAndCheck(communicator, {call}, AdditionOrder::kTree);
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong"))));
}

TEST_F(MpiFailureTest, AllocateGivesZeroedMemoryOfTheAgreedSize) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    auto buffer = communicator.Allocate(4096);
    LOCKSTEP_RETURN_IF_ERROR(buffer.status());
    for (const std::byte byte : buffer->bytes()) {
      if (byte != std::byte{0}) return absl::DataLossError("not zeroed");
    }
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(buffer->as<float>()));
    auto too_much = communicator.Allocate(int64_t{1} << 60);
    if (!absl::IsResourceExhausted(too_much.status())) {
      return absl::InternalError(std::string(too_much.status().message()));
    }
    return communicator.Allocate(communicator.rank()).status();
  });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    MatchesRegex("ranks disagree on call 4: rank 0 called "
                                 "Allocate.0 bytes. at .*, rank 1 called "
                                 "Allocate.1 bytes. at .*"))));
}

TEST_F(MpiFailureTest, DisagreementIsReportedByAllWithBothCallSites) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    return Within(kSoon, [&] {
      return AllReduceOf(communicator, communicator.rank() == 1 ? 5 : 4);
    });
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       MatchesRegex("ranks disagree on call 2: rank 0 called "
                                    "AllReduce.float32.4., sum. at .*:[0-9]+, "
                                    "rank 1 called AllReduce.float32.5., sum. "
                                    "at .*:[0-9]+")));
  EXPECT_THAT(statuses, Each(statuses[0]));
}

TEST_F(MpiFailureTest, LaterCallsFailAtOnceWithTheFirstCause) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    const absl::Status first = communicator.rank() == 2
                                   ? communicator.Barrier()
                                   : AllReduceOf(communicator, 4);
    if (!absl::IsInvalidArgument(first)) return first;
    const absl::Status second = communicator.Barrier();
    return absl::StrContains(std::string(second.message()),
                             std::string(first.message()))
               ? second
               : absl::InternalError(std::string(second.message()));
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(
        statuses[rank],
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr(absl::StrCat("rank ", rank,
                                              " called Barrier() at ")),
                       HasSubstr("after the group had failed: ranks disagree "
                                 "on call 1: rank 0 called AllReduce("))));
  }
}

// A rank that is stopped does not keep the others from finding out.
TEST_F(MpiFailureTest, TwoRanksDisagreeWhileAThirdDoesNotCome) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 1) raise(SIGSTOP);
    return Within(kSoon, [&] {
      return communicator.rank() == 0 ? communicator.Barrier()
                                      : AllReduceOf(communicator, 4);
    });
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("ranks disagree on call 2: rank 0"),
                             HasSubstr("rank 2 called AllReduce"))));
  EXPECT_EQ(statuses[2], statuses[0]);
}

TEST_F(MpiFailureTest, WrongArgumentsOfOneRankAreReportedByAll) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    std::vector<float> data(3);
    return communicator.Broadcast(data, communicator.rank() == 1 ? 7 : 0);
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("rank 1 called Broadcast("),
                                          HasSubstr(" but "))));
  EXPECT_EQ(statuses[1], statuses[0]);
}

TEST_F(MpiFailureTest, SendToARankInACallOfAllIsReportedByBoth) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    if (communicator.rank() != 0) return communicator.Barrier();
    const std::vector<float> data(3);
    return Within(kSoon, [&] { return communicator.Send(data, 1); });
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("ranks disagree: rank "),
                                          HasSubstr("called Send("),
                                          HasSubstr("called Barrier()"))));
  EXPECT_THAT(statuses, Each(statuses[0]));
}

TEST_F(MpiFailureTest, StoppedRankIsNamedAtTheDeadline) {
  RunRanksOptions options;
  options.group.timeout = absl::Seconds(1);
  const auto statuses = RunMpiRanks(
      4,
      [](Communicator& communicator) {
        for (int call = 1; call <= 5; ++call) {
          if (communicator.rank() == 2 && call == 3) raise(SIGSTOP);
          const absl::Status status =
              Within(kSoon, [&] { return AllReduceOf(communicator, 9); });
          if (!status.ok()) return status;
        }
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       MatchesRegex("rank 2 .pid [0-9]+. did not come within "
                                    "1s .seen by rank [013] in call 3, "
                                    "AllReduce.*")));
  EXPECT_EQ(statuses[1], statuses[0]);
  EXPECT_EQ(statuses[3], statuses[0]);
}

// mpirun --enable-recovery lets the others live to tell.
TEST_F(MpiFailureTest, KilledRankIsNamedAtOnce) {
  const auto statuses = RunMpiRanks(4, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 2) raise(SIGKILL);
    return Within(kSoon, [&] { return AllReduceOf(communicator, 9); });
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable,
                       MatchesRegex("rank 2 .pid [0-9]+. died .seen by rank "
                                    "[013] in call 2, AllReduce.*")));
  EXPECT_EQ(statuses[1], statuses[0]);
  EXPECT_EQ(statuses[3], statuses[0]);
}

TEST_F(MpiFailureTest, RankThatLeavesIsNamedAtOnce) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(AllReduceOf(communicator, 5000));
    if (communicator.rank() == 1) return absl::OkStatus();
    return Within(kSoon, [&] { return communicator.Barrier(); });
  });
  EXPECT_THAT(statuses[1], IsOk());
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable,
                       MatchesRegex("rank 1 .pid [0-9]+. left the group .seen "
                                    "by rank [02] in call 2, Barrier.*")));
  EXPECT_EQ(statuses[2], statuses[0]);
}

// Others learn of an exit as of a rank that leaves, also where no destructor
// runs.
TEST_F(MpiFailureTest, RankThatExitsInsideTheGroupIsNamedAtOnce) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 1) std::exit(1);
    return Within(kSoon, [&] { return communicator.Barrier(); });
  });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kUnavailable,
                       MatchesRegex("rank 1 .pid [0-9]+. left the group .*")));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("ended without a result")));
  EXPECT_EQ(statuses[2], statuses[0]);
}

TEST_F(MpiFailureTest, AFailedPartLeavesTheWholeGroupAlone) {
  const auto statuses =
      RunMpiRanks(2, [](Communicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto part, communicator.Split(0, 0));
        const absl::Status failed = AllReduceOf(*part, communicator.rank());
        if (!absl::IsInvalidArgument(failed)) {
          return absl::InternalError(std::string(failed.message()));
        }
        return AllReduceOf(communicator, 100'000);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// What threads, a fork and the exit of a process do to its groups.
class MpiProcessTest : public MpirunTest {};

// Each part's sums, which another group's messages would change.
absl::Status SplitOften(Communicator& communicator, int64_t base) {
  for (int64_t i = 0; i < 100; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto part, communicator.Split(0, 0));
    std::vector<int64_t> data(200, base + i);
    LOCKSTEP_RETURN_IF_ERROR(part->AllReduce(std::span(data)));
    const int64_t sum = (base + i) * part->world_size();
    if (data != std::vector<int64_t>(data.size(), sum)) {
      return absl::DataLossError(
          absl::StrCat("split ", i, ": ", data[0], " instead of ", sum));
    }
  }
  return absl::OkStatus();
}

// A thread for each group, so that their splits overlap.
absl::Status SplitGroupsAtOnce(Communicator& first) {
  constexpr size_t kGroups = 6;
  std::vector<std::unique_ptr<Communicator>> groups(kGroups);
  for (auto& group : groups) {
    LOCKSTEP_ASSIGN_OR_RETURN(group, JoinMpiGroup());
  }
  LOCKSTEP_RETURN_IF_ERROR(first.Barrier());
  std::vector<absl::Status> statuses(kGroups);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kGroups; ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = SplitOften(*groups[i], static_cast<int64_t>(i) << 20);
    });
  }
  absl::Status status;
  for (size_t i = 0; i < kGroups; ++i) {
    threads[i].join();
    status.Update(statuses[i]);
  }
  return status;
}

TEST_F(MpiProcessTest, SplitsGroupsOfTheSameRanksAtOnce) {
  EXPECT_THAT(RunMpiRanks(2, SplitGroupsAtOnce), Each(IsOk()));
}

TEST_F(MpiProcessTest, ForkedChildThatExitsDoesNotSpeakForItsRank) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) std::exit(0);
      int result = -1;
      if (child < 0 || waitpid(child, &result, 0) != child || result != 0) {
        return absl::InternalError(absl::StrCat("the child: ", result));
      }
    }
    return communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Writes a file as it is destroyed.
struct Witness {
  ~Witness() {
    if (!path.empty()) std::ofstream(path) << "destroyed";
  }
  std::string path;
};

// Destroyed after what the mpi backend does at the exit, the last one first.
Witness at_the_end;
std::unique_ptr<Communicator> kept_to_the_end;

TEST_F(MpiProcessTest, GroupOfStaticStorageMayOutliveMpi) {
  const auto path = [](int rank) {
    return absl::StrCat(testing::TempDir(), "/destroyed.", rank);
  };
  const auto statuses =
      RunMpiRanks(2, [&](Communicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(kept_to_the_end, JoinMpiGroup());
        at_the_end.path = path(communicator.rank());
        return kept_to_the_end->Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(std::filesystem::remove(path(rank))) << path(rank);
  }
}

// What the other tests get from ranks under mpirun, also from those that end
// badly.

absl::StatusOr<std::string> Describe(Communicator& communicator) {
  return absl::StrCat(communicator.rank(), " of ", communicator.world_size());
}

TEST_F(MpirunTest, CollectsWhatEachRankReturned) {
  EXPECT_THAT(RunMpiRanksCollect(2, Describe),
              ElementsAre(IsOkAndHolds("0 of 2"), IsOkAndHolds("1 of 2")));
}

TEST_F(MpirunTest, RunsLaterCallsOfABodyWithTheEarlierResults) {
  const auto first = RunMpiRanksCollect(1, Describe);
  ASSERT_THAT(first, ElementsAre(IsOkAndHolds("0 of 1")));
  EXPECT_THAT(
      RunMpiRanksCollect(
          2, [&](Communicator&) { return absl::StrCat("after ", *first[0]); }),
      ElementsAre(IsOkAndHolds("after 0 of 1"), IsOkAndHolds("after 0 of 1")));
}

TEST_F(MpirunTest, ReportsErrorsAndDeaths) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    if (communicator.rank() == 2) return absl::NotFoundError("its own");
    return absl::OkStatus();
  });
  EXPECT_THAT(
      statuses,
      ElementsAre(IsOk(),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("rank 1 ended without a result")),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("its own"))));
}

TEST_F(MpirunTest, LeavesNoFiles) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0], IsOk());
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("mpirun-")));
  }
}

TEST(JoinMpiGroupTest, OutsideAnMpiJobSaysWhatIsMissing) {
  const auto needs_mpirun = StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("the mpi backend needs mpirun"));
  EXPECT_THAT(JoinMpiGroup(), needs_mpirun);
  EXPECT_THAT(CreateGroup("mpi"), needs_mpirun);
}

}  // namespace
}  // namespace lockstep
