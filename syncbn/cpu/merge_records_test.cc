// Merging of ranks' records, by exact numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/test_activations.h"

namespace lockstep {
namespace {

constexpr int64_t kChannels = 67;

// Rank r's values of channel c: two-power steps, so that sums are exact.
std::vector<double> ValuesOf(int rank, int64_t count, int64_t c) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<double>((i * 7 + rank * 3 + c) % 16) / 4);
  }
  return values;
}

struct Sums {
  double count = 0;
  double mean = 0;
  double m2 = 0;
};

Sums SumsOf(const std::vector<double>& values) {
  Sums sums;
  sums.count = static_cast<double>(values.size());
  for (double value : values) sums.mean += value / sums.count;
  for (double value : values) {
    sums.m2 += (value - sums.mean) * (value - sums.mean);
  }
  return sums;
}

// The ranks' records, one after the other; all types of one size.
struct Gathered {
  Gathered(const std::vector<int64_t>& counts, DataType type)
      : layout(TestRecord(kChannels, type).layout()),
        all(kChannels),
        blocks(static_cast<size_t>(layout.size_bytes()) / 16 *
               std::max<size_t>(counts.size(), 1)) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      TestRecord record(kChannels, type);
      record.SetCount(counts[rank]);
      for (int64_t c = 0; c < kChannels; ++c) {
        const std::vector<double> values =
            ValuesOf(static_cast<int>(rank), counts[rank], c);
        const Sums sums = SumsOf(values);
        // What an empty rank's numbers are does not matter.
        record.SetMean(c, values.empty() ? 1e30 : sums.mean);
        record.SetSecond(c, values.empty() ? std::nan("") : sums.m2);
        auto& channel = all[static_cast<size_t>(c)];
        channel.insert(channel.end(), values.begin(), values.end());
      }
      std::memcpy(data() + static_cast<int64_t>(rank) * layout.size_bytes(),
                  record.data(), static_cast<size_t>(layout.size_bytes()));
    }
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(blocks.data()); }

  struct alignas(16) Block {
    std::byte bytes[16];
  };
  StatisticsRecord layout;
  std::vector<std::vector<double>> all;  // Of all ranks, by channel.
  std::vector<Block> blocks;
};

struct Running {
  explicit Running(DataType type)
      : mean(kChannels, type), variance(kChannels, type) {
    for (int64_t c = 0; c < kChannels; ++c) {
      mean.Set(c, 0.5);
      variance.Set(c, 2);
    }
  }
  RunningStatistics statistics() {
    return {mean.buffer(), variance.buffer(), &batches};
  }
  GuardedArray mean;
  GuardedArray variance;
  int64_t batches = 5;
};

// Merges them, with running statistics if there are any.
int64_t Merge(Gathered& gathered, size_t ranks, const MergeOptions& options,
              const RunningStatistics& running, TestRecord& saved) {
  return CpuBatchNormKernels()
      .Merge(gathered.layout, gathered.data(), static_cast<int>(ranks), options,
             running, saved.data())
      .value();
}

struct MergeCase {
  std::vector<int64_t> counts;
  bool unbiased;
  double weight;
};

const std::vector<MergeCase>& AllMergeCases() {
  static const auto& cases =
      *new std::vector<MergeCase>{{{8}, true, 0.125},
                                  {{8}, false, 0.125},
                                  {{0, 1, 9}, true, 0.25},
                                  {{1, 0, 1}, false, 1},
                                  {{3, 5, 0, 200, 1}, true, 0},
                                  {{0, 0, 2, 0}, true, 0.5},
                                  {{1, 1, 1, 1, 1, 1, 1, 1}, true, 0.1}};
  return cases;
}

// The records' float numbers are off by 2^-24 of themselves; the rest is in
// float64 and rounded once. Deltas of means are at most 4.
double Tolerance(DataType type, double size) {
  return 8 * UnitRoundoff(StatisticsTypeOf(type)) * (size + 4);
}

