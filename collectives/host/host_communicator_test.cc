// What is special about groups that share memory: buffers that the group
// allocates, groups within groups, messages between two, sizes of every kind.
// conformance/collectives checks what each call gives.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/async_communicator.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Numbers of very different sizes, so that each order of additions gives
// another sum.
float RoughValue(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank);
  x = (x ^ 0x5851f42d4c957f2d) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  const double mantissa = 1 + static_cast<double>(x >> 12) * 0x1p-52;
  const double sign = (x & 1) != 0 ? -1 : 1;
  return static_cast<float>(
      std::ldexp(sign * mantissa, static_cast<int>(x >> 1 & 15)));
}

// Element i of a large sum, in the order that schedule.h states, with the
// segment found by counting: the first count % P segments have one more.
float PlainSum(int64_t count, int world_size, int64_t i) {
  int segment = 0;
  int64_t end = 0;
  while (true) {
    end += count / world_size + (segment < count % world_size ? 1 : 0);
    if (i < end) break;
    ++segment;
  }
  float sum = RoughValue(segment, i);
  for (int j = 1; j < world_size; ++j) {
    sum += RoughValue((segment + j) % world_size, i);
  }
  return sum;
}

class HostCommunicatorTest
    : public testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  std::vector<absl::Status> Run(
      const std::function<absl::Status(Communicator&)>& fn,
      const RunRanksOptions& options = {}) {
    return RunRanks(std::get<0>(GetParam()), std::get<1>(GetParam()), fn,
                    options);
  }
};

absl::Status CheckLargeSum(Communicator& communicator,
                           std::span<const float> input,
                           std::span<float> output) {
  const int64_t count = static_cast<int64_t>(output.size());
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(input, output));
  for (int64_t i = 0; i < count; ++i) {
    const float want = PlainSum(count, communicator.world_size(), i);
    if (output[static_cast<size_t>(i)] == want) continue;
    return absl::DataLossError(absl::StrCat("element ", i, " of ", count));
  }
  return absl::OkStatus();
}

