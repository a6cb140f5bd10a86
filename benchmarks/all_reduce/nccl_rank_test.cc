// Tests of ranks that take turns on GPUs. Linked with the stand-in, the test
// needs no GPU. With CUDA and NCCL, it runs on the GPUs of the machine. Two
// ranks share a GPU if there is only one.
#include "benchmarks/all_reduce/nccl_rank.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"

// Allocations that fail return null, so that the code under test reports them.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
#endif

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kRanks = 2;

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

using Turns = std::vector<AllReduceTurn>;

// Returns rank 0's turns for all requests, followed by rank 1's. Empty without
// a GPU; the test is then skipped. changed: called on rank 1 to change each
// request.
Turns Take(const Team& team, const std::vector<TurnRequest>& requests,
           [[maybe_unused]] int devices = kRanks,
           const std::function<void(TurnRequest&)>& changed = nullptr) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::SetDevices({.count = devices});
#endif
  const auto run = [&](Communicator& host) -> absl::StatusOr<std::string> {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TurnTaker> taker,
                              CreateNcclRank(host, team, host.rank()));
    Turns turns;
    for (TurnRequest request : requests) {
      if (changed != nullptr && host.rank() == 1) changed(request);
      LOCKSTEP_ASSIGN_OR_RETURN(AllReduceTurn turn, taker->Take(request));
      turns.push_back(std::move(turn));
    }
    return Encode(turns);
  };
  Turns all;
  for (const absl::StatusOr<std::string>& bytes :
       RunRanksCollect(kBackend, kRanks, run)) {
    if (absl::StartsWith(bytes.status().message(), "no GPU: ") &&
        !GpusRequired()) {
      return {};
    }
    EXPECT_THAT(bytes, IsOk());
    if (!bytes.ok()) continue;
    const absl::StatusOr<Turns> turns = Decode<Turns>(*bytes);
    EXPECT_THAT(turns, IsOk());
    if (turns.ok()) all.insert(all.end(), turns->begin(), turns->end());
  }
  return all;
}

TurnRequest Request(Operation operation, bool in_place,
                    BufferKind buffers = BufferKind::kOrdinary) {
  return {.operation = operation,
          .type = DataType::kFloat32,
          .buffers = buffers,
          .in_place = in_place,
          .count = 5000,
          .warmup = 8,
          .iterations = 3,
          .first = 7};
}

class NcclRankTest : public testing::TestWithParam<Team> {
 protected:
  // Returns a request for every collective of the team, in place and out of
  // place where allowed, in each kind of memory that the team supports.
  static std::vector<TurnRequest> Requests() {
    const bool peer = IsPeer(GetParam().kind);
    std::vector<TurnRequest> requests;
    for (const BufferKind buffers :
         {BufferKind::kOrdinary, BufferKind::kGroup}) {
      if (peer && buffers == BufferKind::kGroup) continue;
      for (const bool in_place : {false, true}) {
        for (const Operation operation :
             {Operation::kAllReduce, Operation::kReduceScatter,
              Operation::kAllGather}) {
          requests.push_back(Request(operation, in_place, buffers));
        }
      }
      requests.push_back(Request(Operation::kBroadcast, true, buffers));
      if (peer && GetParam().algorithm == Algorithm::kRing) continue;
      requests.push_back(Request(Operation::kAllToAll, false, buffers));
    }
    return requests;
  }
};

TEST_P(NcclRankTest, TimesCallsTogetherAndFindsNothingWrong) {
  const std::vector<TurnRequest> requests = Requests();
  const Turns turns = Take(GetParam(), requests);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  ASSERT_THAT(turns, SizeIs(kRanks * requests.size()));
  for (size_t i = 0; i < turns.size(); ++i) {
    const AllReduceTurn& turn = turns[i];
    SCOPED_TRACE(
        absl::StrCat(Name(requests[i % requests.size()].operation), " ", i));
    EXPECT_EQ(turn.missing, "");
    EXPECT_EQ(turn.calls.wrong, 0);
    EXPECT_THAT(turn.calls.seconds, SizeIs(1));
    EXPECT_THAT(turn.calls.seconds, Each(Gt(0)));
    EXPECT_GT(turn.host_seconds, 0);
    EXPECT_NE(turn.gpu, "");
  }
}

// The control: rank 1 uses the inputs and expects the result of another call.
TEST_P(NcclRankTest, CountsAnswersOfAnotherCall) {
  const std::vector<TurnRequest> requests = Requests();
  const Turns turns = Take(GetParam(), requests, kRanks,
                           [](TurnRequest& request) { ++request.first; });
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  ASSERT_THAT(turns, SizeIs(kRanks * requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_GT(turns[i].calls.wrong + turns[i + requests.size()].calls.wrong,
              requests[i].iterations * requests[i].count / 5)
        << Name(requests[i].operation) << " " << i;
  }
}

TEST_P(NcclRankTest, NeitherTimesNorChecksAProbe) {
  TurnRequest request = Request(Operation::kAllReduce, true);
  request.probe = 1;
  const Turns turns = Take(GetParam(), {request});
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(turns[0].calls.seconds, SizeIs(0));
  EXPECT_EQ(turns[0].calls.wrong, 0);
  EXPECT_NE(turns[0].gpu, "");
}

#ifdef LOCKSTEP_CUDA_STANDIN
// If one rank has no memory, all ranks return an error. Otherwise they would
// wait for its calls.
TEST_P(NcclRankTest, NoRankBeginsWithoutTheMemoryOfAll) {
  standin::SetDevices({.count = kRanks});
  const auto run = [](Communicator& host) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TurnTaker> taker,
                              CreateNcclRank(host, GetParam(), host.rank()));
    TurnRequest request = Request(Operation::kAllReduce, true);
    if (host.rank() == 1) request.count = int64_t{1} << 50;
    return taker->Take(request).status();
  };
  EXPECT_THAT(
      RunRanks(kBackend, kRanks, run),
      Each(StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(""))));
}

