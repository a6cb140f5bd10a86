// Injects faults into two hundred groups of each backend and kind of memory. A
// slice has fifty groups, and twenty for `tcp`. In each group a random rank is
// killed, stopped or made to disagree at a random call. Every other rank must
// soon report that cause, and nothing may remain.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/injected_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

constexpr int kRuns = 200;
// Each lot of runs is one test, so that Bazel can shard them.
constexpr int kLots = 20;
constexpr int kMaxCalls = 100000;

CallPlan CallPlanOf(const FaultPlan& plan, int call) {
  std::mt19937 random(plan.seed * 1000003u + static_cast<uint32_t>(call));
  CallPlan result;
  result.operation = static_cast<int>(random() % 8);
  constexpr int64_t kCounts[] = {1, 100, 5000, kMaxCount};
  result.count = kCounts[random() % 4];
  result.op = random() % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMax;
  result.root = static_cast<int>(random() % plan.world_size);
  return result;
}

// Makes the same call with one difference.
absl::Status MakeDifferingCall(Communicator& communicator, CallPlan call,
                               int difference, const CallMemory& memory) {
  switch (difference) {
    case 0:
      ++call.count;
      return MakeCall<float>(communicator, call, memory);
    case 1:
      return MakeCall<int32_t>(communicator, call, memory);
    case 2:
      call.operation = (call.operation + 1) % 8;
      return MakeCall<float>(communicator, call, memory);
    case 3:
      // Another root. If the operation has no root, another operation.
      if (call.operation != 1 && (call.operation < 4 || call.operation > 6)) {
        call.operation = 1;
      }
      call.root = (call.root + 1) % communicator.world_size();
      return MakeCall<float>(communicator, call, memory);
    case 4: {
      // Another order of additions. If the call is not an all-reduce, another
      // operation.
      const CallBuffers<float> b(memory, call.count, communicator.world_size());
      return communicator.Run(
          Collective::UniformAllReduce(Buffer(b.one), call.op));
    }
    default:
      return communicator.Barrier();
  }
}

// Returns the rank's error, after checking how long it took.
absl::Status RunRank(Communicator& communicator, const FaultPlan& plan,
                     Memory memory_kind, SharedTime& struck) {
  const bool is_victim = communicator.rank() == plan.victim;
  LOCKSTEP_ASSIGN_OR_RETURN(const CallMemory memory,
                            CallMemory::Create(communicator, memory_kind));
  LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
  for (int i = 0; i < kMaxCalls; ++i) {
    const CallPlan call = CallPlanOf(plan, i);
    absl::Status status;
    if (is_victim && i == plan.call && plan.fault != Fault::kDisagrees) {
      Strike(plan, struck);
    }
    if (is_victim && i == plan.call && plan.fault == Fault::kDisagrees) {
      struck.Set();
      status = MakeDifferingCall(communicator, call, plan.difference, memory);
    } else {
      status = MakeCall<float>(communicator, call, memory);
    }
    if (!status.ok()) return CheckReport(communicator, plan, struck, status);
  }
  return absl::InternalError("nothing went wrong");
}

using Lot = std::tuple<Backend, Memory, int>;

class FaultInjectionTest : public testing::TestWithParam<Lot> {};

TEST_P(FaultInjectionTest, EveryOtherRankReportsTheCauseAndNothingIsLeft) {
  const auto [backend, memory_kind, number] = GetParam();
  if (!IsBuilt(backend)) GTEST_SKIP() << "built without OpenSSL";
  const Memory memory = memory_kind;
  const int lot = kRuns / kLots;
  for (int run = number * lot; run < (number + 1) * lot; ++run) {
    const FaultPlan plan = PlanOf(static_cast<uint32_t>(run));
    SCOPED_TRACE(ToString(plan));
    ExpectReports(
        backend, plan,
        [&plan, memory](Communicator& c, SharedTime& struck) {
          return RunRank(c, plan, memory, struck);
        },
        IsCause(plan));
  }
}

std::string NameOf(const testing::TestParamInfo<Lot>& p) {
  const auto [backend, memory, number] = p.param;
  return absl::StrCat(Name(backend), memory == Memory::kGroup ? "Group" : "",
                      number);
}
const auto kBothMemories = testing::Values(Memory::kOrdinary, Memory::kGroup);
INSTANTIATE_TEST_SUITE_P(
    Processes, FaultInjectionTest,
    testing::Combine(testing::Values(Backend::kProcesses), kBothMemories,
                     testing::Range(0, IsExhaustive() ? kLots : 5)),
    NameOf);
INSTANTIATE_TEST_SUITE_P(
    Tcp, FaultInjectionTest,
    testing::Combine(testing::Values(Backend::kTcp), kBothMemories,
                     testing::Range(0, IsExhaustive() ? kLots : 2)),
    NameOf);

// The controls, which the checks above must reject.

// Returns rank 0's error if no fault is injected but the last rank leaves. If
// `late`, the last rank leaves after a barrier: the fault then seems to have
// struck long ago.
absl::Status ErrorIfLastRankLeaves(FaultPlan& plan, int world_size, bool late) {
  plan = PlanOf(0);
  plan.world_size = world_size;
  plan.victim = 1;
  plan.call = kMaxCalls;  // No fault strikes.
  return RunRanks(
      Backend::kThreads, world_size, [&](Communicator& communicator) {
        if (communicator.rank() == world_size - 1) {
          return late ? communicator.Barrier() : absl::OkStatus();
        }
        SharedTime struck;
        if (!late) struck.Set();
        return RunRank(communicator, plan, Memory::kOrdinary, struck);
      })[0];
}

TEST(FaultInjectionControlTest, AnotherCauseIsAnotherResult) {
  FaultPlan plan;
  const absl::Status status =
      ErrorIfLastRankLeaves(plan, /*world_size=*/3, /*late=*/false);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               testing::StartsWith("rank 2 left")));
  for (const Fault fault :
       {Fault::kKilled, Fault::kStopped, Fault::kDisagrees}) {
    plan.fault = fault;
    EXPECT_THAT(status, testing::Not(IsCause(plan)));
    EXPECT_THAT(absl::OkStatus(), testing::Not(IsCause(plan)));
  }
}

TEST(FaultInjectionControlTest, ALateReportShows) {
  FaultPlan plan;
  EXPECT_THAT(
      ErrorIfLastRankLeaves(plan, /*world_size=*/2, /*late=*/true),
      StatusIs(absl::StatusCode::kInternal, testing::StartsWith("after ")));
}

TEST(FaultInjectionControlTest, WhatIsLeftShows) {
  const auto before = Traces();
  const int file = memfd_create("left", MFD_CLOEXEC);
  EXPECT_NE(Traces(), before);
  close(file);
  const std::string path = testing::TempDir() + "/left";
  std::fclose(std::fopen(path.c_str(), "w"));
  EXPECT_NE(Traces(), before);
  unlink(path.c_str());
  EXPECT_EQ(Traces(), before);
}

}  // namespace
}  // namespace lockstep::conformance
