// Tests of groups that share memory: buffers that the group allocates, groups
// within groups, all sizes; and of functions that run on all ranks.
// conformance/collectives checks the results of each call.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/async_communicator.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// A part of a group's buffer.
class GroupMemory : public CheckedMemory {
 public:
  GroupMemory(std::span<std::byte> room, const Bytes& content)
      : CheckedMemory(content.size()),
        room_(room.first(content.size() + kGuardBytes)) {
    const Bytes image = Guarded(content, 0, kGuardBytes);
    std::copy(image.begin(), image.end(), room_.begin());
  }
  std::byte* data() override { return room_.data(); }

  static constexpr size_t kGuardBytes = 64;

 private:
  absl::StatusOr<Bytes> Image() const override {
    return Bytes(room_.begin(), room_.end());
  }

  const std::span<std::byte> room_;
};

class HostCommunicatorTest
    : public testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  void SetUp() override {
    if (!IsBuilt(std::get<0>(GetParam()))) GTEST_SKIP() << "without OpenSSL";
  }
  std::vector<absl::Status> Run(
      const std::function<absl::Status(Communicator&)>& fn) {
    return RunRanks(std::get<0>(GetParam()), std::get<1>(GetParam()), fn);
  }
};

// Tests sizes around the limits of the pieces of messages. In group memory it
// also tests one size so large that results are written past the caches (16 MiB
// of all inputs and outputs: algorithms/reduction.cc).
TEST_P(HostCommunicatorTest, LargeMessagesInOrdinaryAndInGroupMemory) {
  constexpr int64_t kLargest = (2 << 20) + 11;
  std::vector<CheckedCall> calls;
  for (const int64_t count : {32767, 32768, 65537}) {
    for (const bool in_place : {false, true}) {
      calls.push_back({Operation::kAllReduce, DataType::kFloat32,
                       ReduceOp::kSum, count, /*root=*/0, in_place});
    }
  }
  const auto statuses = Run([&](Communicator& communicator) -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(RunAndCheck(
        communicator, calls, AdditionOrder::kBySize, [](const Bytes& content) {
          return std::make_unique<GuardedMemory>(content, /*offset=*/0);
        }));
    // One half is for the input, the other for the output.
    constexpr size_t kHalf = (kLargest + 32) * 4 / 64 * 64;
    static_assert(kHalf >= kLargest * 4 + GroupMemory::kGuardBytes);
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer group,
                              communicator.Allocate(2 * kHalf));
    std::vector<CheckedCall> in_group = calls;
    if (communicator.world_size() <= 3) {
      in_group.push_back({Operation::kAllReduce, DataType::kFloat32,
                          ReduceOp::kSum, kLargest});
    }
    size_t next = 0;
    return RunAndCheck(communicator, in_group, AdditionOrder::kBySize,
                       [&](const Bytes& content) {
                         next = kHalf - next;
                         return std::make_unique<GroupMemory>(
                             group.bytes().subspan(next, kHalf), content);
                       });
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Tests all-reduces of ordinary memory, in staged pieces whose memory is used
// again after a few pieces. Calls of different sizes and values follow each
// other, on ranks that drift, in small and in large pieces. In every third call
// one rank's buffer lies in group memory.
TEST(StagedReductionTest, NoPieceMeetsAnEarlierOne) {
  for (const int64_t slot_bytes : {64, 4096, 128 << 10}) {
    for (const int world_size : {2, 3, 5}) {
      RunRanksOptions options;
      options.group.slot_bytes = slot_bytes;
      const auto statuses = RunRanks(
          Backend::kProcesses, world_size,
          [&](Communicator& group) -> absl::Status {
            constexpr size_t kMost = 60000;
            LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer in_group,
                                      group.Allocate(kMost * sizeof(int32_t)));
            std::vector<int32_t> own(kMost);
            for (int call = 0; call < 60; ++call) {
              const size_t n = slot_bytes == 64 ? 4100 + 37 * (call % 7)
                                                : 4100 + 7919 * (call % 8);
              const bool mixed = call % 3 == 2 && group.rank() == 1;
              const auto data =
                  (mixed ? in_group.as<int32_t>() : std::span(own)).first(n);
              const auto value = [&](int rank, size_t i) {
                return static_cast<int32_t>((rank + 1) * (call * 131 + i % 97));
              };
              for (size_t i = 0; i < n; ++i) data[i] = value(group.rank(), i);
              LOCKSTEP_RETURN_IF_ERROR(
                  group.Run(call % 2 == 0 ? Collective::UniformAllReduce(data)
                                          : Collective::AllReduce(data, data)));
              for (size_t i = 0; i < n; ++i) {
                const int32_t all = world_size * (world_size + 1) / 2;
                if (data[i] == all * value(0, i)) continue;
                return absl::DataLossError(
                    absl::StrCat("call ", call, ", element ", i));
              }
            }
            return absl::OkStatus();
          },
          options);
      EXPECT_THAT(statuses, Each(IsOk())) << slot_bytes << " " << world_size;
    }
  }
}

