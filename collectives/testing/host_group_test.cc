// Tests how the ranks of both host backends join a group, that they leave
// nothing behind, and how groups fail.
#include "collectives/host/host_group.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

// Returns a path that differs in every run, so that an earlier run's files do
// not disturb.
std::string PathOf(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", getpid(), "_", name);
}

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path());
  }
  return names;
}

// Returns the number of mappings of group memory in this process.
int GroupMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:lockstep")) ++count;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinAt(const std::string& path,
                                                     int rank, int world_size) {
  FileRendezvousOptions options;
  options.path = path;
  options.rank = rank;
  options.world_size = world_size;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                            OpenFileRendezvous(options));
  return JoinProcessGroup(*rendezvous);
}

absl::Status SumOfOnes(Communicator& communicator) {
  int64_t one = 1;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span(&one, 1)));
  if (one == communicator.world_size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("sum of ones is ", one));
}

// Uses two groups of the same processes whose first ranks differ.
absl::Status UseInTurn(Communicator& outer, Communicator& inner) {
  int64_t data[2] = {outer.rank(), inner.rank()};
  LOCKSTEP_RETURN_IF_ERROR(outer.Broadcast(std::span(&data[0], 1), 1));
  LOCKSTEP_RETURN_IF_ERROR(inner.Broadcast(std::span(&data[1], 1), 0));
  if (data[0] != 1 || data[1] != 0) {
    return absl::DataLossError("groups are mixed up");
  }
  LOCKSTEP_RETURN_IF_ERROR(SumOfOnes(inner));
  return SumOfOnes(outer);
}

