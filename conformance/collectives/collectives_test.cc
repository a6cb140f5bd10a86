// Every operation x type x reduction x world size x backend gives, to the bit,
// what the reference gives; and a group with a planted fault does not.
#include <cstdint>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_claims.h"
#include "conformance/collectives/faulty_communicator.h"
#include "conformance/collectives/plant_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const CollectiveBug& bug, std::ostream* out) { *out << bug.bug; }

namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

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
  CollectiveClaims claims(absl::AsciiStrToLower(Name(group.backend)),
                          group.world_size);
  RunRanksOptions options;
  options.group.algorithm = group.algorithm;
  options.group.slot_bytes = group.slot_bytes;
  options.deadline = kDeadline;
  const auto asked = RunRanksCollect(
      group.backend, group.world_size,
      [&](Communicator& communicator) {
        return CheckCollectives(communicator, group.memory);
      },
      options);
  EXPECT_THAT(asked, Each(IsOk()));
  claims.Add(asked);
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesTest, testing::ValuesIn(Groups()),
                         [](const auto& info) { return NameOf(info.param); });

// The controls. Each fault must show on some rank in every case in which it
// can, and be named.
class CollectiveFaultTest : public testing::TestWithParam<CollectiveBug> {};

TEST_P(CollectiveFaultTest, IsRejected) {
  const std::vector<CollectiveCase> cases = CollectiveCases(kFaultyRanks);
  const auto by_case = CheckFaulty(GetParam().fault, cases);
  ASSERT_THAT(by_case, IsOk());
  int shown = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!ShowsIn(GetParam().fault, cases[i])) continue;
    ++shown;
    const auto rejects = [](const auto& message) {
      return Contains(StatusIs(absl::StatusCode::kDataLoss, message));
    };
    const auto check = StartsWith(absl::StrCat(GetParam().check, ": "));
    const auto says = HasSubstr(GetParam().says);
    // A wrong root shows on two ranks: one that does not write its output, and
    // one that should not write.
    if (GetParam().fault == CollectiveFault::kWrongRoot) {
      EXPECT_THAT((*by_case)[i], AllOf(rejects(check), rejects(says)))
          << ToString(cases[i]);
      continue;
    }
    EXPECT_THAT((*by_case)[i], rejects(AllOf(check, says)))
        << ToString(cases[i]);
  }
  EXPECT_GT(shown, 0);
}

TEST(CollectiveFaultsTest, EveryFaultHasACheckAndEveryCheckAFault) {
  std::set<CollectiveFault> faults;
  std::set<std::string> rejecting;
  for (const CollectiveBug& bug : AllCollectiveBugs()) {
    faults.insert(bug.fault);
    rejecting.insert(bug.check);
  }
  EXPECT_EQ(faults, std::set<CollectiveFault>(std::begin(kAllCollectiveFaults),
                                              std::end(kAllCollectiveFaults)));
  const std::vector<std::string> checks = CollectiveChecks();
  EXPECT_EQ(rejecting, std::set<std::string>(checks.begin(), checks.end()));
}

INSTANTIATE_TEST_SUITE_P(Faults, CollectiveFaultTest,
                         testing::ValuesIn(AllCollectiveBugs()),
                         [](const auto& info) {
                           return Name(info.param.fault);
                         });

}  // namespace
}  // namespace lockstep