// Tests messages of up to 32 bytes, which travel with the call, and longer
// ones, which are staged beside it. Both kinds alternate, also between the
// ranks of one call, which gather as many elements as each of them has.
TEST_P(HostCommunicatorTest, NoSmallMessageMeetsAnEarlierOne) {
  const auto statuses = Run([&](Communicator& group) -> absl::Status {
    const int64_t ranks = group.world_size();
    const auto value = [](int call, int64_t rank, int64_t i) {
      return static_cast<int32_t>((rank + 1) * (call * 131 + i % 97));
    };
    for (int call = 0; call < 400; ++call) {
      std::vector<int64_t> counts;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const bool reduces = call % 3 > 0;
        counts.push_back(1 + (call * 5 + (reduces ? 0 : rank * 7)) % 13);
      }
      std::vector<int32_t> own(static_cast<size_t>(counts[group.rank()]));
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = value(call, group.rank(), static_cast<int64_t>(i));
      }
      std::vector<int32_t> want;
      if (call % 3 > 0) {
        for (int64_t i = 0; i < counts[0]; ++i) {
          want.push_back(static_cast<int32_t>(ranks * (ranks + 1) / 2) *
                         value(call, 0, i));
        }
        LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(own));
      } else {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (int64_t i = 0; i < counts[rank]; ++i) {
            want.push_back(value(call, rank, i));
          }
        }
        std::vector<int32_t> all(want.size());
        LOCKSTEP_RETURN_IF_ERROR(
            group.Run(Collective::AllGather(own, all, counts)));
        own = std::move(all);
      }
      if (own != want) return absl::DataLossError(absl::StrCat("call ", call));
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
  return bytes.empty() ||
         (bytes[0] == std::byte{0} &&
          std::memcmp(&bytes[0], &bytes[0] + 1, bytes.size() - 1) == 0);
}

