// What the collectives compute, over both host backends.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Elements around the limits of 64-byte slots and of segments, and primes.
constexpr int64_t kSmallCounts[] = {0,  1,  2,  3,  7,  8,   9,   15,   16,
                                    17, 31, 33, 61, 64, 127, 257, 1000, 1009};
constexpr int64_t kSmallSlotBytes = 64;
// Around the limits of slots of the size that is used.
constexpr int64_t kLargeCounts[] = {32749, 32768, 32769, 400009};

template <typename T>
constexpr DataType TypeOf() {
  if (std::is_same_v<T, float>) return DataType::kFloat32;
  if (std::is_same_v<T, double>) return DataType::kFloat64;
  return DataType::kInt64;
}

// Small integers, so that every sum of them is exact, in any order.
template <typename T>
T ExactValue(int rank, int64_t i) {
  return static_cast<T>((rank + 1) * (i * 37 % 10007 - 5000));
}

// Numbers of very different sizes, so that each order of additions gives
// another sum.
template <typename T>
T RoughValue(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(rank);
  x = (x ^ 0x5851f42d4c957f2d) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  const double mantissa = 1 + static_cast<double>(x >> 12) * 0x1p-52;
  const double sign = (x & 1) != 0 ? -1 : 1;
  return static_cast<T>(
      std::ldexp(sign * mantissa, static_cast<int>(x >> 1 & 15)));
}

template <typename T>
using Value = T (*)(int rank, int64_t i);

// Element i of the sum, in the order that ring_schedule.h states, with the
// segment found by counting: the first count % P segments have one more.
template <typename T>
T PlainSum(Value<T> value, int64_t count, int world_size, int64_t i) {
  int segment = 0;
  int64_t end = 0;
  while (true) {
    end += count / world_size + (segment < count % world_size ? 1 : 0);
    if (i < end) break;
    ++segment;
  }
  T sum = value(segment, i);
  for (int j = 1; j < world_size; ++j) {
    sum += value((segment + j) % world_size, i);
  }
  return sum;
}

// Appends the sum of `count` values of each rank, computed `offset` bytes after
// an aligned address.
template <typename T>
absl::Status AppendAllReduce(Communicator& communicator, Value<T> value,
                             int64_t count, size_t offset, std::string& out) {
  std::vector<std::byte> memory(static_cast<size_t>(count) * sizeof(T) +
                                offset);
  for (int64_t i = 0; i < count; ++i) {
    const T x = value(communicator.rank(), i);
    std::memcpy(memory.data() + offset + static_cast<size_t>(i) * sizeof(T), &x,
                sizeof(T));
  }
  Buffer buffer{std::span<T>()};
  buffer.data = memory.data() + offset;
  buffer.count = count;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduceSum(buffer));
  out.append(reinterpret_cast<const char*>(memory.data()) + offset,
             memory.size() - offset);
  return absl::OkStatus();
}

template <typename T>
void AppendPlainSum(Value<T> value, int64_t count, int world_size,
                    std::string& out) {
  for (int64_t i = 0; i < count; ++i) {
    const T x = PlainSum<T>(value, count, world_size, i);
    out.append(reinterpret_cast<const char*>(&x), sizeof(x));
  }
}

class HostCommunicatorTest
    : public testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }

  // Every rank's sums of `counts` elements must have the plain sums' bits.
  template <typename T>
  void ExpectPlainSums(Value<T> value, std::span<const int64_t> counts,
                       size_t offset, const RunRanksOptions& options) {
    std::string want;
    for (const int64_t count : counts) {
      AppendPlainSum<T>(value, count, world_size(), want);
    }
    const auto results = RunRanksCollect(
        backend(), world_size(),
        [&](Communicator& communicator) -> absl::StatusOr<std::string> {
          std::string out;
          for (const int64_t count : counts) {
            LOCKSTEP_RETURN_IF_ERROR(
                AppendAllReduce<T>(communicator, value, count, offset, out));
          }
          return out;
        },
        options);
    for (const auto& result : results) {
      ASSERT_THAT(result, IsOk());
      EXPECT_TRUE(*result == want);
    }
  }
};

RunRanksOptions SmallSlots() {
  RunRanksOptions options;
  options.group.slot_bytes = kSmallSlotBytes;
  return options;
}

TEST_P(HostCommunicatorTest, AllReduceSumsExactValuesOfEveryType) {
  ExpectPlainSums<float>(ExactValue, kSmallCounts, 0, SmallSlots());
  ExpectPlainSums<double>(ExactValue, kSmallCounts, 0, SmallSlots());
  ExpectPlainSums<int64_t>(ExactValue, kSmallCounts, 0, SmallSlots());
}

TEST_P(HostCommunicatorTest, AllReduceAddsInTheStatedOrder) {
  ExpectPlainSums<float>(RoughValue, kSmallCounts, 0, SmallSlots());
  ExpectPlainSums<double>(RoughValue, kSmallCounts, 0, SmallSlots());
}

