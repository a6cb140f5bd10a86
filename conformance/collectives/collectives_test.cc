// Every operation x type x reduction x world size x backend gives, to the bit,
// what the reference gives; and a group with a planted fault does not.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/faulty_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;

constexpr int kWorldSizes[] = {1, 2, 3, 5, 8};

// For thousands of calls of up to 8 ranks on few cores under a sanitizer: that
// of a group that hangs, and no measure of its speed.
constexpr absl::Duration kDeadline = absl::Minutes(5);

struct Group {
  Backend backend;
  Algorithm algorithm;
  Memory memory;
  int world_size;
  int64_t slot_bytes;
};

std::string NameOf(const Group& group) {
  return absl::StrCat(Name(group.backend), "_", Name(group.algorithm), "_",
                      group.memory == Memory::kGroup ? "group" : "ordinary",
                      "_slots", group.slot_bytes, "_P", group.world_size);
}

std::vector<Group> Groups() {
  std::vector<Group> groups;
  for (const int world_size : kWorldSizes) {
    for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
        groups.push_back(
            {backend, algorithm, Memory::kOrdinary, world_size, 1024});
      }
      for (const Memory memory : {Memory::kOrdinary, Memory::kGroup}) {
        groups.push_back(
            {backend, Algorithm::kAuto, memory, world_size, 128 << 10});
      }
    }
    groups.push_back({Backend::kMixed, Algorithm::kAuto, Memory::kGroup,
                      world_size, 128 << 10});
  }
  return groups;
}

class CollectivesTest : public testing::TestWithParam<Group> {};

TEST_P(CollectivesTest, GiveWhatTheReferenceGives) {
  const Group& group = GetParam();
  RunRanksOptions options;
  options.group.algorithm = group.algorithm;
  options.group.slot_bytes = group.slot_bytes;
  options.deadline = kDeadline;
  const auto statuses = RunRanks(
      group.backend, group.world_size,
      [&](Communicator& communicator) {
        return CheckCollectives(communicator, group.memory);
      },
      options);
  EXPECT_THAT(statuses, Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesTest, testing::ValuesIn(Groups()),
                         [](const auto& info) { return NameOf(info.param); });

// The controls. Each fault must show in every case in which it can.
class CollectiveFaultTest : public testing::TestWithParam<CollectiveFault> {};

TEST_P(CollectiveFaultTest, IsRejected) {
  constexpr int kRanks = 3;
  const std::vector<CollectiveCase> cases = CollectiveCases(kRanks);
  // For each case 'x' where this rank's check rejects it, else '.'.
  const auto results = RunRanksCollect(
      Backend::kThreads, kRanks,
      [&](Communicator& real) -> absl::StatusOr<std::string> {
        FaultyCommunicator faulty(real, GetParam());
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<CollectiveChecker> checker,
            CollectiveChecker::Create(faulty, Memory::kOrdinary));
        std::string rejected;
        for (const CollectiveCase& call : cases) {
          const absl::Status status = checker->Check(call);
          if (!status.ok() && status.code() != absl::StatusCode::kDataLoss) {
            return status;
          }
          rejected.push_back(status.ok() ? '.' : 'x');
        }
        return rejected;
      });
  for (const auto& result : results) ASSERT_THAT(result, IsOk());
  int shown = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!ShowsIn(GetParam(), cases[i])) continue;
    ++shown;
    EXPECT_TRUE(std::any_of(results.begin(), results.end(), [&](const auto& r) {
      return (*r)[i] == 'x';
    })) << ToString(cases[i]);
  }
  EXPECT_GT(shown, 0);
}

INSTANTIATE_TEST_SUITE_P(Faults, CollectiveFaultTest,
                         testing::ValuesIn(kAllCollectiveFaults),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
