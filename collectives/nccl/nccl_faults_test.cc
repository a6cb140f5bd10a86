// Tests of the failures of the nccl backend, and of whether its checks detect
// planted bugs: on the stand-in, which can inject faults.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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
#include "collectives/nccl/watchdog.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Damage;
using standin::DroppedWaits;
using standin::Order;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Milliseconds(300);
constexpr absl::Duration kLong = absl::Seconds(20);

class NcclFaultsTest : public testing::Test {
 protected:
  void TearDown() override {
    standin::SetNcclFaults({});
    standin::SetSchedule({});
    standin::SetDeviceTraits({});
    EXPECT_EQ(standin::LiveNcclCommunicators(), 0);
  }

  static NcclOptions Options(Algorithm algorithm = Algorithm::kAuto) {
    NcclOptions options;
    options.group.algorithm = algorithm;
    options.group.timeout = kLong;
    options.chunk_bytes = 256;
    return options;
  }
};

bool AllOk(const std::vector<absl::Status>& statuses) {
  return std::ranges::all_of(statuses, &absl::Status::ok);
}

// Returns whether a planted bug showed as wrong data. Any other error fails the
// test.
bool ShowsInData(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
  return !AllOk(statuses);
}

// Returns a call on float32, unless `type` says otherwise, whose result is the
// same in every order of additions.
CheckedCall ExactCall(Operation operation, int64_t count,
                      DataType type = DataType::kFloat32) {
  return {.operation = operation,
          .type = type,
          .count = count,
          .input = CallInput::kExact};
}

absl::Status AllReduceOnce(NcclCommunicator& communicator) {
  return CheckOnDevice(communicator, {ExactCall(Operation::kAllReduce, 1000)});
}

// Calls and waits, then calls once more. The second call must fail with the
// first cause, and neither call NCCL nor wait for the device.
absl::Status FailTwice(
    NcclCommunicator& communicator,
    const std::function<absl::Status(NcclCommunicator&)>& call) {
  absl::Status first = call(communicator);
  if (first.ok()) first = communicator.Wait();
  if (first.ok()) return absl::InternalError("did not fail");
  const standin::CallCounts before = standin::CountsOfThisThread();
  const absl::Status second = communicator.Barrier();
  const standin::CallCounts after = standin::CountsOfThisThread();
  if (!absl::IsFailedPrecondition(second) ||
      !absl::StrContains(second.message(), first.message())) {
    return absl::InternalError(
        absl::StrCat("the second failure was ", second.ToString()));
  }
  if (after.groups != before.groups || after.host_waits != before.host_waits) {
    return absl::InternalError("the second call used the device");
  }
  return first;
}

std::vector<absl::Status> FailAllReduce(int ranks, const NcclOptions& options) {
  return RunNcclRanks(ranks, options, [](NcclCommunicator& communicator) {
    return FailTwice(communicator, AllReduceOnce);
  });
}

// All ranks except `absent` call. That rank stays alive and waits until the
// other ranks have ended.
std::vector<absl::Status> RunWithout(int absent, const NcclOptions& options) {
  constexpr int kRanks = 3;
  std::atomic<int> ended = 0;
  absl::Notification all_ended;
  return RunNcclRanks(
      kRanks, options, [&](NcclCommunicator& communicator) -> absl::Status {
        if (communicator.rank() == absent) {
          return all_ended.WaitForNotificationWithTimeout(kLong)
                     ? absl::OkStatus()
                     : absl::InternalError("the others hang");
        }
        const absl::Status status = FailTwice(communicator, AllReduceOnce);
        if (++ended == kRanks - 1) all_ended.Notify();
        return status;
      });
}

TEST_F(NcclFaultsTest, RankThatNeverCallsIsNamedAtTheDeadline) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    NcclOptions options = Options(algorithm);
    options.group.timeout = kSoon;
    const auto statuses = RunWithout(1, options);
    EXPECT_THAT(statuses[1], IsOk());
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr(": AllReduce(float32[1000], sum)"),
                               HasSubstr("not finished after 300ms on ranks "
                                         "0, 2; rank 1 has not called it"))));
    EXPECT_EQ(statuses[0], statuses[2]);
  }
}

TEST_F(NcclFaultsTest, JoiningEndsAtTheDeadlineToo) {
  standin::SetNcclFaults({.stalled_init_rank = 1});
  NcclOptions options = Options();
  options.group.timeout = kSoon;
  EXPECT_THAT(
      RunNcclRanks(2, options, AllReduceOnce),
      Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                    HasSubstr("joining NCCL: not finished after 300ms"))));
}

