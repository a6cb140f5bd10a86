// Tests of the order of the nccl backend's work on streams and in graphs, and
// of whether its checks detect planted bugs: on the stand-in.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/nccl/staged_communicator.h"
#include "collectives/nccl/standin_ranks.h"
#include "collectives/pending_collective.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Damage;
using standin::DroppedWaits;
using standin::Order;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

class NcclStreamsTest : public NcclStandinTest {};

TEST_F(NcclStreamsTest, CallsTakeTheirPlaceOnTheCallersStream) {
  const auto run = [](NcclCommunicator& communicator,
                      cudaStream_t stream) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto data, MakeDeviceMemory(Bytes(256)));
    return SumOfOnes(communicator, data->data(), 256, stream);
  };
  const auto all_ok = [&](DroppedWaits dropped) {
    standin::SetSchedule(
        {.order = Order::kNewestStreamFirst, .dropped_waits = dropped});
    return AllOk(RunOnStreams(Options(), /*own_gpus=*/true, run));
  };
  EXPECT_TRUE(all_ok(DroppedWaits::kNone));
  // The controls drop the wait before the call, or the wait after it.
  EXPECT_FALSE(all_ok(DroppedWaits::kOfNewerStreams));
  EXPECT_FALSE(all_ok(DroppedWaits::kOfOlderStreams));
}

TEST_F(NcclStreamsTest, EverySchedulesResultIsRight) {
  for (const Order order :
       {Order::kAtOnce, Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    standin::SetSchedule({.order = order});
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
      EXPECT_THAT(RunNcclRanks(3, Options(algorithm), UseEverything),
                  Each(IsOk()));
    }
  }
}

// The control: if the ring lacks an event, some schedule shows it.
TEST_F(NcclStreamsTest, MissingWaitsAreRejected) {
  for (const DroppedWaits dropped :
       {DroppedWaits::kOfOlderStreams, DroppedWaits::kOfNewerStreams}) {
    int rejected = 0;
    for (const Order order : {Order::kAtOnce, Order::kOldestStreamFirst,
                              Order::kNewestStreamFirst}) {
      standin::SetSchedule({.order = order, .dropped_waits = dropped});
      rejected += ShowsInData(
          RunNcclRanks(3, Options(Algorithm::kRing), AllReduceOnce));
    }
    EXPECT_GT(rejected, 0);
  }
}

// The control: every operation's check detects data that were lost or arrived
// at the wrong place.
TEST_F(NcclStreamsTest, DamagedDataAreRejected) {
  for (const Damage damage : {Damage::kLostTail, Damage::kSwappedParts}) {
    standin::SetNcclFaults({.damage = damage});
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce,
            Operation::kReduceScatter, Operation::kAllGather,
            Operation::kBroadcast, Operation::kScatter, Operation::kGather,
            Operation::kAllToAll, Operation::kSend}) {
        if (algorithm == Algorithm::kRing && !Reduces(operation)) continue;
        EXPECT_TRUE(ShowsInData(RunNcclRanks(
            3, Options(algorithm),
            [=](NcclCommunicator& communicator) {
              return CheckOnDevice(communicator, {ExactCall(operation, 67)});
            })))
            << Name(operation);
      }
    }
  }
}

// The control of the bit-for-bit check: NCCL's order of additions differs.
TEST_F(NcclStreamsTest, AnotherOrderOfAdditionsIsRejected) {
  NcclOptions options = Options();
  options.nccl_arithmetic = true;
  EXPECT_FALSE(
      AllOk(RunNcclRanks(3, options, [](NcclCommunicator& communicator) {
        return CheckRingBits(communicator, DataType::kFloat32, ReduceOp::kSum,
                             301);
      })));
}

