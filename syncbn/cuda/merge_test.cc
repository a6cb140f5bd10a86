// Merging and running statistics against float64. Linked with the stand-in
// runtime they need no GPU, with the CUDA runtime they need one.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/kernel_testing.h"
#include "syncbn/cuda/kernels.h"
#include "syncbn/moments.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kEpsilon = 1e-5;

StatisticsRecord LayoutOf(int64_t channels) {
  return {.channels = channels, .type = DataType::kFloat32};
}

// Of `count` values about 1000 deviations from 0. An empty rank's numbers are
// NaN, since they must not matter.
RecordValues RandomRecord(int64_t channels, int64_t count, uint32_t seed) {
  RecordValues record;
  record.count = count;
  const auto n = static_cast<size_t>(channels);
  record.mean = count == 0 ? std::vector<double>(n, std::nan(""))
                           : RoundedTo(DataType::kFloat32,
                                       RandomValues(channels, seed, 1000));
  record.second = count == 0
                      ? std::vector<double>(n, std::nan(""))
                      : RoundedTo(DataType::kFloat32,
                                  RandomValues(channels, seed + 1,
                                               static_cast<double>(count)));
  for (double& m2 : record.second) m2 = count == 1 ? 0 : std::abs(m2);
  return record;
}

// From the definition: the grand mean, then deviations from it.
Moments<double> Pooled(const std::vector<RecordValues>& records, size_t c) {
  Moments<double> all;
  for (const RecordValues& r : records) all.count += r.count;
  if (all.count == 0) return all;
  const double n = static_cast<double>(all.count);
  for (const RecordValues& r : records) {
    if (r.count > 0) all.mean += static_cast<double>(r.count) / n * r.mean[c];
  }
  for (const RecordValues& r : records) {
    const double delta = r.count > 0 ? r.mean[c] - all.mean : 0;
    if (r.count == 0) continue;
    all.m2 += r.second[c] + static_cast<double>(r.count) * delta * delta;
  }
  return all;
}

// Float64 arithmetic leaves one rounding to float32, and a little.
double Tolerance(double x) { return std::abs(x) * (kRoundOff + 1e-9) + 1e-30; }

struct Tracked {
  std::vector<double> mean;
  std::vector<double> variance;
};