// The deadline of a call counts from its turn on the stream, also if the
// watchdog saw the call before the call was on the stream.
TEST_F(NcclFaultsTest, DeadlineCountsFromTheCallsTurnOnTheStream) {
  standin::SetSchedule({.order = standin::Order::kOldestStreamFirst});
  const auto call_late = [](Communicator& control) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
    LOCKSTEP_ASSIGN_OR_RETURN(auto owned, control.Split(0, 0));
    Watchdog watchdog(std::move(owned),
                      {.timeout = kSoon,
                       .health = [] { return absl::OkStatus(); },
                       .abort = [] {}});
    LOCKSTEP_RETURN_IF_ERROR(
        watchdog.Begin({.operation = Operation::kBarrier}, absl::OkStatus())
            .status());
    absl::SleepFor(kSoon / 2);  // The watchdog looks a hundred times.
    LOCKSTEP_ASSIGN_OR_RETURN(CallEvents events, watchdog.TakeEvents());
    for (const cudaEvent_t event : {events.started.get(), events.done.get()}) {
      LOCKSTEP_RETURN_IF_ERROR(
          CudaStatus(cudaEventRecord(event, stream.get()), "cudaEventRecord"));
    }
    watchdog.Issued(std::move(events));
    absl::SleepFor(kSoon);  // The stand-in holds the stream back meanwhile.
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()),
                                        "cudaStreamSynchronize"));
    const absl::Status status = watchdog.WaitForCalls();
    watchdog.Leave();
    return status;
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, call_late), Each(IsOk()));
}

TEST_F(NcclFaultsTest, StalledRankEndsAllAtTheDeadline) {
  standin::SetNcclFaults({.stalled_rank = 2});
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    NcclOptions options = Options(algorithm);
    options.group.timeout = kSoon;
    const auto statuses = FailAllReduce(3, options);
    EXPECT_THAT(statuses,
                Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr("AllReduce(float32[1000], sum)"),
                                    HasSubstr("checked_call.cc"),
                                    HasSubstr("on ranks")))));
    EXPECT_EQ(statuses[0], statuses[1]);
    EXPECT_EQ(statuses[0], statuses[2]);
  }
}

// The failing rank's call does not end; otherwise other ranks' calls might
// succeed before the error.
TEST_F(NcclFaultsTest, AsyncErrorOfOneRankIsEveryRanks) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    standin::SetNcclFaults(
        {.stalled_rank = 1, .failing_rank = 1, .error = ncclRemoteError});
    const absl::Time before = absl::Now();
    const auto statuses = FailAllReduce(3, Options(algorithm));
    EXPECT_LT(absl::Now() - before, absl::Seconds(5));
    EXPECT_THAT(
        statuses,
        Each(StatusIs(absl::StatusCode::kUnavailable,
                      AllOf(HasSubstr("rank 1: AllReduce(float32[1000], sum)"),
                            HasSubstr("NCCL error 6: remote")))));
  }
  // The error occurs in the middle of a ring.
  standin::SetNcclFaults({.stalled_rank = 2,
                          .failing_rank = 2,
                          .error_from = 7,
                          .error = ncclSystemError});
  EXPECT_THAT(FailAllReduce(5, Options(Algorithm::kRing)),
              Each(StatusIs(absl::StatusCode::kUnavailable,
                            HasSubstr("rank 2: AllReduce"))));
}

// The rank leaves while it waits for the other ranks, or has left before.
TEST_F(NcclFaultsTest, RankThatLeavesIsNamed) {
  for (const absl::Duration later : {absl::ZeroDuration(), absl::Seconds(2)}) {
    const auto statuses =
        RunNcclRanks(3, Options(), [&](NcclCommunicator& communicator) {
          if (communicator.rank() == 2) return absl::OkStatus();
          absl::SleepFor(later);
          return FailTwice(communicator, AllReduceOnce);
        });
    EXPECT_THAT(statuses[2], IsOk());
    for (const int rank : {0, 1}) {
      EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("rank 2")));
    }
  }
}

// A call that fails on every rank; its argument is device memory of 12 float32.
using DataCall = std::function<absl::Status(NcclCommunicator&, Buffer)>;

std::vector<absl::Status> FailOnData(int ranks, const DataCall& call) {
  return RunNcclRanks(
      ranks, NcclOptions(),
      [&](NcclCommunicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(48)));
        const Buffer data(memory->data(), 12, DataType::kFloat32);
        return FailTwice(communicator,
                         [&](NcclCommunicator& c) { return call(c, data); });
      });
}