// Around the limits of the pieces that messages move in, and over the size from
// which memory is written past the caches.
TEST_P(HostCommunicatorTest, LargeMessagesInOrdinaryAndInGroupMemory) {
  constexpr int64_t kCounts[] = {32767, 32768, 65537, 2000003};
  const auto statuses = Run([&](Communicator& communicator) {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer group,
                              communicator.Allocate(2 * 2000003 * 4));
    for (const int64_t count : kCounts) {
      const auto fill = [&](std::span<float> data) {
        for (int64_t i = 0; i < count; ++i) {
          data[static_cast<size_t>(i)] = RoughValue(communicator.rank(), i);
        }
      };
      const size_t size = static_cast<size_t>(count);
      std::vector<float> ordinary(2 * size);
      for (const std::span<float> memory :
           {std::span(ordinary), group.as<float>()}) {
        const std::span<float> input = memory.first(size);
        fill(input);
        LOCKSTEP_RETURN_IF_ERROR(
            CheckLargeSum(communicator, input, memory.subspan(size, size)));
        LOCKSTEP_RETURN_IF_ERROR(CheckLargeSum(communicator, input, input));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Each rank counts itself in memory that all share, before the barrier.
TEST_P(HostCommunicatorTest, NoRankLeavesABarrierBeforeAllHaveReachedIt) {
  void* memory = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* reached = new (memory) std::atomic<int>(0);
  const auto statuses = Run([&](Communicator& communicator) {
    for (int round = 1; round <= 50; ++round) {
      reached->fetch_add(1);
      LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
      if (reached->load() < round * communicator.world_size()) {
        return absl::DataLossError(absl::StrCat("left round ", round));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  munmap(memory, sizeof(std::atomic<int>));
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST_P(HostCommunicatorTest, AllocatesZeroedMemoryOfAnySize) {
  const auto statuses = Run([](Communicator& communicator) {
    for (const int64_t size : {0, 1, 63, 4096, 4097, 1000000}) {
      // Twice, so that the second could be what the first left.
      for (int round = 0; round < 2; ++round) {
        LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                  communicator.Allocate(size));
        if (static_cast<int64_t>(buffer.bytes().size()) != size) {
          return absl::InternalError("another size");
        }
        if (reinterpret_cast<uintptr_t>(buffer.bytes().data()) % 64 != 0) {
          return absl::InternalError("not aligned");
        }
        if (!IsZero(buffer.bytes())) return absl::InternalError("not zero");
        std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{7});
        // Nobody may still be about to look while others write.
        LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostMemoryTest, OutlivesTheGroup) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    const auto results = RunRanks(backend, 2, [](Communicator& communicator) {
      LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                                communicator.Split(0, communicator.rank()));
      LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                part->Allocate(10000));
      part.reset();
      std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{7});
      return communicator.Barrier();
    });
    EXPECT_THAT(results, Each(IsOk()));
  }
}

TEST(HostMemoryTest, SizesMustAgreeAndBeSizes) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    EXPECT_THAT(
        RunRanks(
            backend, 2,
            [](Communicator& communicator) {
              return communicator.Allocate(10 + communicator.rank()).status();
            }),
        Each(StatusIs(absl::StatusCode::kInvalidArgument,
                      AllOf(HasSubstr("Allocate(10 bytes)"),
                            HasSubstr("Allocate(11 bytes)")))));
    for (const int64_t size : {int64_t{-1}, INT64_MAX}) {
      EXPECT_THAT(RunRanks(backend, 2,
                           [size](Communicator& communicator) {
                             return communicator.Allocate(size).status();
                           }),
                  Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("that is no size"))));
    }
  }
}

// Odd and even ranks, each in reverse, and rank 0 in none.
TEST_P(HostCommunicatorTest, SplitsByColorAndKey) {
  const auto statuses = Run([](Communicator& communicator) {
    const int rank = communicator.rank();
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Communicator> part,
        communicator.Split(rank == 0 ? -1 : rank % 2, -rank));
    if (rank == 0) {
      return part == nullptr ? communicator.Barrier()
                             : absl::InternalError("joined a group");
    }
    std::vector<int> members;
    for (int other = communicator.world_size() - 1; other > 0; --other) {
      if (other % 2 == rank % 2) members.push_back(other);
    }
    std::vector<int32_t> got(members.size());
    const int32_t own = rank;
    LOCKSTEP_RETURN_IF_ERROR(part->AllGather(std::span(&own, 1), got));
    if (!std::equal(got.begin(), got.end(), members.begin())) {
      return absl::DataLossError("other members, or in another order");
    }
    return communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST_P(HostCommunicatorTest, AFailedPartLeavesTheWholeAlone) {
  if (std::get<1>(GetParam()) < 2) GTEST_SKIP() << "one rank has no parts";
  const auto statuses = Run([](Communicator& communicator) {
    const bool in_first = communicator.rank() < 2;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part,
                              communicator.Split(in_first ? 0 : 1, 0));
    if (in_first) {
      std::vector<float> data(1 + communicator.rank());
      if (part->AllReduce(data).ok()) {
        return absl::InternalError("did not notice");
      }
    } else {
      LOCKSTEP_RETURN_IF_ERROR(part->Barrier());
    }
    return communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Sums on the whole group, on a thread of its own, while this thread gathers on
// the part. `first`: this rank begins the sum before it gathers, else it begins
// the sum only once it has gathered.
absl::Status UseBoth(AsyncCommunicator& whole, Communicator& part, bool first,
                     std::span<float> data) {
  const int rank = part.rank();
  const int world_size = part.world_size();
  std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
  std::vector<int32_t> own(300, rank);
  std::vector<int32_t> all(own.size() * static_cast<size_t>(world_size));
  if (first) whole.Start(Collective::AllReduce(data));
  LOCKSTEP_RETURN_IF_ERROR(
      part.AllGather(std::span<const int32_t>(own), std::span<int32_t>(all)));
  if (!first) whole.Start(Collective::AllReduce(data));
  LOCKSTEP_RETURN_IF_ERROR(whole.Wait());
  const float sum = static_cast<float>(world_size * (world_size + 1) / 2);
  for (const float x : data) {
    if (x != sum) return absl::DataLossError(absl::StrCat("sum is ", x));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != static_cast<int32_t>(i / own.size())) {
      return absl::DataLossError(absl::StrCat("gathered ", all[i]));
    }
  }
  return absl::OkStatus();
}

// In turn one rank, all, or none come to the whole group first. The one waits
// there until it has been to the part: a group that kept the rank's other
// thread out would never come back.
TEST_P(HostCommunicatorTest, TwoThreadsOfARankUseTwoGroupsAtOnce) {
  constexpr size_t kSizes[] = {1, 300, 100000};
  const auto statuses = Run([&](Communicator& communicator) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part,
                              communicator.Split(0, 0));
    AsyncCommunicator whole(communicator);
    const int world_size = communicator.world_size();
    for (int i = 0; i < 4 * (world_size + 2); ++i) {
      const int turn = i % (world_size + 2);
      const bool first = turn == communicator.rank() || turn == world_size;
      std::vector<float> data(kSizes[i % 3]);
      LOCKSTEP_RETURN_IF_ERROR(UseBoth(whole, *part, first, data));
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A message goes round all ranks, each adding to it.
TEST_P(HostCommunicatorTest, SendsFromEachToTheNext) {
  if (std::get<1>(GetParam()) < 2) GTEST_SKIP() << "one rank has no next";
  const auto statuses = Run([](Communicator& communicator) {
    const int rank = communicator.rank();
    const int next = (rank + 1) % communicator.world_size();
    const int previous =
        (rank + communicator.world_size() - 1) % communicator.world_size();
    for (const size_t size : {size_t{0}, size_t{1}, size_t{200000}}) {
      std::vector<int64_t> data(size, 1);
      if (rank == 0) {
        LOCKSTEP_RETURN_IF_ERROR(communicator.Send(data, next));
        LOCKSTEP_RETURN_IF_ERROR(communicator.Receive(data, previous));
      } else {
        LOCKSTEP_RETURN_IF_ERROR(communicator.Receive(data, previous));
        for (int64_t& x : data) ++x;
        LOCKSTEP_RETURN_IF_ERROR(communicator.Send(data, next));
      }
      const int64_t want = rank == 0 ? communicator.world_size() : rank + 1;
      for (const int64_t x : data) {
        if (x != want) return absl::DataLossError("another message");
      }
    }
    return communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(Groups, HostCommunicatorTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses,
                                                          Backend::kMixed),
                                          testing::Values(1, 2, 3, 5)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

class SendReceiveTest : public testing::TestWithParam<Backend> {};

TEST_P(SendReceiveTest, MustAgree) {
  const auto statuses = RunRanks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> data(communicator.rank() == 0 ? 10 : 11);
    return communicator.rank() == 0 ? communicator.Send(data, 1)
                                    : communicator.Receive(data, 0);
  });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("rank 0 called Send(float32[10], to rank 1"
                                    ") at collectives/host/"),
                          HasSubstr("rank 1 called Receive(float32[11], from "
                                    "rank 0) at collectives/host/")))));
}

TEST_P(SendReceiveTest, TwoThatDoTheSameDisagree) {
  for (const bool send : {false, true}) {
    const auto statuses =
        RunRanks(GetParam(), 2, [send](Communicator& communicator) {
          std::vector<float> data(10);
          const int other = 1 - communicator.rank();
          return send ? communicator.Send(data, other)
                      : communicator.Receive(data, other);
        });
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("ranks disagree: rank 0 "
                                                  "called "))));
  }
}

TEST_P(SendReceiveTest, ToItselfIsRefused) {
  const auto statuses = RunRanks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> data(10);
    return communicator.rank() == 0 ? communicator.Send(data, 0)
                                    : communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("but that is itself"))));
}

INSTANTIATE_TEST_SUITE_P(Backends, SendReceiveTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

// The control of LargeMessagesInOrdinaryAndInGroupMemory: a check by bits only
// sees the order if another order has other bits.
TEST(RoughValueTest, AnotherOrderOfAdditionsGivesAnotherSum) {
  int different = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const float other = RoughValue(2, i) + RoughValue(1, i) + RoughValue(0, i);
    if (PlainSum(1000, 3, i) != other) ++different;
  }
  EXPECT_GT(different, 100);
}

}  // namespace
}  // namespace lockstep