TEST_P(HostCommunicatorTest, AllReduceTakesAnyAlignment) {
  for (const size_t offset : {1, 2, 4}) {
    ExpectPlainSums<float>(RoughValue, kSmallCounts, offset, SmallSlots());
    ExpectPlainSums<double>(RoughValue, kSmallCounts, offset, SmallSlots());
    ExpectPlainSums<int64_t>(ExactValue, kSmallCounts, offset, SmallSlots());
  }
}

TEST_P(HostCommunicatorTest, AllReduceOfManySlotsOfTheDefaultSize) {
  ExpectPlainSums<float>(RoughValue, kLargeCounts, 0, {});
}

TEST_P(HostCommunicatorTest, BroadcastCopiesTheRootsBytes) {
  const auto byte = [](int root, int64_t i) {
    return static_cast<std::byte>(i * 7 + root * 31 + 1);
  };
  const auto statuses = RunRanks(
      backend(), world_size(),
      [&](Communicator& communicator) {
        for (const int64_t size : kSmallCounts) {
          for (int root = 0; root < communicator.world_size(); ++root) {
            std::vector<std::byte> data(static_cast<size_t>(size));
            for (int64_t i = 0; i < size; ++i) {
              data[i] = byte(communicator.rank(), i);
            }
            LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast(data, root));
            for (int64_t i = 0; i < size; ++i) {
              if (data[i] == byte(root, i)) continue;
              return absl::DataLossError(
                  absl::StrCat("byte ", i, " of ", size, " from root ", root));
            }
          }
        }
        return absl::OkStatus();
      },
      SmallSlots());
  EXPECT_THAT(statuses, testing::Each(IsOk()));
}

TEST_P(HostCommunicatorTest, AllGatherConcatenatesInRankOrder) {
  const auto byte = [](int rank, int64_t i) {
    return static_cast<std::byte>(i * 7 + rank * 31 + 1);
  };
  const auto statuses = RunRanks(
      backend(), world_size(),
      [&](Communicator& communicator) {
        const int rank = communicator.rank();
        for (const int64_t n : kSmallCounts) {
          for (const bool in_place : {false, true}) {
            std::vector<std::byte> input(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i) input[i] = byte(rank, i);
            std::vector<std::byte> output(input.size() *
                                          communicator.world_size());
            std::span<const std::byte> source = input;
            if (in_place) {
              const auto place =
                  std::span(output).subspan(rank * input.size(), input.size());
              std::copy(input.begin(), input.end(), place.begin());
              source = place;
            }
            LOCKSTEP_RETURN_IF_ERROR(communicator.AllGather(source, output));
            for (size_t i = 0; i < output.size(); ++i) {
              const int from = static_cast<int>(i / input.size());
              if (output[i] == byte(from, i % input.size())) continue;
              return absl::DataLossError(
                  absl::StrCat("byte ", i, " of ", n, " a rank"));
            }
          }
        }
        return absl::OkStatus();
      },
      SmallSlots());
  EXPECT_THAT(statuses, testing::Each(IsOk()));
}

// Each rank counts itself in memory that all share, before the barrier.
TEST_P(HostCommunicatorTest, NoRankLeavesABarrierBeforeAllHaveReachedIt) {
  void* memory = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* reached = new (memory) std::atomic<int>(0);
  const auto statuses =
      RunRanks(backend(), world_size(), [&](Communicator& communicator) {
        for (int round = 1; round <= 50; ++round) {
          reached->fetch_add(1);
          LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
          if (reached->load() < round * communicator.world_size()) {
            return absl::DataLossError(absl::StrCat("left round ", round));
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, testing::Each(IsOk()));
  munmap(memory, sizeof(std::atomic<int>));
}

INSTANTIATE_TEST_SUITE_P(Groups, HostCommunicatorTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses),
                                          testing::Values(1, 2, 3, 5, 8)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

// The control of AllReduceAddsInTheStatedOrder: a check by bits only sees the
// order if another order has other bits.
TEST(RoughValueTest, AnotherOrderOfAdditionsGivesAnotherSum) {
  const Value<float> reversed = [](int rank, int64_t i) {
    return RoughValue<float>(2 - rank, i);
  };
  std::string stated;
  std::string other;
  AppendPlainSum<float>(RoughValue, 1000, 3, stated);
  AppendPlainSum<float>(reversed, 1000, 3, other);
  EXPECT_FALSE(stated == other);
}

// The control of AllReduceSumsExactValuesOfEveryType.
TEST(ExactValueTest, EveryRankCountsAtEveryPosition) {
  for (int rank = 0; rank < 8; ++rank) {
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_NE(ExactValue<float>(rank, i), 0);
      EXPECT_NE(ExactValue<float>(rank, i), ExactValue<float>(rank, i + 1));
    }
  }
}

}  // namespace
}  // namespace lockstep