// Rank 1 makes a different call than the other ranks: every rank must say so.
void ExpectMismatch(const DataCall& usual, const DataCall& other) {
  const auto statuses = FailOnData(3, [&](NcclCommunicator& c, Buffer data) {
    return c.rank() == 1 ? other(c, data) : usual(c, data);
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(
                  absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr("rank 0 called"), HasSubstr("rank 1 called"),
                        HasSubstr("nccl_faults_test.cc:")))));
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_EQ(statuses[0], statuses[2]);
}

TEST_F(NcclFaultsTest, DisagreementIsEveryRanks) {
  const auto usual = [](NcclCommunicator& c, Buffer b) {
    return c.AllReduce(b);
  };
  const DataCall others[] = {
      [](NcclCommunicator& c, Buffer b) { return c.AllReduce(b.Part(0, 11)); },
      [](NcclCommunicator& c, Buffer b) {
        return c.AllReduce(b, ReduceOp::kMax);
      },
      [](NcclCommunicator& c, Buffer b) {
        return c.AllReduce({b.data, b.count, DataType::kInt32});
      },
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 0); },
      [](NcclCommunicator& c, Buffer) { return c.Barrier(); },
      [](NcclCommunicator& c, Buffer) { return c.Allocate(8).status(); },
  };
  for (const DataCall& other : others) ExpectMismatch(usual, other);
  ExpectMismatch(
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 0); },
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 2); });
}

TEST_F(NcclFaultsTest, PartnersDisagreementIsBoths) {
  const auto run = [](int64_t sent, DataType type, bool both_send) {
    return FailOnData(2, [=](NcclCommunicator& c, Buffer data) {
      if (c.rank() == 0) return c.Send({data.data, sent, type}, 1);
      return both_send ? c.Send(data, 0) : c.Receive(data, 0);
    });
  };
  for (const auto& statuses :
       {run(11, DataType::kFloat32, false), run(12, DataType::kInt32, false),
        run(12, DataType::kFloat32, true)}) {
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("rank 0 called Send"),
                                              HasSubstr("rank 1 called")))));
  }
}

// Expects that every rank rejects a call that is wrong only on rank 1.
void ExpectRefused(const std::string& why, const DataCall& call) {
  EXPECT_THAT(
      FailOnData(2, call),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("rank 1 called"), HasSubstr(why)))));
}

TEST_F(NcclFaultsTest, WrongArgumentsAreEveryRanksError) {
  ExpectRefused(
      "its input is not device memory", [](NcclCommunicator& c, Buffer b) {
        std::vector<float> host(8);
        return c.AllReduce(c.rank() == 1 ? Buffer(host) : b.Part(0, 8));
      });
  ExpectRefused(
      "its output is not device memory", [](NcclCommunicator& c, Buffer b) {
        std::vector<float> host(8);
        return c.AllGather(b.Part(0, 4),
                           c.rank() == 1 ? Buffer(host) : b.Part(4, 8));
      });
  ExpectRefused("its input is memory of GPU 0, not of its GPU 1",
                [](NcclCommunicator& c, Buffer b) {
                  if (c.rank() == 0) return c.AllReduce(b);
                  cudaSetDevice(0);
                  const auto other = AllocateDeviceMemory(b.size_bytes());
                  return c.AllReduce(Buffer(other->get(), b.count, b.type));
                });
  ExpectRefused("is not aligned", [](NcclCommunicator& c, Buffer b) {
    Buffer moved = b.Part(0, 8);
    if (c.rank() == 1) moved.data = moved.bytes() + 2;
    return c.AllReduce(moved);
  });
  ExpectRefused("the root is outside", [](NcclCommunicator& c, Buffer b) {
    return c.Broadcast(b, c.rank() == 1 ? 2 : 0);
  });
  for (const int peer : {-1, 1, 2}) {
    ExpectRefused("Send", [=](NcclCommunicator& c, Buffer b) {
      return c.rank() == 1 ? c.Send(b, peer) : c.Barrier();
    });
  }
  ExpectRefused("that is negative", [](NcclCommunicator& c, Buffer) {
    return c.Allocate(c.rank() == 1 ? -1 : 8).status();
  });
}