TEST_P(HostCommunicatorTest, AllocatesZeroedMemoryOfAnySize) {
  const auto statuses = Run([](Communicator& communicator) {
    for (const int64_t size : {0, 1, 63, 4096, 4097, 1000000, 5 << 20}) {
      // Allocates twice, so that the second memory could be the first one's.
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
        // No rank may still read while others write.
        LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Returns the bytes of shared huge pages in the mapping that holds `address`.
int64_t SharedHugeBytes(const void* address) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) {
      inside = begin <= place && place < end;
    } else if (inside &&
               std::sscanf(line.c_str(), "ShmemPmdMapped: %zd", &kib) == 1) {
      return kib << 10;
    }
  }
  return -1;
}

constexpr int64_t kHugePage = 2 << 20;

// Returns whether the kernel makes huge pages of shared memory on request.
bool MakesSharedHugePages() {
  void* const range = mmap(nullptr, 2 * kHugePage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return false;
  auto* const begin = static_cast<std::byte*>(range);
  void* const page =
      begin + (-reinterpret_cast<uintptr_t>(range) & (kHugePage - 1));
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1.
  const bool made =
      mmap(page, kHugePage, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page &&
      std::memset(page, 1, kHugePage) == page &&
      madvise(page, kHugePage, kCollapse) == 0;
  munmap(range, 2 * kHugePage);
  return made;
}

TEST(HostMemoryTest, IsPutIntoHugePagesByTheFirstCall) {
  if (!MakesSharedHugePages()) GTEST_SKIP() << "the kernel makes none";
  const auto statuses = RunRanks(
      Backend::kProcesses, 2, [](Communicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(
            const GroupBuffer buffer,
            communicator.Allocate(2 * kHugePage + kHugePage / 2));
        const std::span<float> values = buffer.as<float>();
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(i % 1000 + communicator.rank());
        }
        LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(values));
        for (size_t i = 0; i < values.size(); ++i) {
          if (values[i] == static_cast<float>(2 * (i % 1000) + 1)) continue;
          return absl::DataLossError(absl::StrCat("element ", i));
        }
        const int64_t huge = SharedHugeBytes(values.data());
        if (huge < 3 * kHugePage) {
          return absl::InternalError(absl::StrCat(huge, " bytes"));
        }
        return communicator.Barrier();
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
      EXPECT_THAT(
          RunRanks(backend, 2,
                   [size](Communicator& communicator) {
                     return communicator.Allocate(size).status();
                   }),
          Each(StatusIs(absl::StatusCode::kInvalidArgument,
                        HasSubstr("the size is negative or too large"))));
    }
  }
}

// Splits into odd and even ranks, each in reverse order. Rank 0 joins no group.
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

// Sums on the whole group on a second thread, while this thread gathers on the
// part. first: this rank begins the sum before it gathers; otherwise it begins
// the sum after it has gathered.
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

// In turn one rank, all ranks, or none call the whole group first. That one
// rank waits there until it has called the part. A group that blocked the
// rank's other thread would never return.
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

INSTANTIATE_TEST_SUITE_P(
    Groups, HostCommunicatorTest,
    testing::Combine(testing::Values(Backend::kThreads, Backend::kProcesses,
                                     Backend::kMixed, Backend::kTcp),
                     testing::Values(1, 2, 3, 5)),
    [](const auto& info) {
      return absl::StrCat(Name(std::get<0>(info.param)), "P",
                          std::get<1>(info.param));
    });

TEST(RunOnThreadsTest, RunsEveryRankOnce) {
  for (const int world_size : {1, 2, 3, 8}) {
    std::atomic<int> ranks = 0;
    EXPECT_THAT(RunOnThreads(world_size, {},
                             [&](Communicator& group) {
                               ranks += 1 << group.rank();
                               return group.Barrier();
                             }),
                IsOk());
    EXPECT_EQ(ranks, (1 << world_size) - 1);
  }
}

// The other ranks return kUnavailable, which is the cause only if no rank has
// another error.
TEST(RunOnThreadsTest, ReturnsTheCause) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    for (const absl::Status& cause :
         {absl::OkStatus(), absl::DataLossError("bad batch")}) {
      EXPECT_THAT(
          RunOnThreads(3, {},
                       [&](Communicator& group) {
                         return group.rank() == culprit ? cause
                                                        : group.Barrier();
                       }),
          cause.ok() ? StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr(absl::StrCat("rank ", culprit,
                                                       " left the group")))
                     : StatusIs(absl::StatusCode::kDataLoss,
                                HasSubstr(std::string("bad batch"))));
    }
  }
  EXPECT_THAT(
      RunOnThreads(0, {}, [](Communicator&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size 0")));
}

TEST(RunRanksTest, ReportsWhyThereIsNoGroup) {
  RunRanksOptions options;
  options.group.slot_bytes = 65;
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    EXPECT_THAT(RunRanks(
                    backend, 2, [](Communicator&) { return absl::OkStatus(); },
                    options),
                Each(StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("slot_bytes 65"))));
  }
}

TEST(RunRanksTest, NamesARankThatOutlivesTheDeadline) {
  const auto statuses =
      RunRanks(Backend::kProcesses, 2,
               [](Communicator& communicator) {
                 while (communicator.rank() == 1) pause();
                 return absl::OkStatus();
               },
               {.group = {}, .deadline = absl::Milliseconds(300)});
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    "rank 1 was still running after 300ms"));
}

TEST(RunRanksTest, TheDeadlineFollowsTheTestsTimeout) {
  const char* const given = std::getenv("TEST_TIMEOUT");
  const std::string before = given == nullptr ? "" : given;
  const auto deadline_at = [](const char* timeout) {
    setenv("TEST_TIMEOUT", timeout, /*replace=*/1);
    return RunRanksOptions().deadline;
  };
  EXPECT_EQ(deadline_at("60"), absl::Minutes(1));
  EXPECT_EQ(deadline_at("300"), absl::Minutes(4));
  EXPECT_EQ(deadline_at("3600"), absl::Minutes(10));
  EXPECT_EQ(deadline_at(""), absl::Minutes(10));
  setenv("TEST_TIMEOUT", before.c_str(), /*replace=*/1);
}

TEST(RunRanksTest, NamesHowARankWithoutResultEnded) {
  const auto statuses = RunRanks(
      Backend::kProcesses, 3, [](Communicator& communicator) -> absl::Status {
        if (communicator.rank() == 1) raise(SIGKILL);
        if (communicator.rank() == 2) _exit(3);
        return absl::OkStatus();
      });
  EXPECT_THAT(
      statuses,
      ElementsAre(
          IsOk(),
          StatusIs(absl::StatusCode::kAborted, "rank 1 ended by signal 9"),
          StatusIs(absl::StatusCode::kAborted, HasSubstr("exit status 3"))));
}

}  // namespace
}  // namespace lockstep