// Only Wait blocks the host: work that is held back has not run when Run
// returns. The ring also makes as few NCCL calls as possible.
TEST_F(NcclStreamsTest, CallsOnlyEnqueue) {
  constexpr int kSteps = 3 - 1;  // In each half of the ring.
  for (const int chunks : {1, 2}) {
    standin::SetSchedule({.order = Order::kOldestStreamFirst});
    NcclOptions options = Options(Algorithm::kRing);
    options.chunk_bytes = 3 * 1024 / chunks;
    const auto statuses = RunOnStreams(
        options, /*own_gpus=*/true,
        [&](NcclCommunicator& communicator, cudaStream_t) -> absl::Status {
          const Bytes ones(3 * 3 * 1024, std::byte{1});
          LOCKSTEP_ASSIGN_OR_RETURN(const auto memory, MakeDeviceMemory(ones));
          // The second half's last group moves the second chunk alone.
          const int eager = kSteps * (chunks + 1) + (chunks - 1);
          // The first call, the call that is captured, and two replays.
          for (const int groups : {eager, eager, 0, 0}) {
            LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
            const standin::CallCounts before = standin::CountsOfThisThread();
            LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(
                {memory->data(), 3 * 3 * 1024, DataType::kUInt8}));
            const standin::CallCounts after = standin::CountsOfThisThread();
            if (after.host_waits != before.host_waits ||
                after.groups - before.groups != groups) {
              return absl::InternalError(absl::StrCat(
                  after.host_waits - before.host_waits, " host waits and ",
                  after.groups - before.groups, " groups, not ", groups));
            }
            LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
          }
          return memory->Holds(Bytes(ones.size(), std::byte{81}))
                     ? absl::OkStatus()
                     : absl::DataLossError("not three to the fourth power");
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST_F(NcclStreamsTest, NothingHasRunWhenACallReturns) {
  standin::SetSchedule({.order = Order::kOldestStreamFirst});
  const auto statuses = RunOnStreams(
      Options(), /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t) -> absl::Status {
        const Bytes ones(64, std::byte{1});
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory, MakeDeviceMemory(ones));
        LOCKSTEP_RETURN_IF_ERROR(
            communicator.AllReduce({memory->data(), 64, DataType::kUInt8}));
        // On the stand-in, the host can read device memory directly.
        if (*memory->data() != std::byte{1}) {
          return absl::InternalError("the call waited for its result");
        }
        return communicator.Wait();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Calls of pinned memory have not run when Start returns, and the host has not
// waited.
TEST_F(NcclStreamsTest, StagedCallsOnlyEnqueue) {
  standin::SetSchedule({.order = Order::kOldestStreamFirst});
  const auto run = [](NcclCommunicator& group,
                      cudaStream_t stream) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> own,
                              group.Split(/*color=*/0, /*key=*/0));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const auto staged, StagedCommunicator::Create(std::move(own), stream));
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer memory, staged->Allocate(64));
    const std::span<float> data = memory.as<float>();
    std::ranges::fill(data, 1.0f);
    // The first call allocates, and the host waits for that.
    for (const int64_t waits : {-1, 0}) {
      const float before = data[0];
      const standin::CallCounts counts = standin::CountsOfThisThread();
      const PendingCollective call = staged->Start(Collective::AllReduce(data));
      const int64_t waited =
          standin::CountsOfThisThread().host_waits - counts.host_waits;
      if (waits >= 0 && waited != waits) {
        return absl::InternalError(absl::StrCat(waited, " host waits"));
      }
      if (data[0] != before) {
        return absl::InternalError("the call waited for its result");
      }
      LOCKSTEP_RETURN_IF_ERROR(call.Wait());
      if (data[0] != 3 * before) return absl::DataLossError("not the sum");
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/true, run), Each(IsOk()));
}

// Sums on a group and on a part of it that has `ranks` ranks. Rank 1 begins
// with the other one.
std::vector<absl::Status> SumInDifferentOrders(int ranks,
                                               const NcclOptions& options) {
  return RunNcclRanks(
      3, options, [ranks](NcclCommunicator& whole) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<Communicator> part,
            whole.Split(whole.rank() < ranks ? 0 : -1, /*key=*/0));
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(128)));
        const Buffer data = {memory->data(), 16, DataType::kFloat32};
        if (part == nullptr) {
          LOCKSTEP_RETURN_IF_ERROR(whole.AllReduce(data));
          return whole.Wait();
        }
        Communicator* groups[] = {&whole, part.get()};
        if (whole.rank() == 1) std::swap(groups[0], groups[1]);
        for (Communicator* const group : groups) {
          LOCKSTEP_RETURN_IF_ERROR(group->AllReduce(data));
        }
        LOCKSTEP_RETURN_IF_ERROR(whole.Wait());
        return part->Wait();
      });
}

TEST_F(NcclStreamsTest, GroupsInDifferentOrdersAreNamed) {
  EXPECT_THAT(SumInDifferentOrders(3, Options()),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("ranks begin the calls of two groups in "
                                      "different orders (call "))));
}