TEST_F(NcclFaultsTest, OptionsThatCannotBeHad) {
  NcclOptions none = Options();
  none.chunk_bytes = 24;
  EXPECT_THAT(RunNcclRanks(2, none, AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("chunk_bytes is 24"))));
  EXPECT_THAT(RunNcclRanks(2, Options(Algorithm::kTree), AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("not tree"))));
}

TEST_F(NcclFaultsTest, RankWithoutItsDeviceIsNamed) {
  std::vector<NcclOptions> options(3, Options());
  for (int rank = 0; rank < 3; ++rank) options[rank].device = rank;
  options[1].device = 99;
  EXPECT_THAT(RunNcclRanks(options, AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("rank 1: cudaSetDevice(99)"))));
}

TEST_F(NcclFaultsTest, RankZerosOptionsHold) {
  std::vector<NcclOptions> options(3, Options());
  for (int rank = 0; rank < 3; ++rank) options[rank].device = rank;
  options[0].group.algorithm = Algorithm::kRing;
  options[0].chunk_bytes = 64;
  EXPECT_THAT(RunNcclRanks(options,
                           [](NcclCommunicator& communicator) {
                             return CheckRingBits(communicator,
                                                  DataType::kFloat32,
                                                  ReduceOp::kSum, 301);
                           }),
              Each(IsOk()));
}

// Runs `fn` on each of three ranks. Each rank's calls follow a stream of its
// own, which has the same priority as the communicator's.
using StreamFunction =
    std::function<absl::Status(NcclCommunicator&, cudaStream_t)>;
std::vector<absl::Status> RunOnStreams(const NcclOptions& options,
                                       bool own_gpus,
                                       const StreamFunction& fn) {
  return RunRanks(
      Backend::kThreads, 3, [&](Communicator& control) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeUrgentStream());
        NcclOptions own = options;
        own.device = own_gpus ? control.rank() : 0;
        own.stream = stream.get();
        LOCKSTEP_ASSIGN_OR_RETURN(auto owned, control.Split(0, 0));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const auto communicator,
            NcclCommunicator::Create(std::move(owned), own));
        return fn(*communicator, stream.get());
      });
}

TEST_F(NcclFaultsTest, ThreadsThatShareAGpuNeedNewerNccl) {
  const auto run = [](NcclCommunicator& communicator, cudaStream_t) {
    if (!communicator.shared_gpu()) return absl::InternalError("not shared");
    return AllReduceOnce(communicator);
  };
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/false, run),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("threads of one process"))));
  standin::SetNcclFaults({.version = 23000});
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/false, run), Each(IsOk()));
  EXPECT_STREQ(std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"), "1");
  for (const char* const name :
       {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS"}) {
    unsetenv(name);
  }
}

// NCCL tells GPUs apart by their bus, so slices of one GPU are shared too.
TEST_F(NcclFaultsTest, MigSlicesShareAGpu) {
  standin::SetDeviceTraits({.one_bus = true});
  EXPECT_THAT(
      RunNcclRanks(2, Options(), AllReduceOnce),
      Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr("ranks 0 and 1 are threads of one process"))));
}

// In that mode the threads of one process may share a GPU, and ranks with GPUs
// of their own are not concerned. GpuSharingTest has processes that share one.
TEST_F(NcclFaultsTest, AGpuForOneProcessServesItsThreads) {
  standin::SetDeviceTraits({.exclusive = true});
  EXPECT_THAT(RunNcclRanks(2, Options(), AllReduceOnce), Each(IsOk()));
}

// Sums ones that the stream has not yet written when the call is made, and
// makes the stream read the sum after the call.
absl::Status SumOfOnes(Communicator& communicator, std::byte* data,
                       int64_t count, cudaStream_t stream) {
  const auto size = static_cast<size_t>(count);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto copy, MakeDeviceMemory(Bytes(size)));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(data, 1, size, stream), "cudaMemsetAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllReduce({data, count, DataType::kUInt8}));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(copy->data(), data, size,
                                 cudaMemcpyDeviceToDevice, stream),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  // If a wait was dropped, the call may still be in progress.
  LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
  return copy->Holds(Bytes(size, std::byte{3}))
             ? absl::OkStatus()
             : absl::DataLossError("not the sum of three ones");
}

TEST_F(NcclFaultsTest, CallsTakeTheirPlaceOnTheCallersStream) {
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

// Makes several calls of each kind: the ring's kernels and messages, and NCCL's
// own calls.
absl::Status UseEverything(NcclCommunicator& communicator) {
  std::vector<CheckedCall> calls;
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduce, Operation::kReduceScatter,
        Operation::kAllGather, Operation::kBroadcast}) {
    for (const bool in_place : {false, true}) {
      calls.push_back(ExactCall(operation, 1000, DataType::kFloat16));
      calls.back().in_place = in_place;
    }
  }
  return CheckOnDevice(communicator, calls);
}

