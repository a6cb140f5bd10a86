// Tests of groups under mpirun: large messages, parts and several groups at
// once, every way to fail, and the effects of threads, a fork and the exit of a
// process.
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
#include <sstream>
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
#include "collectives/groups/create_group.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/run_mpi_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::MatchesRegex;

// The time limit of reports of disagreement and death, which take less than a
// second if ranks get to run. It is longer, for busy machines, and far from any
// timeout here.
constexpr absl::Duration kSoon = absl::Seconds(5);

constexpr AdditionOrder kOrder = AdditionOrder::kBySize;

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

// Splits into even and odd ranks, each in reverse order. The last rank joins no
// group.
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

// Sends large messages in this group's small pieces. Then sends them in a
// second group of the same ranks, whose pieces are larger than MPI copies at
// once.
absl::Status CheckLargeMessages(Communicator& first) {
  const int64_t count = 100'003;
  const std::vector<CheckedCall> calls = {
      {Operation::kAllReduce, DataType::kFloat32, ReduceOp::kSum, count},
      {Operation::kReduceScatter, DataType::kBFloat16, ReduceOp::kSum, count},
      {Operation::kBroadcast, DataType::kFloat64, {}, count},
      {Operation::kAllToAll, DataType::kInt32, {}, count / 8},
      {Operation::kReduce, DataType::kFloat16, ReduceOp::kAverage, 5000,
       /*root=*/0, /*in_place=*/true}};
  LOCKSTEP_ASSIGN_OR_RETURN(const auto second, JoinMpiGroup());
  LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(first, calls, kOrder));
  LOCKSTEP_RETURN_IF_ERROR(
      RunAndCheck(first, Moves(first.world_size()), kOrder));
  LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(*second, calls, kOrder));
  return first.Barrier();
}

class MpiCommunicatorTest : public MpirunTest,
                            public testing::WithParamInterface<int> {};

// Tests groups and their parts; conformance/collectives checks the result of
// each operation.
TEST_P(MpiCommunicatorTest, SeveralGroupsAndTheirPartsGiveTheStatedBits) {
  RunRanksOptions options;
  options.group.slot_bytes = 256;  // Gives messages many pieces.
  EXPECT_THAT(RunMpiRanks(
                  GetParam(),
                  [](Communicator& communicator) {
                    LOCKSTEP_RETURN_IF_ERROR(CheckLargeMessages(communicator));
                    return CheckSplit(communicator);
                  },
                  options),
              Each(IsOk()));
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

// Returns `status` if it came within the limit, which makes a rank's report the
// cause.
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

using Scenario = std::function<absl::Status(Communicator&)>;

// Returns the results of three ranks for each scenario. Each scenario has a
// group of its own in one job. Each rank leaves the group when it is done.
std::vector<std::vector<absl::Status>> RunScenarios(
    const std::vector<Scenario>& scenarios) {
  const auto results = RunMpiRanksCollect(
      3, [&](Communicator& whole) -> absl::StatusOr<std::string> {
        std::string lines;
        for (const Scenario& scenario : scenarios) {
          LOCKSTEP_ASSIGN_OR_RETURN(auto group, JoinMpiGroup());
          const absl::Status status = scenario(*group);
          absl::StrAppend(&lines, static_cast<int>(status.code()), " ",
                          std::string(status.message()), "\n");
          group.reset();
          LOCKSTEP_RETURN_IF_ERROR(whole.Barrier());
        }
        return lines;
      });
  std::vector<std::vector<absl::Status>> statuses(scenarios.size());
  for (const absl::StatusOr<std::string>& result : results) {
    std::istringstream lines(result.value_or(""));
    for (std::vector<absl::Status>& scenario : statuses) {
      std::string code, message;
      std::getline(lines, code, ' ');
      std::getline(lines, message);
      scenario.push_back(
          result.ok()
              ? absl::Status(static_cast<absl::StatusCode>(std::stoi(code)),
                             message)
              : result.status());
    }
  }
  return statuses;
}

// Returns the status of a call after one that failed with `first`. It must have
// the same cause.
absl::Status FailAgain(Communicator& communicator, const absl::Status& first) {
  if (!absl::IsInvalidArgument(first)) return first;
  const absl::Status second = communicator.Barrier();
  return absl::StrContains(std::string(second.message()),
                           std::string(first.message()))
             ? second
             : absl::InternalError(std::string(second.message()));
}

absl::Status AllocateDifferently(Communicator& communicator) {
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
}

absl::Status FailInAPart(Communicator& communicator) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto part, communicator.Split(0, 0));
  const absl::Status failed = AllReduceOf(*part, communicator.rank());
  if (!absl::IsInvalidArgument(failed)) {
    return absl::InternalError(std::string(failed.message()));
  }
  return AllReduceOf(communicator, 100'000);
}