// Calls are queued, and the host does not wait between them. The calls of our
// ring are graphs when they are timed.
TEST_P(NcclRankTest, WaitsAsOftenForManyCallsAsForFew) {
  standin::SetDevices({.count = kRanks});
  const auto run = [](Communicator& host) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TurnTaker> taker,
                              CreateNcclRank(host, GetParam(), host.rank()));
    std::vector<int64_t> waits, groups;
    for (const int iterations : {20, 2, 20}) {  // The first one allocates.
      TurnRequest request = Request(Operation::kAllReduce, true);
      request.iterations = iterations;
      request.warmup = 3 * (iterations + 1);
      const standin::CallCounts before = standin::CountsOfThisThread();
      LOCKSTEP_RETURN_IF_ERROR(taker->Take(request).status());
      const standin::CallCounts after = standin::CountsOfThisThread();
      waits.push_back(after.host_waits - before.host_waits);
      groups.push_back(after.groups - before.groups);
    }
    // Warm-up calls, then the untimed calls before the first event, then timed
    // calls.
    const int64_t calls = 3 * 3 + 2 + 2;
    if (GetParam().kind == TeamKind::kPlainNccl && groups[1] != calls) {
      return absl::DataLossError(absl::StrCat(groups[1], " calls"));
    }
    if (waits[1] != waits[2]) {
      return absl::DataLossError(
          absl::StrCat("2 calls wait ", waits[1], " times, 20 ", waits[2]));
    }
    const bool graphs = GetParam().kind == TeamKind::kNccl &&
                        GetParam().algorithm != Algorithm::kAuto;
    if (groups[0] > 0 && (groups[2] == 0) == graphs) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(groups[0], " groups, then ", groups[2]));
  };
  EXPECT_THAT(RunRanks(kBackend, kRanks, run), Each(IsOk()));
}

TEST_P(NcclRankTest, SaysWhetherRanksShareAGpu) {
  standin::SetNcclFaults({.version = 23000});  // Lets threads share a GPU.
  const TurnRequest request = Request(Operation::kAllReduce, true);
  ASSERT_EQ(unsetenv("NCCL_LOCAL_REGISTER"), 0);
  for (const int devices : {1, 2}) {
    ASSERT_EQ(unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT"), 0);
    const Turns turns = Take(GetParam(), {request}, devices);
    ASSERT_THAT(turns, SizeIs(kRanks));
    for (const AllReduceTurn& turn : turns) {
      EXPECT_EQ(turn.shared_gpu, devices == 1);
      EXPECT_EQ(turn.calls.wrong, 0);
      // The variable that our rings need is not set for NCCL's own.
      EXPECT_EQ(
          std::ranges::count(turn.nccl_environment, "NCCL_LOCAL_REGISTER=0"),
          !IsPeer(GetParam().kind) && GetParam().algorithm != Algorithm::kAuto);
    }
  }
  standin::SetNcclFaults({});
}

TEST_P(NcclRankTest, SaysWhetherRanksReadEachOthersMemory) {
  const TurnRequest request = Request(Operation::kAllReduce, true);
  for (const bool windows : {true, false}) {
    standin::SetNcclFaults({.windows = windows});
    for (const AllReduceTurn& turn : Take(GetParam(), {request}, kRanks)) {
      EXPECT_EQ(turn.direct,
                windows && GetParam().algorithm == Algorithm::kDirect);
    }
  }
  standin::SetNcclFaults({});
}
#endif

INSTANTIATE_TEST_SUITE_P(
    Teams, NcclRankTest,
    testing::Values(Team{TeamKind::kNccl, Algorithm::kAuto},
                    Team{TeamKind::kNccl, Algorithm::kRing},
                    Team{TeamKind::kNccl, Algorithm::kDirect},
                    Team{TeamKind::kPlainNccl, Algorithm::kAuto},
                    Team{TeamKind::kPlainNccl, Algorithm::kRing}),
    [](const auto& info) {
      return absl::StrCat(IsPeer(info.param.kind) ? "Plain" : "Own",
                          Name(info.param.algorithm));
    });

TEST(NcclRankPeerTest, SaysWhatNcclLacks) {
  TurnRequest averages = Request(Operation::kAllReduce, true);
  averages.type = DataType::kInt32;
  averages.op = ReduceOp::kAverage;
  const Turns turns = Take({TeamKind::kPlainNccl, Algorithm::kRing},
                           {Request(Operation::kAllToAll, false), averages});
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(turns[0].missing, HasSubstr("NCCL_ALGO"));
  EXPECT_THAT(turns[1].missing, HasSubstr("averages of integers"));
}

}  // namespace
}  // namespace lockstep::benchmarks
