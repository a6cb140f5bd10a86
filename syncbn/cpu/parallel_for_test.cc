#include "syncbn/cpu/parallel_for.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "gtest/gtest.h"

extern "C" void omp_set_num_threads(int count);

namespace lockstep {
namespace {

constexpr int64_t kMuchWork = 100 * kWorkOfThread;

struct Part {
  int64_t begin;
  int64_t end;
  int thread;
};

std::vector<Part> PartsOf(int64_t items) {
  std::vector<Part> parts;
  // The thread sanitizer sees this one whether or not abseil is built with it.
  std::mutex mutex;
  ParallelFor(items, kMuchWork, [&](int64_t begin, int64_t end, int thread) {
    const std::lock_guard<std::mutex> lock(mutex);
    parts.push_back({begin, end, thread});
  });
  return parts;
}

TEST(ParallelForTest, VisitsEachItemOnceOnDifferentThreads) {
  for (int threads : {1, 2, 3, 8}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(MaxParallelThreads(), threads);
    for (int64_t items : {0, 1, 2, 3, 7, 8, 100}) {
      std::vector<int> visits(static_cast<size_t>(items));
      std::set<int> seen;
      for (const Part& part : PartsOf(items)) {
        EXPECT_LT(part.begin, part.end);
        EXPECT_GE(part.thread, 0);
        EXPECT_LT(part.thread, threads);
        EXPECT_TRUE(seen.insert(part.thread).second);
        for (int64_t i = part.begin; i < part.end; ++i) {
          ++visits[static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(items), 1))
          << items << " items on " << threads << " threads";
    }
  }
}

TEST(ParallelForTest, WritesAreSeenBeforeAndAfter) {
  omp_set_num_threads(4);
  std::vector<int64_t> numbers(1000);
  for (int64_t round = 0; round < 100; ++round) {
    for (int64_t& number : numbers) ++number;
    ParallelFor(1000, kMuchWork,
                [&](int64_t begin, int64_t end, int /*thread*/) {
                  for (int64_t i = begin; i < end; ++i) {
                    numbers[static_cast<size_t>(i)] += i;
                  }
                });
  }
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(numbers[static_cast<size_t>(i)], 100 * (i + 1));
  }
}

TEST(ParallelForTest, LittleWorkHasFewThreads) {
  omp_set_num_threads(4);
  for (int64_t work : {int64_t{0}, kWorkOfThread, 2 * kWorkOfThread - 1}) {
    int calls = 0;
    ParallelFor(10, work, [&](int64_t begin, int64_t end, int thread) {
      ++calls;
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, 10);
      EXPECT_EQ(thread, 0);
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(ParallelForTest, IsAPlainCallInsideAnother) {
  omp_set_num_threads(2);
  std::vector<std::vector<Part>> parts(2);
  ParallelFor(2, kMuchWork, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      parts[static_cast<size_t>(i)] = PartsOf(10);
    }
  });
  for (const std::vector<Part>& inner : parts) {
    ASSERT_EQ(inner.size(), 1u);
    EXPECT_EQ(inner[0].begin, 0);
    EXPECT_EQ(inner[0].end, 10);
    EXPECT_EQ(inner[0].thread, 0);
  }
}

}  // namespace
}  // namespace lockstep