// The control: the calls do wait for each other. Nobody numbers the calls of a
// part with fewer ranks.
TEST_F(NcclStreamsTest, CallsInDifferentOrdersWaitForEachOther) {
  NcclOptions options = Options();
  options.group.timeout = kSoon;
  EXPECT_THAT(SumInDifferentOrders(2, options),
              Contains(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                HasSubstr("not finished after 300ms"))));
}

// Ranks that have seen a group fail have not made the same calls. The other
// group still works.
TEST_F(NcclStreamsTest, AFailedGroupLeavesTheOrderOfOthersAlone) {
  const auto run = [](NcclCommunicator& whole) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part,
                              whole.Split(/*color=*/0, /*key=*/0));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto memory, MakeDeviceMemory(Bytes(128)));
    const Buffer data = {memory->data(), 16, DataType::kFloat32};
    // Rank 1's call is refused before it gets a number.
    const Buffer wrong = {memory->data(), -1, DataType::kFloat32};
    absl::Status failure = part->AllReduce(whole.rank() == 1 ? wrong : data);
    if (failure.ok()) failure = part->Wait();
    if (failure.ok()) return absl::InternalError("the part did not fail");
    for (int i = 0; i < 3; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(whole.AllReduce(data));
    }
    return whole.Wait();
  };
  EXPECT_THAT(RunNcclRanks(3, Options(), run), Each(IsOk()));
}

using CapturedCalls = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>,
                                      CudaDeleter<&cudaGraphDestroy>>;

// Returns the work that `run` puts on the stream.
absl::StatusOr<CapturedCalls> CaptureCalls(
    cudaStream_t stream, const std::function<absl::Status()>& run) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
      "cudaStreamBeginCapture"));
  LOCKSTEP_RETURN_IF_ERROR(run());
  cudaGraph_t graph = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  return CapturedCalls(graph);
}

// Returns whether node `a` of a graph precedes node `b`.
bool Precedes(const std::vector<standin::GraphNode>& nodes, size_t a,
              size_t b) {
  return a == b || std::ranges::any_of(nodes[b].needs, [&](size_t needed) {
           return Precedes(nodes, a, needed);
         });
}

// Expects the schedule of a ring of three ranks and two chunks: the first chunk
// circulates while the second is reduced.
absl::Status CheckRingsGraph(const std::vector<standin::GraphNode>& nodes) {
  std::vector<size_t> groups;
  std::vector<size_t> kernels;
  for (size_t i = 0; i < nodes.size(); ++i) {
    (nodes[i].stream == nodes[0].stream ? groups : kernels).push_back(i);
  }
  constexpr size_t kFirstHalf = 2 * 2;  // Steps times chunks.
  if (groups.size() != kFirstHalf + 3 || kernels.size() != kFirstHalf) {
    return absl::InternalError(absl::StrCat(groups.size(), " groups and ",
                                            kernels.size(), " kernels"));
  }
  const size_t circulates = groups[kFirstHalf];
  if (!Precedes(nodes, kernels[kFirstHalf - 2], circulates) ||
      Precedes(nodes, kernels[kFirstHalf - 1], circulates) ||
      !Precedes(nodes, kernels[kFirstHalf - 1], groups[kFirstHalf + 1])) {
    return absl::InternalError("a chunk does not wait for its kernel alone");
  }
  return absl::OkStatus();
}