TEST(MergeRecordsTest, GivesTheStatisticsOfAllValues) {
  constexpr double kEpsilon = 1e-3;
  for (DataType type : {DataType::kFloat32, DataType::kFloat64}) {
    for (const MergeCase& test_case : AllMergeCases()) {
      Gathered gathered(test_case.counts, type);
      Running running(type);
      TestRecord saved(kChannels, type);
      const int64_t count =
          Merge(gathered, test_case.counts.size(),
                {.epsilon = kEpsilon,
                 .weight_of_batch = test_case.weight,
                 .unbiased_running_variance = test_case.unbiased,
                 .refuses_one_value = true},
                running.statistics(), saved);
      EXPECT_EQ(count, static_cast<int64_t>(gathered.all[0].size()));
      EXPECT_EQ(saved.count(), count);
      EXPECT_TRUE(saved.GuardIsIntact());
      EXPECT_EQ(running.batches, 5);
      for (int64_t c = 0; c < kChannels; ++c) {
        const Sums sums = SumsOf(gathered.all[static_cast<size_t>(c)]);
        const double variance = sums.m2 / sums.count;
        const double w = test_case.weight;
        const double entering =
            test_case.unbiased ? sums.m2 / (sums.count - 1) : variance;
        const double tolerance = Tolerance(type, entering);
        EXPECT_NEAR(saved.mean(c), sums.mean, tolerance);
        EXPECT_NEAR(1 / (saved.second(c) * saved.second(c)),
                    variance + kEpsilon, tolerance);
        EXPECT_NEAR(running.mean.Get(c), (1 - w) * 0.5 + w * sums.mean,
                    tolerance);
        EXPECT_NEAR(running.variance.Get(c), (1 - w) * 2 + w * entering,
                    tolerance);
      }
    }
  }
}

// The controls: numbers that other merges give are farther off than that.
TEST(MergeRecordsTest, ToleranceTellsOtherMergesApart) {
  const Gathered gathered({0, 1, 9}, DataType::kFloat32);
  const Sums all = SumsOf(gathered.all[0]);
  const double tolerance = Tolerance(DataType::kFloat32, all.m2 / 9);
  const double mean_of_means =
      (SumsOf(ValuesOf(1, 1, 0)).mean + SumsOf(ValuesOf(2, 9, 0)).mean) / 2;
  EXPECT_GT(std::abs(mean_of_means - all.mean), tolerance);
  EXPECT_GT(std::abs(SumsOf(ValuesOf(2, 9, 0)).m2 - all.m2) / 10, tolerance);
  EXPECT_GT(all.m2 / 9 - all.m2 / 10, tolerance);
}

TEST(MergeRecordsTest, OfNothingIsNeutral) {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{0}, std::vector<int64_t>{0, 0, 0}}) {
    Gathered gathered(counts, DataType::kFloat32);
    Running running(DataType::kFloat32);
    TestRecord saved(kChannels, DataType::kFloat32);
    EXPECT_EQ(
        Merge(gathered, counts.size(), {.epsilon = 0.25, .weight_of_batch = 1},
              running.statistics(), saved),
        0);
    for (int64_t c = 0; c < kChannels; ++c) {
      EXPECT_EQ(saved.mean(c), 0);
      EXPECT_EQ(saved.second(c), 2);
      EXPECT_EQ(running.mean.Get(c), 0.5);
      EXPECT_EQ(running.variance.Get(c), 2);
    }
  }
}

TEST(MergeRecordsTest, OneValueEntersOnlyWhereItIsNotRefused) {
  for (bool refuses : {true, false}) {
    Gathered gathered({0, 1, 0}, DataType::kFloat32);
    Running running(DataType::kFloat32);
    TestRecord saved(kChannels, DataType::kFloat32);
    EXPECT_EQ(Merge(gathered, 3,
                    {.epsilon = 0.25,
                     .weight_of_batch = 1,
                     .unbiased_running_variance = false,
                     .refuses_one_value = refuses},
                    running.statistics(), saved),
              1);
    EXPECT_EQ(running.mean.Get(0), refuses ? 0.5 : ValuesOf(1, 1, 0)[0]);
    EXPECT_EQ(running.variance.Get(0), refuses ? 2 : 0);
  }
}

TEST(MergeRecordsTest, NothingIsTrackedWithoutRunningStatistics) {
  Gathered gathered({4, 4}, DataType::kFloat64);
  TestRecord saved(kChannels, DataType::kFloat64);
  EXPECT_EQ(Merge(gathered, 2, {.epsilon = 1}, RunningStatistics(), saved), 8);
}

TEST(UseRunningStatisticsTest, AreConstants) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat64}) {
    Running running(type);
    TestRecord saved(kChannels, type);
    EXPECT_THAT(
        CpuBatchNormKernels().UseRunning(saved.layout(), running.statistics(),
                                         /*epsilon=*/2, saved.data()),
        IsOk());
    EXPECT_EQ(saved.count(), 0);
    EXPECT_TRUE(saved.GuardIsIntact());
    for (int64_t c = 0; c < kChannels; ++c) {
      EXPECT_EQ(saved.mean(c), 0.5);
      EXPECT_EQ(saved.second(c), 0.5);
    }
  }
}

}  // namespace
}  // namespace lockstep