TEST_F(NcclFaultsTest, EverySchedulesResultIsRight) {
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
TEST_F(NcclFaultsTest, MissingWaitsAreRejected) {
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
TEST_F(NcclFaultsTest, DamagedDataAreRejected) {
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
TEST_F(NcclFaultsTest, AnotherOrderOfAdditionsIsRejected) {
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
TEST_F(NcclFaultsTest, CallsOnlyEnqueue) {
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
          // The first call, the call that is captured, and two replays.
          for (const int groups :
               {kSteps * (chunks + 1), kSteps * (chunks + 1), 0, 0}) {
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

TEST_F(NcclFaultsTest, NothingHasRunWhenACallReturns) {
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

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using GraphOfCalls =
    std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// Returns a graph of the work that `run` puts on the stream.
absl::StatusOr<GraphOfCalls> Capture(cudaStream_t stream,
                                     const std::function<absl::Status()>& run) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
      "cudaStreamBeginCapture"));
  LOCKSTEP_RETURN_IF_ERROR(run());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&made, graph, 0),
                                      "cudaGraphInstantiate"));
  cudaGraphDestroy(graph);
  return GraphOfCalls(made);
}

// The first call of these buffers is eager, the next ones replay a graph, and
// the last is part of a graph that the caller captured. All must give the same
// bits.
TEST_F(NcclFaultsTest, GraphsGiveTheBitsOfEagerCalls) {
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
          LOCKSTEP_ASSIGN_OR_RETURN(const GraphOfCalls graph,
                                    Capture(stream, run));
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

// An aborted NCCL waits for the graphs that captured its calls, ours and the
// caller's. The ranks must not wait for that.
TEST_F(NcclFaultsTest, FailuresDoNotWaitForGraphs) {
  const auto statuses = RunOnStreams(
      Options(Algorithm::kRing), /*own_gpus=*/true,
      [](NcclCommunicator& communicator, cudaStream_t stream) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(300)));
        const Buffer data(memory->data(), 300, DataType::kUInt8);
        for (int call = 0; call < 3; ++call) {
          LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
        }
        LOCKSTEP_ASSIGN_OR_RETURN(
            const GraphOfCalls graph,
            Capture(stream, [&] { return communicator.AllReduce(data); }));
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
TEST_F(NcclFaultsTest, LateGroupsChangeNothing) {
  standin::SetNcclFaults({.late_rank = 1, .late_polls = 20});
  EXPECT_THAT(RunNcclRanks(3, Options(Algorithm::kRing), UseEverything),
              Each(IsOk()));
}

TEST_F(NcclFaultsTest, RanksThatLeaveInHealthDestroyAndOthersAbort) {
  standin::ResetCounts();
  EXPECT_THAT(RunNcclRanks(3, Options(), UseEverything), Each(IsOk()));
  EXPECT_EQ(standin::Counts().communicators_destroyed, 3);
  EXPECT_EQ(standin::Counts().communicators_aborted, 0);
  standin::SetNcclFaults(
      {.stalled_rank = 1, .failing_rank = 1, .error = ncclRemoteError});
  FailAllReduce(3, Options(Algorithm::kRing));
  EXPECT_EQ(standin::Counts().communicators_destroyed, 3);
  EXPECT_EQ(standin::Counts().communicators_aborted, 3);
}

// Tests of the window variant.

absl::Status ReduceInGroupMemory(NcclCommunicator& communicator) {
  return CheckInGroupMemory(communicator,
                            {ExactCall(Operation::kAllReduce, 1000),
                             ExactCall(Operation::kReduceScatter, 67)});
}

TEST_F(NcclFaultsTest, TheRingsStreamsAreUrgent) {
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

TEST_F(NcclFaultsTest, DirectReductionsUseNoMessagesAndDoNotWait) {
  EXPECT_THAT(
      RunNcclRanks(3, Options(Algorithm::kDirect),
                   [](NcclCommunicator& communicator) -> absl::Status {
                     LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                               communicator.Allocate(4096));
                     const standin::CallCounts before =
                         standin::CountsOfThisThread();
                     LOCKSTEP_RETURN_IF_ERROR(
                         communicator.AllReduce(buffer.as<float>()));
                     const standin::CallCounts after =
                         standin::CountsOfThisThread();
                     if (after.groups != before.groups ||
                         after.host_waits != before.host_waits) {
                       return absl::InternalError("it calls NCCL, or waits");
                     }
                     return communicator.Wait();
                   }),
      Each(IsOk()));
}

TEST_F(NcclFaultsTest, DirectFallsBackToTheRing) {
  for (const standin::NcclFaults& faults :
       {standin::NcclFaults{.version = 22707},
        {.windows = false},
        {.host_windows = true},
        {.lsa_ranks = 1}}) {
    standin::SetNcclFaults(faults);
    standin::ResetCounts();
    EXPECT_THAT(
        RunNcclRanks(2, Options(Algorithm::kDirect), ReduceInGroupMemory),
        Each(IsOk()));
    EXPECT_GT(standin::Counts().groups, 0);
  }
}

// A test of kDirect that takes the ring is skipped with the reason.
TEST_F(NcclFaultsTest, DirectSaysThatItIsNotReached) {
  const auto check = [] {
    return RunNcclRanks(2, Options(Algorithm::kDirect), CheckIsDirect)[0];
  };
  EXPECT_FALSE(SkippedAsNotReached(check()));
  standin::SetNcclFaults({.lsa_ranks = 1});
  testing::TestPartResultArray parts;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&parts);
    EXPECT_TRUE(SkippedAsNotReached(check()));
  }
  ASSERT_EQ(parts.size(), 1);
  EXPECT_TRUE(parts.GetTestPartResult(0).skipped());
  EXPECT_THAT(parts.GetTestPartResult(0).message(),
              HasSubstr("kDirect is not reached"));
}