TEST_F(NcclStreamsTest, AChunkCirculatesWhileTheNextIsReduced) {
  NcclOptions options = Options(Algorithm::kRing);
  options.chunk_bytes = 512;
  const auto statuses = RunOnStreams(
      options, /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(3 * 1024)));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const CapturedCalls graph, CaptureCalls(stream, [&] {
              return communicator.AllReduce(
                  {memory->data(), 3 * 1024, DataType::kUInt8});
            }));
        return CheckRingsGraph(standin::NodesOf(graph.get()));
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// The first call of these buffers is eager, the next ones replay a graph, and
// the last is part of a graph that the caller captured. All must give the same
// bits.
TEST_F(NcclStreamsTest, GraphsGiveTheBitsOfEagerCalls) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    const auto statuses = RunOnStreams(
        Options(Algorithm::kRing), /*own_gpus=*/true,
        [type](NcclCommunicator& communicator,
               cudaStream_t stream) -> absl::Status {
          constexpr int64_t kCount = 1283;
          Bytes input(kCount * static_cast<size_t>(SizeOf(type)));
          FillInput(communicator.rank(), type, kCount, input.data());
          LOCKSTEP_ASSIGN_OR_RETURN(const auto from, MakeDeviceMemory(input));
          LOCKSTEP_ASSIGN_OR_RETURN(const auto to, MakeDeviceMemory(input));
          const auto run = [&]() -> absl::Status {
            return communicator.AllReduce(
                ConstBuffer(from->data(), kCount, type),
                Buffer(to->data(), kCount, type));
          };
          std::vector<Bytes> results;
          for (int call = 0; call < 4; ++call) {
            LOCKSTEP_RETURN_IF_ERROR(run());
            LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
            LOCKSTEP_ASSIGN_OR_RETURN(results.emplace_back(), to->Read());
            LOCKSTEP_RETURN_IF_ERROR(
                CudaStatus(cudaMemset(to->data(), 0, input.size()), "memset"));
          }
          LOCKSTEP_ASSIGN_OR_RETURN(const Graph graph,
                                    CaptureGraph(stream, run));
          LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
              cudaGraphLaunch(graph.get(), stream), "cudaGraphLaunch"));
          LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream),
                                              "cudaStreamSynchronize"));
          LOCKSTEP_ASSIGN_OR_RETURN(results.emplace_back(), to->Read());
          for (const Bytes& result : results) {
            if (result != results.front() || result == input) {
              return absl::DataLossError("not the bits of the eager call");
            }
          }
          return communicator.Wait();
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

// A group with a call of `count` bytes in a graph.
struct GroupWithGraph {
  NcclCommunicator& communicator;
  cudaStream_t stream;
  std::unique_ptr<CheckedMemory> memory = nullptr;
  NcclCommunicator::CapturedCalls calls = {};
  Graph graph = nullptr;

  absl::Status CaptureCall(int64_t count) {
    LOCKSTEP_ASSIGN_OR_RETURN(memory, MakeDeviceMemory(Bytes(300)));
    LOCKSTEP_ASSIGN_OR_RETURN(
        graph, CaptureGraph(stream, [&]() -> absl::Status {
          LOCKSTEP_ASSIGN_OR_RETURN(calls, communicator.Capture([&] {
            return communicator.AllReduce(
                {memory->data(), count, DataType::kUInt8});
          }));
          return absl::OkStatus();
        }));
    return absl::OkStatus();
  }
  absl::Status Replay() {
    return communicator.Replay(calls, stream, [&] {
      return CudaStatus(cudaGraphLaunch(graph.get(), stream),
                        "cudaGraphLaunch");
    });
  }
};

// A rank may capture while another rank makes other calls: only replays are
// compared.
TEST_F(NcclStreamsTest, ReplaysOfTheSameCallsAgree) {
  const auto statuses = RunOnStreams(
      Options(), /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        GroupWithGraph group{communicator, stream};
        if (communicator.rank() == 1) {
          LOCKSTEP_RETURN_IF_ERROR(group.CaptureCall(256));
        }
        LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
        if (communicator.rank() != 1) {
          LOCKSTEP_RETURN_IF_ERROR(group.CaptureCall(256));
        }
        const Bytes ones(300, std::byte{1});
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaMemcpy(group.memory->data(), ones.data(),
                                  ones.size(), cudaMemcpyHostToDevice),
                       "cudaMemcpy"));
        for (int i = 0; i < 3; ++i) LOCKSTEP_RETURN_IF_ERROR(group.Replay());
        LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
        LOCKSTEP_ASSIGN_OR_RETURN(const Bytes sums, group.memory->Read());
        return sums[0] == std::byte{27} && sums[256] == std::byte{1}
                   ? absl::OkStatus()
                   : absl::DataLossError("not three sums");
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_F(NcclStreamsTest, ReplaysOfOtherCallsAreNamed) {
  const auto statuses = RunOnStreams(
      Options(), /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        GroupWithGraph group{communicator, stream};
        LOCKSTEP_RETURN_IF_ERROR(
            group.CaptureCall(communicator.rank() == 2 ? 128 : 256));
        return FailTwice(communicator,
                         [&](NcclCommunicator&) { return group.Replay(); });
      });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("ranks disagree"),
                          HasSubstr("rank 2 called Replay(1 calls)")))));
}