TEST(ProcessGroupTest, TwoHundredGroupsDoNotMixAndLeaveNothing) {
  const std::string path = PathOf("two_hundred");
  const auto shared_before = NamesIn("/dev/shm");
  const auto statuses =
      RunRanks(Backend::kProcesses, 3, [&](Communicator& outer) {
        const auto files = NamesIn("/proc/self/fd");
        const int mappings = GroupMappings();
        for (int i = 0; i < 200; ++i) {
          LOCKSTEP_ASSIGN_OR_RETURN(
              const std::unique_ptr<Communicator> inner,
              JoinAt(path, 2 - outer.rank(), outer.world_size()));
          LOCKSTEP_RETURN_IF_ERROR(UseInTurn(outer, *inner));
        }
        if (NamesIn("/proc/self/fd") != files) {
          return absl::InternalError("files are left open");
        }
        if (GroupMappings() != mappings) {
          return absl::InternalError("memory is left mapped");
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(NamesIn("/dev/shm"), shared_before);
}

// The control of the test above: the mapping that it looks for exists while a
// group does.
TEST(ProcessGroupTest, GroupHoldsAMapping) {
  const auto statuses = RunRanks(Backend::kProcesses, 2, [](Communicator&) {
    return GroupMappings() == 1 ? absl::OkStatus()
                                : absl::InternalError("no mapping");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A rendezvous whose other rank answers `answer`.
class FakeRendezvous : public Rendezvous {
 public:
  explicit FakeRendezvous(std::string answer) : answer_(std::move(answer)) {}
  int rank() const override { return 1; }
  int world_size() const override { return 2; }
  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    return std::vector<std::string>{answer_, std::string(blob)};
  }

 private:
  const std::string answer_;
};

TEST(ProcessGroupTest, RankZeroThatSpeaksAnotherLanguageIsNamed) {
  for (const std::string answer : {"", "hello", "0 ", "0 x y z", "0 1 2"}) {
    FakeRendezvous rendezvous(answer);
    EXPECT_THAT(JoinProcessGroup(rendezvous),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 0 did not come to form this group"))
        << answer;
  }
}

TEST(ProcessGroupTest, MemoryThatIsNotAGroups) {
  const std::string path = PathOf("not_memory");
  std::ofstream(path) << std::string(100000, 'x');
  FakeRendezvous rendezvous(absl::StrCat("0 1 2 ", path));
  EXPECT_THAT(JoinProcessGroup(rendezvous),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is not a group's memory")));
  FakeRendezvous missing("0 1 2 /proc/self/fd/9999");
  EXPECT_THAT(JoinProcessGroup(missing),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("/proc/self/fd/9999")));
}

// Tests how groups of both backends fail: which rank an error names, the error
// of every rank, and that no rank waits for long.

// The time limit of an error that does not wait for the deadline. Such an error
// comes long before, on a busy machine too. The deadline of these groups is 60
// s.
constexpr absl::Duration kSoon = absl::Seconds(10);

absl::Status AllReduce(Communicator& communicator, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  return communicator.AllReduce(data);
}

absl::Status Broadcast(Communicator& communicator, size_t size, int root) {
  std::vector<std::byte> data(size);
  return communicator.Broadcast(data, root);
}

using CallFn = std::function<absl::Status(Communicator&)>;

CallFn Making(const Collective& call) {
  return [&call](Communicator& communicator) { return communicator.Run(call); };
}

class GroupMemberTest : public testing::TestWithParam<Backend> {
 protected:
  // Returns three ranks' results of a second call, in which rank 2 makes a
  // different call. Each rank also checks that it gets the error once and that
  // the group stays failed.
  std::vector<absl::Status> Disagree(const CallFn& call, const CallFn& other) {
    return RunRanks(GetParam(), 3, [&](Communicator& communicator) {
      LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
      absl::Status status =
          communicator.rank() == 2 ? other(communicator) : call(communicator);
      for (int i = 0; i < 2; ++i) {
        const absl::Status later = communicator.Barrier();
        if (later.code() != absl::StatusCode::kFailedPrecondition ||
            !absl::StrContains(later.message(), status.message())) {
          return later;
        }
      }
      return status;
    });
  }

  // Buffers for calls that end before any data moves.
  std::vector<float> floats_ = std::vector<float>(11);
  std::vector<int64_t> int64s_ = std::vector<int64_t>(10);
  std::vector<std::byte> bytes_ = std::vector<std::byte>(12);
  const Buffer ten_floats_ = Buffer(floats_).Part(0, 10);
  const Buffer five_bytes_ = Buffer(bytes_).Part(0, 5);
  const std::vector<std::byte> four_bytes_ = std::vector<std::byte>(4);
};

// Not in a macro, because all arguments of a macro have the same line.
TEST_P(GroupMemberTest, DisagreementNamesTheTwoPlacesInTheSource) {
  const int first = __LINE__ + 1;
  const auto call = [](Communicator& c) { return c.Barrier(); };
  const auto other = [](Communicator& c) { return c.Broadcast({}, 1); };
  EXPECT_THAT(
      Disagree(call, other),
      Each(StatusIs(
          absl::StatusCode::kInvalidArgument,
          absl::StrCat("ranks disagree on call 2: rank 0 called Barrier() at "
                       "collectives/testing/host_group_test.cc:",
                       first,
                       ", rank 2 called Broadcast(uint8[0], root 1) at "
                       "collectives/testing/host_group_test.cc:",
                       first + 1))));
}

TEST_P(GroupMemberTest, RanksDisagree) {
  const Collective sum = Collective::AllReduce(ten_floats_);
  const struct {
    Collective call;
    std::string name;
    Collective other;
    std::string other_name;
  } kCases[] = {
      {sum, "AllReduce(float32[10], sum)", Collective::Barrier(), "Barrier()"},
      {sum, "AllReduce(float32[10], sum)", Collective::AllReduce(floats_),
       "AllReduce(float32[11], sum)"},
      {sum, "AllReduce(float32[10], sum)", Collective::AllReduce(int64s_),
       "AllReduce(int64[10], sum)"},
      {sum, "AllReduce(float32[10], sum)",
       Collective::AllReduce(ten_floats_, ReduceOp::kMax),
       "AllReduce(float32[10], max)"},
      {Collective::Broadcast(five_bytes_, 0), "Broadcast(uint8[5], root 0)",
       Collective::Broadcast(five_bytes_, 1), "Broadcast(uint8[5], root 1)"},
      {Collective::AllGather(four_bytes_, bytes_), "AllGather(uint8[4])",
       Collective::AllGather({}, {}), "AllGather(uint8[0])"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(
        Disagree(Making(test.call), Making(test.other)),
        Each(StatusIs(
            absl::StatusCode::kInvalidArgument,
            AllOf(StartsWith(absl::StrCat("ranks disagree on call 2: rank 0 "
                                          "called ",
                                          test.name, " at collectives/")),
                  HasSubstr(absl::StrCat(", rank 2 called ", test.other_name,
                                         " at collectives/"))))));
  }
}

TEST_P(GroupMemberTest, PartnersDisagree) {
  const auto ten = std::span(floats_).first(10);
  const CallFn send = [&](Communicator& c) {
    return c.Send(ten, 1 - c.rank());
  };
  const CallFn receive = [&](Communicator& c) {
    return c.Receive(ten, 1 - c.rank());
  };
  const auto run = [&](const CallFn& first, const CallFn& second) {
    return RunRanks(GetParam(), 2, [&](Communicator& communicator) {
      return communicator.rank() == 0 ? first(communicator)
                                      : second(communicator);
    });
  };
  EXPECT_THAT(
      run(send, [&](Communicator& c) { return c.Receive(floats_, 0); }),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("rank 0 called Send(float32[10], to rank 1"
                                    ") at collectives/testing/"),
                          HasSubstr("rank 1 called Receive(float32[11], from "
                                    "rank 0) at collectives/testing/")))));
  for (const CallFn& both : {send, receive}) {
    EXPECT_THAT(run(both, both),
                Each(StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("ranks disagree: rank 0 called "))));
  }
}

// Ranks 0 and 1 wait for rank 2, which waits only for rank 1.
TEST_P(GroupMemberTest, RankThatSendsWhileTheOthersCallTogether) {
  EXPECT_THAT(Disagree([](Communicator& c) { return c.Barrier(); },
                       [](Communicator& c) {
                         const std::vector<float> data(1000000);
                         return c.Send(data, 1);
                       }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("Send(float32[1000000], to rank 1)"))));
}

TEST_P(GroupMemberTest, ArgumentsThatAreWrongOnOneRankAreNamedByAll) {
  // The other ranks' calls match this one in all compared fields, or differ
  // only in the root.
  const Collective broadcast = Collective::Broadcast(five_bytes_, 0);
  const Collective all_gather = Collective::AllGather(four_bytes_, bytes_);
  const Buffer all(bytes_);
  const struct {
    Collective good;
    Collective call;
    std::string name;
    std::string why;
  } kCases[] = {
      {broadcast, Collective::Broadcast(five_bytes_, -1),
       "Broadcast(uint8[5], root -1)", "the root is outside [0, 3)"},
      {broadcast, Collective::Broadcast(five_bytes_, 3),
       "Broadcast(uint8[5], root 3)", "the root is outside [0, 3)"},
      {all_gather, Collective::AllGather(four_bytes_, all.Part(0, 11)),
       "AllGather(uint8[4])", "its output has 11 elements in place of 3 * 4"},
      {all_gather, Collective::AllGather(all.Part(7, 4), all),
       "AllGather(uint8[4])",
       "its input and output overlap elsewhere than in place"}};
  for (const auto& test : kCases) {
    EXPECT_THAT(
        Disagree(Making(test.good), Making(test.call)),
        Each(StatusIs(absl::StatusCode::kInvalidArgument,
                      AllOf(StartsWith(absl::StrCat("rank 2 called ", test.name,
                                                    " at collectives/")),
                            EndsWith(absl::StrCat(" but ", test.why))))));
  }
}

TEST_P(GroupMemberTest, RankThatLeavesIsNamed) {
  const auto start = std::chrono::steady_clock::now();
  const auto statuses = RunRanks(GetParam(), 3, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 1) return absl::OkStatus();
    return AllReduce(communicator, 1000);
  });
  EXPECT_LT(absl::FromChrono(std::chrono::steady_clock::now() - start), kSoon);
  EXPECT_THAT(statuses[1], IsOk());
  const auto names_rank_1 =
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(MatchesRegex("rank 1( .pid [0-9]+.)? left the group .*"),
                     HasSubstr("in call 2, AllReduce(float32[1000], sum)")));
  EXPECT_THAT(statuses[0], names_rank_1);
  EXPECT_EQ(statuses[2], statuses[0]);
}