TEST_F(MpiFailureTest, AllRanksSayWhichTwoDisagreeOrWhoIsWrong) {
  const auto statuses = RunScenarios(
      {[](Communicator& c) {
         LOCKSTEP_RETURN_IF_ERROR(c.Barrier());
         return Within(kSoon,
                       [&] { return AllReduceOf(c, c.rank() == 1 ? 5 : 4); });
       },
       [](Communicator& c) {
         return FailAgain(c, c.rank() == 2 ? c.Barrier() : AllReduceOf(c, 4));
       },
       [](Communicator& c) {
         std::vector<float> data(3);
         return c.Broadcast(data, c.rank() == 1 ? 7 : 0);
       },
       [](Communicator& c) {
         if (c.rank() != 0) return c.Barrier();
         const std::vector<float> data(3);
         return Within(kSoon, [&] { return c.Send(data, 1); });
       },
       AllocateDifferently,
       [](Communicator& c) {
         LOCKSTEP_RETURN_IF_ERROR(AllReduceOf(c, 5000));
         if (c.rank() == 1) return absl::OkStatus();
         return Within(kSoon, [&] { return c.Barrier(); });
       },
       FailInAPart,
       [](Communicator& c) {
         return RunAndCheck(c,
                            {{Operation::kAllReduce, DataType::kFloat32,
                              ReduceOp::kSum, 5000}},
                            AdditionOrder::kTree);  // The ring's is right.
       }});
  const auto invalid = [](const testing::Matcher<std::string>& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, text);
  };
  const auto same = [](const std::vector<absl::Status>& all) {
    return Each(all[0]);
  };
  EXPECT_THAT(statuses[0][0],
              invalid(MatchesRegex("ranks disagree on call 2: rank 0 called "
                                   "AllReduce.float32.4., sum. at .*:[0-9]+, "
                                   "rank 1 called AllReduce.float32.5., sum. "
                                   "at .*:[0-9]+")));
  EXPECT_THAT(statuses[0], same(statuses[0]));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(
        statuses[1][rank],
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr(absl::StrCat("rank ", rank,
                                              " called Barrier() at ")),
                       HasSubstr("after the group had failed: ranks disagree "
                                 "on call 1: rank 0 called AllReduce("))));
  }
  EXPECT_THAT(statuses[2][0],
              invalid(AllOf(HasSubstr("rank 1 called Broadcast("),
                            HasSubstr(" but "))));
  EXPECT_THAT(statuses[2], same(statuses[2]));
  EXPECT_THAT(statuses[3][0], invalid(AllOf(HasSubstr("ranks disagree: rank "),
                                            HasSubstr("called Send("),
                                            HasSubstr("called Barrier()"))));
  EXPECT_THAT(statuses[3], same(statuses[3]));
  EXPECT_THAT(statuses[4],
              Each(invalid(MatchesRegex(
                  "ranks disagree on call 4: rank 0 called Allocate.0 bytes. "
                  "at .*, rank 1 called Allocate.1 bytes. at .*"))));
  EXPECT_THAT(statuses[5][1], IsOk());
  EXPECT_THAT(statuses[5][0],
              StatusIs(absl::StatusCode::kUnavailable,
                       MatchesRegex("rank 1 .pid [0-9]+. left the group .seen "
                                    "by rank [02] in call 2, Barrier.*")));
  EXPECT_EQ(statuses[5][2], statuses[5][0]);
  EXPECT_THAT(statuses[6], Each(IsOk()));
  EXPECT_THAT(statuses[7],
              Each(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong"))));
}

// A stopped rank does not keep the others from detecting the disagreement.
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

// With mpirun --enable-recovery the other ranks survive and report.
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

// Other ranks see an exit as they see a rank that leaves, even if no destructor
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

// Tests of the effects of threads, a fork and the exit of a process on its
// groups.
class MpiProcessTest : public MpirunTest {};

// Checks the sums of each part, which another group's messages would change.
absl::Status SplitOften(Communicator& communicator, int64_t base) {
  for (int64_t i = 0; i < 40; ++i) {
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

// Uses a thread for each group, so that their splits overlap.
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

// Writes a file when it is destroyed.
struct Witness {
  ~Witness() {
    if (!path.empty()) std::ofstream(path) << "destroyed";
  }
  std::string path;
};

// Destroyed after the mpi backend's work at the exit, in reverse order.
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

TEST(JoinMpiGroupTest, OutsideAnMpiJobSaysWhatIsMissing) {
  const auto needs_mpirun = StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("the mpi backend needs mpirun"));
  EXPECT_THAT(JoinMpiGroup(), needs_mpirun);
  EXPECT_THAT(CreateGroup("mpi"), needs_mpirun);
}

}  // namespace
}  // namespace lockstep