// The graph waits on the GPU for a rank that does not launch its own.
TEST_F(NcclStreamsTest, AReplayEndsAtItsDeadline) {
  NcclOptions options = Options();
  options.group.timeout = absl::Milliseconds(300);
  const auto statuses = RunOnStreams(
      options, /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        GroupWithGraph group{communicator, stream};
        LOCKSTEP_RETURN_IF_ERROR(group.CaptureCall(256));
        LOCKSTEP_RETURN_IF_ERROR(group.Replay());
        LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
        if (communicator.rank() != 1) LOCKSTEP_RETURN_IF_ERROR(group.Replay());
        if (communicator.rank() == 1) absl::SleepFor(absl::Seconds(1));
        return FailTwice(communicator, [&](NcclCommunicator& each) {
          return each.rank() == 1 ? group.Replay() : each.Wait();
        });
      });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                            AllOf(HasSubstr("Replay(1 calls) at"),
                                  HasSubstr("rank 1 has not called it")))));
}

// A ring that has as many graphs as it may keep destroys the one that was used
// longest ago, and no other.
TEST_F(NcclStreamsTest, TheGraphUsedLongestAgoIsDestroyed) {
  constexpr int kMostGraphs = 512;
  const auto run = [](NcclCommunicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                              MakeDeviceMemory(Bytes(2 * kMostGraphs)));
    // Returns whether a call of that many bytes replays a graph.
    const auto replays = [&](int64_t count) -> absl::StatusOr<bool> {
      const int64_t before = standin::CountsOfThisThread().groups;
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce({memory->data(), count, DataType::kUInt8}));
      LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
      return standin::CountsOfThisThread().groups == before;
    };
    for (const int64_t count : {1, 1, 1, 2, 2, 2}) {
      LOCKSTEP_RETURN_IF_ERROR(replays(count).status());
    }
    for (int64_t count = 3; count <= kMostGraphs; ++count) {
      LOCKSTEP_RETURN_IF_ERROR(replays(count).status());
    }
    // All have their places. The next one takes that of count 2.
    for (const auto& [count, expected] :
         {std::pair(1, true), std::pair(kMostGraphs + 1, false),
          std::pair(1, true), std::pair(2, false)}) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool replayed, replays(count));
      if (replayed != expected) {
        return absl::InternalError(absl::StrCat("count ", count));
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunNcclRanks(2, Options(Algorithm::kRing), run), Each(IsOk()));
}

// An aborted NCCL waits for the graphs that captured its calls, ours and the
// caller's. The ranks must not wait for that.
TEST_F(NcclStreamsTest, FailuresDoNotWaitForGraphs) {
  const auto statuses = RunOnStreams(
      Options(Algorithm::kRing), /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(300)));
        const Buffer data(memory->data(), 300, DataType::kUInt8);
        for (int call = 0; call < 3; ++call) {
          LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
        }
        LOCKSTEP_ASSIGN_OR_RETURN(const Graph graph, CaptureGraph(stream, [&] {
                                    return communicator.AllReduce(data);
                                  }));
        const absl::Time before = absl::Now();
        const absl::Status failure =
            FailTwice(communicator, [&](NcclCommunicator& c) {
              return c.rank() == 1 ? c.Broadcast(data, 0) : c.AllReduce(data);
            });
        if (absl::Now() - before > absl::Seconds(5)) {
          return absl::InternalError("waited for the graph");
        }
        return failure;
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("rank 1 called Broadcast"))));
}

// NCCL has not finished a group when the next one is started.
TEST_F(NcclStreamsTest, LateGroupsChangeNothing) {
  standin::SetNcclFaults({.late_rank = 1, .late_polls = 20});
  EXPECT_THAT(RunNcclRanks(3, Options(Algorithm::kRing), UseEverything),
              Each(IsOk()));
}

TEST_F(NcclStreamsTest, TheRingsStreamsAreUrgent) {
  const auto create = [](Communicator& control) -> absl::Status {
    NcclOptions options = Options(Algorithm::kRing);
    options.device = control.rank();
    LOCKSTEP_ASSIGN_OR_RETURN(auto owned, control.Split(0, 0));
    const int64_t before = standin::CountsOfThisThread().ordinary_streams;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const auto communicator,
        NcclCommunicator::Create(std::move(owned), options));
    LOCKSTEP_RETURN_IF_ERROR(AllReduceOnce(*communicator));
    const int64_t made =
        standin::CountsOfThisThread().ordinary_streams - before;
    return made == 0 ? absl::OkStatus()
                     : absl::InternalError(absl::StrCat(made, " are not"));
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, create), Each(IsOk()));
}

}  // namespace
}  // namespace lockstep