TEST_F(NcclFaultsTest, DirectRefusesDisagreement) {
  const auto fail = [](const DataCall& call) {
    return RunNcclRanks(
        2, Options(Algorithm::kDirect),
        [&](NcclCommunicator& communicator) -> absl::Status {
          LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                    communicator.Allocate(4096));
          return FailTwice(communicator, [&](NcclCommunicator& c) {
            return call(c, buffer.as<float>());
          });
        });
  };
  EXPECT_THAT(fail([](NcclCommunicator& c, Buffer b) {
                return c.AllReduce(b.Part(4 * c.rank(), 100));
              }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("differ in where their data lie"))));
  EXPECT_THAT(fail([](NcclCommunicator& c, Buffer) {
                return c.Allocate(8 << c.rank()).status();
              }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("ranks disagree"))));
}

// A call has two barriers. The first keeps ranks from reading data that are not
// there yet; the second keeps them from going on before all data are written.
TEST_F(NcclFaultsTest, ADroppedBarrierIsRejected) {
  const auto run = [](NcclCommunicator& communicator,
                      cudaStream_t stream) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer data,
                              communicator.Allocate(3000));
    return SumOfOnes(communicator, data.bytes().data(), 3000, stream);
  };
  const auto all_ok = [&](int barrier) {
    standin::SetSchedule(
        {.order = Order::kOldestStreamFirst, .dropped_memory_wait = barrier});
    return AllOk(
        RunOnStreams(Options(Algorithm::kDirect), /*own_gpus=*/true, run));
  };
  EXPECT_TRUE(all_ok(-1));
  EXPECT_FALSE(all_ok(0));
  EXPECT_FALSE(all_ok(1));
}

// Kernels that wait for a rank's memory must end with the group, as NCCL's do,
// and before NCCL unmaps that memory.
TEST_F(NcclFaultsTest, DirectReductionsEndAtTheDeadlineToo) {
  NcclOptions options = Options(Algorithm::kDirect);
  options.group.timeout = kSoon;
  absl::Notification ended;
  standin::ResetCounts();
  const auto statuses = RunNcclRanks(
      2, options, [&](NcclCommunicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                  communicator.Allocate(4096));
        if (communicator.rank() == 1) {
          ended.WaitForNotificationWithTimeout(kLong);
          return absl::OkStatus();
        }
        const absl::Status status =
            FailTwice(communicator, [&](NcclCommunicator& c) {
              return c.AllReduce(buffer.as<float>());
            });
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaStreamSynchronize(nullptr), "the stream is stuck"));
        ended.Notify();
        return status;
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("rank 1 has not called it")));
  EXPECT_THAT(statuses[1], IsOk());
  EXPECT_GT(standin::Counts().communicators_aborted, 0);
  EXPECT_EQ(standin::Counts().windows_unmapped_under_work, 0);
}

}  // namespace
}  // namespace lockstep