// Ranks leave right after a call whose data others still wait for.
TEST_P(GroupMemberTest, LeavingInGoodOrderIsNoError) {
  for (int round = 0; round < 20; ++round) {
    RunRanksOptions options;
    options.group.slot_bytes = 64;
    const auto statuses = RunRanks(
        GetParam(), 4,
        [](Communicator& communicator) {
          return Broadcast(communicator, 1500, 1);
        },
        options);
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST_P(GroupMemberTest, RankThatDoesNotComeIsNamedAtTheDeadline) {
  RunRanksOptions options;
  options.group.timeout = absl::Milliseconds(100);
  std::promise<void> others_gave_up;
  const auto statuses = RunRanks(
      GetParam(), 2,
      [&](Communicator& communicator) {
        if (communicator.rank() == 0) {
          absl::Status status = communicator.Barrier();
          others_gave_up.set_value();
          return status;
        }
        if (GetParam() == Backend::kProcesses) raise(SIGSTOP);
        others_gave_up.get_future().wait_for(std::chrono::seconds(30));
        return communicator.Barrier();  // Returns the error of the meantime.
      },
      options);
  EXPECT_THAT(
      statuses[0],
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               MatchesRegex("rank 1( .pid [0-9]+.)? did not come within 100ms "
                            ".seen by rank 0 in call 1, Barrier.. at .*")));
  if (GetParam() == Backend::kThreads) {
    EXPECT_EQ(statuses[1], statuses[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GroupMemberTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

// Tests the error after a signal hits a rank just before a call.
// (conformance/collectives/fault_injection_test tests all other times.)
TEST(GroupMemberProcessesTest, KilledOrStoppedRankIsNamed) {
  const auto strike = [](int signal, int at) {
    RunRanksOptions options;
    if (signal == SIGSTOP) options.group.timeout = absl::Milliseconds(500);
    const auto statuses = RunRanks(
        Backend::kProcesses, 4,
        [&](Communicator& communicator) {
          for (int call = 1; call < 10; ++call) {
            if (communicator.rank() == 2 && call == at) raise(signal);
            LOCKSTEP_RETURN_IF_ERROR(AllReduce(communicator, 100));
          }
          return absl::OkStatus();
        },
        options);
    EXPECT_EQ(statuses[0], statuses[3]);
    EXPECT_EQ(statuses[1], statuses[3]);
    return statuses[3];
  };
  for (const int at : {1, 2, 7}) {
    const auto place = HasSubstr(absl::StrCat("in call ", at, ", AllReduce"));
    EXPECT_THAT(
        strike(SIGKILL, at),
        StatusIs(absl::StatusCode::kUnavailable,
                 AllOf(MatchesRegex("rank 2 .pid [0-9]+. died .*"), place)));
    if (at == 7) continue;
    EXPECT_THAT(
        strike(SIGSTOP, at),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(MatchesRegex(
                           "rank 2 .pid [0-9]+. did not come within 500ms .*"),
                       place)));
  }
}

}  // namespace
}  // namespace lockstep