class MergeTest : public GpuTest {
 protected:
  // Merges on the device and compares; running statistics start at 0.5 and 2.
  static void Check(const std::vector<RecordValues>& records,
                    const MergeOptions& options, bool tracks) {
    const auto channels = static_cast<int64_t>(records[0].mean.size());
    const DeviceRecords gathered(records);
    const std::vector<double> nan(records[0].mean.size(), std::nan(""));
    const DeviceRecords saved({{-1, nan, nan}});
    const DeviceTensor mean(DataType::kFloat32,
                            std::vector<double>(nan.size(), 0.5));
    const DeviceTensor variance(DataType::kFloat32,
                                std::vector<double>(nan.size(), 2.0));
    RunningStatistics running;
    if (tracks) running = {mean.buffer(), variance.buffer(), nullptr};
    ASSERT_THAT(MergeRecords(LayoutOf(channels), gathered.data(),
                             static_cast<int>(records.size()), options, running,
                             saved.data(), nullptr),
                IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Tracked got = {mean.Read(), variance.Read()};
    Compare(records, options, tracks, saved.Read(channels), got);
  }

  static void Compare(const std::vector<RecordValues>& records,
                      const MergeOptions& options, bool tracks,
                      const RecordValues& saved, const Tracked& running) {
    const double w = options.weight_of_batch;
    for (size_t c = 0; c < records[0].mean.size(); ++c) {
      const Moments<double> want = Pooled(records, c);
      const double n = static_cast<double>(want.count);
      const double biased = want.count == 0 ? 0 : want.m2 / n;
      const double inverse = 1 / std::sqrt(biased + options.epsilon);
      EXPECT_EQ(saved.count, want.count);
      EXPECT_LE(std::abs(saved.mean[c] - want.mean), Tolerance(want.mean));
      EXPECT_LE(std::abs(saved.second[c] - inverse), Tolerance(inverse));
      const bool enters = tracks && want.count > 0 &&
                          !(want.count == 1 && options.refuses_one_value);
      const double entering =
          options.unbiased_running_variance ? want.m2 / (n - 1) : biased;
      const double mean = enters ? (1 - w) * 0.5 + w * want.mean : 0.5;
      const double variance = enters ? (1 - w) * 2 + w * entering : 2;
      EXPECT_LE(std::abs(running.mean[c] - mean), Tolerance(mean));
      EXPECT_LE(std::abs(running.variance[c] - variance), Tolerance(variance));
    }
  }
};

TEST_F(MergeTest, EqualsTheReference) {
  const std::vector<std::vector<int64_t>> ranks = {
      {7}, {5, 5}, {3, 1}, {0, 4}, {4, 0, 9}, {1, 0, 1}, {2, 3, 5, 7, 0, 11}};
  for (const int64_t channels : {1, 3, 63, 64, 65, 130}) {
    for (const std::vector<int64_t>& counts : ranks) {
      std::vector<RecordValues> records;
      for (const int64_t count : counts) {
        records.push_back(RandomRecord(
            channels, count, static_cast<uint32_t>(10 + 2 * records.size())));
      }
      for (const bool unbiased : {true, false}) {
        Check(records, {kEpsilon, 0.1, unbiased, unbiased}, true);
      }
      Check(records, {kEpsilon, 0.1, true, true}, false);
    }
  }
}

// 2^31 values a rank.
TEST_F(MergeTest, CountsPast32Bits) {
  const RecordValues a = {int64_t{1} << 31, {1}, {0x1p31}};
  const RecordValues b = {int64_t{1} << 31, {2}, {0x1p31}};
  Check({a, b, a}, {kEpsilon, 1, true, true}, true);
}

TEST_F(MergeTest, NothingAtAll) {
  const RecordValues none = RandomRecord(3, 0, 1);
  Check({none}, {kEpsilon, 0.1, true, true}, true);
  Check({none, none}, {kEpsilon, 0.1, false, false}, true);
}

TEST_F(MergeTest, OneValueEntersWhereItIsNotRefused) {
  const RecordValues one = RandomRecord(3, 1, 1);
  const RecordValues none = RandomRecord(3, 0, 1);
  Check({none, one}, {kEpsilon, 0.1, true, true}, true);
  Check({none, one}, {kEpsilon, 0.1, false, false}, true);
}

TEST_F(MergeTest, UsesRunningStatistics) {
  const int64_t channels = 65;
  const DeviceTensor mean(DataType::kFloat32, RandomValues(channels, 1, 5));
  const DeviceTensor variance(DataType::kFloat32,
                              RandomValues(channels, 2, 9, 0.5));
  const std::vector<double> nan(65, std::nan(""));
  const DeviceRecords saved({{-1, nan, nan}});
  ASSERT_THAT(UseRunning(LayoutOf(channels),
                         {mean.buffer(), variance.buffer(), nullptr}, kEpsilon,
                         saved.data(), nullptr),
              IsOk());
  const RecordValues got = saved.Read(channels);
  EXPECT_EQ(got.count, 0);
  EXPECT_EQ(got.mean, mean.values());
  std::vector<double> inverse;
  for (const double v : variance.values()) {
    inverse.push_back(1 / std::sqrt(v + kEpsilon));
  }
  EXPECT_TRUE(AllNear(got.second, inverse,
                      [&](size_t i) { return Tolerance(inverse[i]); }));
}

TEST_F(MergeTest, TracksBiasedVariance) {
  const DeviceTensor mean(DataType::kFloat32, {4.0, 8.0});
  const DeviceTensor unbiased(DataType::kFloat32, {3.0, 6.0});
  const DeviceTensor running_mean(DataType::kFloat32, {0.0, 0.0});
  const DeviceTensor running_variance(DataType::kFloat32, {1.0, 1.0});
  const auto data = [](const DeviceTensor& tensor) {
    return static_cast<const float*>(tensor.buffer().data);
  };
  ASSERT_THAT(
      TrackBiased(LayoutOf(2), data(mean), data(unbiased), 3, 0.25,
                  {running_mean.buffer(), running_variance.buffer(), nullptr},
                  nullptr),
      IsOk());
  EXPECT_EQ(running_mean.Read(), (std::vector<double>{1, 2}));
  EXPECT_TRUE(AllNear(running_variance.Read(), {1.25, 1.75},
                      [](size_t) { return 2 * kRoundOff; }));
}

TEST_F(MergeTest, RefusesFloat64) {
  StatisticsRecord record = LayoutOf(1);
  record.type = DataType::kFloat64;
  EXPECT_THAT(MergeRecords(record, nullptr, 1, {}, {}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
  EXPECT_THAT(UseRunning(record, {}, 1, nullptr, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: what the reference and its tolerance tell apart.
TEST(MergeReferenceTest, TellsMutantsApart) {
  const RecordValues a = {3, {1}, {3}};
  const RecordValues b = {1, {5}, {0}};
  const Moments<double> all = Pooled({a, b}, 0);
  EXPECT_EQ(all.count, 4);
  EXPECT_EQ(all.mean, 2);  // Not 3, the mean of means.
  EXPECT_EQ(all.m2, 15);   // Not 3, without what lies between the ranks.
  EXPECT_GT(std::abs(all.m2 / 3 - all.m2 / 4), Tolerance(all.m2 / 4));
}

}  // namespace
}  // namespace lockstep
