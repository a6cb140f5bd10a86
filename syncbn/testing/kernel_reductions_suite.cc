// Tests the operations that reduce a batch to numbers per channel, and the
// merge of these numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/kernel_suite.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {
namespace {

// Moments of a batch.

// Computes the moments in two passes.
std::vector<Moments<double>> MomentsOf(const ActivationShape& shape,
                                       const std::vector<double>& x) {
  std::vector<Moments<double>> moments(static_cast<size_t>(shape.c));
  const double n = static_cast<double>(shape.values_per_channel());
  for (Moments<double>& m : moments) m.count = shape.values_per_channel();
  for (size_t i = 0; i < x.size(); ++i) {
    moments[ChannelAt(shape, i)].mean += x[i] / n;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    Moments<double>& m = moments[ChannelAt(shape, i)];
    m.m2 += (x[i] - m.mean) * (x[i] - m.mean);
  }
  return moments;
}

testing::AssertionResult AreMoments(const KernelsCase& c,
                                    const RecordValues& got,
                                    const std::vector<Moments<double>>& want,
                                    double largest) {
  Wanted mean;
  Wanted m2;
  for (const Moments<double>& moments : want) {
    if (got.count != moments.count) {
      return testing::AssertionFailure()
             << "count " << got.count << ", want " << moments.count;
    }
    const MomentErrors errors = c.kernels->moment_errors(
        moments, largest, UnitRoundoff(StatisticsTypeOf(c.type)));
    mean.Add(moments.mean, errors.mean);
    m2.Add(moments.m2, errors.m2);
  }
  testing::AssertionResult result = mean.Holds(got.mean);
  if (!result) return result << " (mean)";
  return m2.Holds(got.second) << " (M2)";
}

RecordValues ComputeMoments(BatchNormKernels& kernels,
                            const ActivationShape& shape, DataType type,
                            const DeviceTensor& x) {
  const DeviceRecords record({UnwrittenRecord(shape.c)},
                             StatisticsTypeOf(type));
  EXPECT_THAT(kernels.ComputeMoments(shape, x.buffer(), record.data()), IsOk());
  EXPECT_TRUE(AllNear(x.Read(), x.values(), [](size_t) { return 0.0; }));
  return record.Read();
}

void CheckMoments(const KernelsCase& c, BatchNormKernels& kernels,
                  const ActivationShape& of, double mean, int64_t offset) {
  const ActivationShape shape = InLayout(of, c.layout);
  SCOPED_TRACE(absl::StrCat(Describe(shape), " at ", offset, ", mean ", mean));
  const DeviceTensor x(c.type, RandomValues(shape.size(), 1, mean), offset);
  EXPECT_TRUE(AreMoments(c, ComputeMoments(kernels, shape, c.type, x),
                         MomentsOf(shape, x.values()), Largest(x.values())));
}

}  // namespace

TEST_P(KernelsTest, MomentsAreThoseOfEachChannel) {
  const KernelsCase& c = GetParam();
  for (const ActivationShape& shape : Shapes()) {
    CheckMoments(c, *kernels_, shape, 0, 0);
    if (shape.size() > kSmallShape) continue;
    for (const int64_t offset : OffsetsOf(c.type)) {
      CheckMoments(c, *kernels_, shape, 3, offset);
    }
  }
  for (const ActivationShape& shape : LargeShapes()) {
    CheckMoments(c, *kernels_, shape, 0.25, 1);
  }
}

TEST_P(KernelsTest, MomentsKeepTheVarianceUnderALargeMean) {
  const KernelsCase& c = GetParam();
  CheckMoments(c, *kernels_, {2, 3, 1031}, 1000, 0);
  CheckMoments(c, *kernels_, {61, 65, 1}, -1000, 1);
  CheckMoments(c, *kernels_, {1, 1, 9001}, 1000, 3);
  for (const ActivationShape& shape : LargeShapes()) {
    CheckMoments(c, *kernels_, shape, 1000, 1);
  }
}

// The order of additions depends on the address only modulo 16, and does not
// depend on the old contents of scratch memory.
TEST_P(KernelsTest, MomentsHaveTheSameBitsAgain) {
  const KernelsCase& c = GetParam();
  for (const ActivationShape& of :
       {ActivationShape{2, 2, 17001}, ActivationShape{3, 63, 5}}) {
    const ActivationShape shape = InLayout(of, c.layout);
    const std::vector<double> values = RandomValues(shape.size(), 2, 10);
    const DeviceTensor a(c.type, values, 1);
    const DeviceTensor b(c.type, values, 1 + 16 / SizeOf(c.type));
    const RecordValues once = ComputeMoments(*kernels_, shape, c.type, a);
    const RecordValues again = ComputeMoments(*kernels_, shape, c.type, b);
    EXPECT_EQ(once.mean, again.mean);
    EXPECT_EQ(once.second, again.second);
  }
}

TEST_P(KernelsTest, MomentsOfEqualValuesHaveNoDeviation) {
  const KernelsCase& c = GetParam();
  const ActivationShape shape = InLayout({3, 5, 67}, c.layout);
  const auto channels = static_cast<size_t>(shape.c);
  const DeviceTensor x(
      c.type, std::vector<double>(static_cast<size_t>(shape.size()), 0.1));
  const RecordValues record = ComputeMoments(*kernels_, shape, c.type, x);
  const Moments<double> want = {shape.values_per_channel(), x.values()[0], 0};
  EXPECT_TRUE(AreMoments(c, record, {channels, want}, want.mean));
  if (c.kernels->exact_of_equal_values) {
    EXPECT_EQ(record.mean, std::vector<double>(channels, want.mean));
    EXPECT_EQ(record.second, std::vector<double>(channels, 0.0));
  }
}

TEST_P(KernelsTest, MomentsOfNothingAreZero) {
  const KernelsCase& c = GetParam();
  const ActivationShape shape = InLayout({0, 3, 5}, c.layout);
  const auto channels = static_cast<size_t>(shape.c);
  const DeviceTensor x(c.type, std::vector<double>{});
  const RecordValues got = ComputeMoments(*kernels_, shape, c.type, x);
  EXPECT_EQ(got.count, 0);
  EXPECT_EQ(got.mean, std::vector<double>(channels, 0.0));
  EXPECT_EQ(got.second, std::vector<double>(channels, 0.0));
}

// A NaN is in its channel's numbers and in no other channel's.
TEST_P(KernelsTest, MomentsKeepANanInItsChannel) {
  const KernelsCase& c = GetParam();
  const ActivationShape shape = InLayout({2, 5, 130}, c.layout);
  const std::vector<double> values = RandomValues(shape.size(), 3);
  for (const size_t i : {size_t{0}, size_t{777}, values.size() - 1}) {
    std::vector<double> spoilt = values;
    spoilt[i] = std::nan("");
    const DeviceTensor x(c.type, spoilt, 1);
    const RecordValues record = ComputeMoments(*kernels_, shape, c.type, x);
    for (size_t k = 0; k < record.mean.size(); ++k) {
      EXPECT_EQ(std::isnan(record.mean[k]), k == ChannelAt(shape, i));
      EXPECT_EQ(std::isnan(record.second[k]), k == ChannelAt(shape, i));
    }
  }
}

// The controls: moments that the check above must reject.
TEST_P(KernelsTest, MomentsThatAreWrongAreRejected) {
  const KernelsCase& c = GetParam();
  for (const double center : {0.0, 1000.0}) {
    const ActivationShape shape = InLayout({4, 3, 49}, c.layout);
    const std::vector<double> x =
        RoundedTo(DataType::kFloat32, RandomValues(shape.size(), 1, center));
    const std::vector<Moments<double>> want = MomentsOf(shape, x);
    RecordValues right = {want[0].count, {}, {}};
    for (const Moments<double>& moments : want) {
      right.mean.push_back(moments.mean);
      right.second.push_back(moments.m2);
    }
    const auto accepts = [&](const RecordValues& record) {
      return AreMoments(c, record, want, Largest(x));
    };
    EXPECT_TRUE(accepts(right));
    const MomentErrors errors = c.kernels->moment_errors(
        want[1], Largest(x), UnitRoundoff(StatisticsTypeOf(c.type)));
    const auto rejects = [&](auto change) {
      RecordValues wrong = right;
      change(wrong);
      EXPECT_FALSE(accepts(wrong));
    };
    rejects([](RecordValues& r) { r.count += 1; });
    rejects([](RecordValues& r) { r.mean[2] = std::nan(""); });
    rejects([&](RecordValues& r) { r.mean[1] += 2 * errors.mean; });
    rejects([&](RecordValues& r) { r.second[1] += 2 * errors.m2; });
    rejects([](RecordValues& r) {
      std::swap(r.mean[0], r.mean[1]);
      r.mean[0] += 0.1;
    });
    // M2 divided by n - 1; and, far from 0, E[x^2] - E[x]^2 in float32.
    rejects([&](RecordValues& r) {
      if (center == 0) {
        r.second[0] *= 1 - 1.0 / static_cast<double>(r.count);
        return;
      }
      for (size_t k = 0; k < r.second.size(); ++k) {
        float sum = 0;
        float squares = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          if (ChannelAt(shape, i) != k) continue;
          const auto value = static_cast<float>(x[i]);
          sum += value;
          squares += value * value;
        }
        r.second[k] = squares - sum * sum / static_cast<float>(r.count);
      }
    });
  }
}

// Records of several ranks.

namespace {

constexpr double kEpsilon = 1e-5;

// Returns a record of `count` values about `mean` deviations from 0. The
// numbers of an empty rank are NaN, since they must not matter.
RecordValues RandomRecord(int64_t channels, int64_t count, uint32_t seed,
                          double mean, DataType type) {
  RecordValues record = UnwrittenRecord(channels);
  record.count = count;
  if (count == 0) return record;
  record.mean = RoundedTo(type, RandomValues(channels, seed, mean));
  record.second = RoundedTo(
      type, RandomValues(channels, seed + 1, static_cast<double>(count)));
  for (double& m2 : record.second) m2 = count == 1 ? 0 : std::abs(m2);
  return record;
}

// Computes the moments from the definition: the grand mean, then deviations
// from it.
Moments<double> Pooled(const std::vector<RecordValues>& records, size_t c) {
  Moments<double> all;
  for (const RecordValues& r : records) all.count += r.count;
  const double n = static_cast<double>(all.count);
  for (const RecordValues& r : records) {
    if (r.count > 0) all.mean += static_cast<double>(r.count) / n * r.mean[c];
  }
  for (const RecordValues& r : records) {
    if (r.count == 0) continue;
    const double delta = r.mean[c] - all.mean;
    all.m2 += r.second[c] + static_cast<double>(r.count) * delta * delta;
  }
  return all;
}

// Returns the tolerance: one rounding, and the roundings of float64 arithmetic
// with numbers up to `largest`.
double MergeTolerance(DataType type, double x, double largest) {
  return std::abs(x) * UnitRoundoff(type) +
         0x1p-44 * (std::abs(x) + 1) * (1 + largest);
}

// Running statistics of 0.5 and 2 that 5 batches have entered.
struct Running {
  Running(int64_t channels, DataType type)
      : mean(type, std::vector<double>(static_cast<size_t>(channels), 0.5)),
        variance(type, std::vector<double>(static_cast<size_t>(channels), 2)) {}
  RunningStatistics statistics() {
    return {mean.buffer(), variance.buffer(), &batches};
  }

  const DeviceTensor mean, variance;
  int64_t batches = 5;
};

void CheckMerge(BatchNormKernels& kernels, DataType type,
                const std::vector<RecordValues>& records,
                const MergeOptions& options, bool tracks) {
  const auto channels = static_cast<int64_t>(records[0].mean.size());
  const DeviceRecords gathered(records, type);
  const DeviceRecords merged({UnwrittenRecord(channels)}, type);
  Running running(channels, type);
  ASSERT_THAT(
      kernels.Merge({gathered.layout(), gathered.data(),
                     static_cast<int>(records.size()), options,
                     tracks ? running.statistics() : RunningStatistics(),
                     merged.data()}),
      IsOk());
  const auto count = kernels.ReadCount(merged.data());
  const RecordValues saved = merged.Read();
  Wanted mean, inverse, running_mean, running_variance;
  double largest = 0;
  for (const RecordValues& r : records) {
    if (r.count > 0) largest = std::max(largest, Largest(r.mean));
  }
  const auto add = [&](Wanted& wanted, double x) {
    wanted.Add(x, MergeTolerance(type, x, largest));
  };
  const double w = options.weight_of_batch;
  for (size_t c = 0; c < records[0].mean.size(); ++c) {
    const Moments<double> want = Pooled(records, c);
    EXPECT_THAT(count, IsOkAndHolds(want.count));
    EXPECT_EQ(saved.count, want.count);
    const double n = static_cast<double>(want.count);
    const double biased = want.count == 0 ? 0 : want.m2 / n;
    add(mean, want.mean);
    add(inverse, 1 / std::sqrt(biased + options.epsilon));
    const bool enters = tracks && want.count > 0 &&
                        !(want.count == 1 && options.refuses_one_value);
    const double entering =
        options.unbiased_running_variance ? want.m2 / (n - 1) : biased;
    add(running_mean, enters ? (1 - w) * 0.5 + w * want.mean : 0.5);
    add(running_variance, enters ? (1 - w) * 2 + w * entering : 2);
  }
  EXPECT_TRUE(mean.Holds(saved.mean));
  EXPECT_TRUE(inverse.Holds(saved.second));
  EXPECT_TRUE(running_mean.Holds(running.mean.Read()));
  EXPECT_TRUE(running_variance.Holds(running.variance.Read()));
  EXPECT_EQ(running.batches, 5);
}

// Merging does not depend on the layout, and statistics have no 16-bit types.
bool HasMerge(const KernelsCase& c) {
  return StatisticsTypeOf(c.type) == c.type && c.layout == Layout::kNchw;
}

}  // namespace

TEST_P(KernelsTest, MergeGivesTheStatisticsOfAllValues) {
  const DataType type = GetParam().type;
  if (!HasMerge(GetParam())) return;
  const std::vector<std::vector<int64_t>> ranks = {
      {7}, {5, 5}, {3, 1}, {0, 4}, {4, 0, 9}, {1, 0, 1}, {2, 3, 5, 7, 0, 200}};
  for (const int64_t channels : {1, 3, 63, 64, 65, 130}) {
    for (const std::vector<int64_t>& counts : ranks) {
      std::vector<RecordValues> records;
      for (const int64_t count : counts) {
        const auto seed = static_cast<uint32_t>(10 + 2 * records.size());
        const double mean = channels == 3 ? 1 : 1000;
        records.push_back(RandomRecord(channels, count, seed, mean, type));
      }
      for (const double weight : {0.1, 0.0, 1.0}) {
        for (const bool torch : {true, false}) {
          CheckMerge(*kernels_, type, records, {kEpsilon, weight, torch, torch},
                     true);
        }
      }
      CheckMerge(*kernels_, type, records, {kEpsilon, 0.1, true, true}, false);
    }
  }
}

// Merges 2^31 values of each rank; no values, which is neutral; and one value,
// which enters if it is not refused.
TEST_P(KernelsTest, MergeTakesAnyCount) {
  const DataType type = GetParam().type;
  if (!HasMerge(GetParam())) return;
  const RecordValues a = {int64_t{1} << 31, {1}, {0x1p31}};
  const RecordValues b = {int64_t{1} << 31, {2}, {0x1p31}};
  CheckMerge(*kernels_, type, {a, b, a}, {kEpsilon, 1, true, true}, true);
  const RecordValues none = RandomRecord(3, 0, 1, 0, type);
  const RecordValues one = RandomRecord(3, 1, 1, 1000, type);
  for (const bool torch : {true, false}) {
    const MergeOptions options = {0.25, 0.1, torch, torch};
    CheckMerge(*kernels_, type, {none}, options, true);
    CheckMerge(*kernels_, type, {none, none}, options, true);
    CheckMerge(*kernels_, type, {none, one, none}, options, true);
  }
}

TEST_P(KernelsTest, RunningStatisticsAreUsedAsConstants) {
  if (!HasMerge(GetParam())) return;
  const DataType type = GetParam().type;
  const DeviceTensor mean(type, RandomValues(65, 1, 5));
  const DeviceTensor variance(type, RandomValues(65, 2, 9, 0.5));
  const DeviceRecords saved({UnwrittenRecord(65)}, type);
  const RunningStatistics running = {mean.buffer(), variance.buffer(), nullptr};
  ASSERT_THAT(
      kernels_->UseRunning({saved.layout(), running, kEpsilon, saved.data()}),
      IsOk());
  const RecordValues got = saved.Read();
  EXPECT_EQ(got.count, 0);
  EXPECT_EQ(got.mean, mean.values());
  Wanted inverse;
  for (const double v : variance.values()) {
    const double value = 1 / std::sqrt(v + kEpsilon);
    inverse.Add(value, MergeTolerance(type, value, 0));
  }
  EXPECT_TRUE(inverse.Holds(got.second));
}

// The control: mutants that the reference and its tolerance must reject.
TEST(MergeReferenceTest, TellsMutantsApart) {
  const RecordValues a = {3, {1}, {3}};
  const RecordValues b = {1, {5}, {0}};
  const Moments<double> all = Pooled({a, b}, 0);
  EXPECT_EQ(all.count, 4);
  EXPECT_EQ(all.mean, 2);  // Not 3, the mean of means.
  EXPECT_EQ(all.m2, 15);   // Not 3, without the part between ranks.
  EXPECT_GT(std::abs(all.m2 / 3 - all.m2 / 4),
            MergeTolerance(DataType::kFloat32, all.m2 / 4, 1000));
}

// The sums of the backward pass.

namespace {

// Returns sums [2, c]. errors: the sum_errors of KernelsUnderTest.
Wanted ReferenceSums(const BackwardValues& in, bool relu, double errors) {
  const auto channels = static_cast<size_t>(in.shape.c);
  Wanted wanted = {std::vector<double>(2 * channels, 0.0),
                   std::vector<double>(2 * channels, 1e-30)};
  for (size_t i = 0; i < in.x.size(); ++i) {
    const size_t k = ChannelAt(in.shape, i);
    const double g = in.g(relu, i);
    const double product =
        g * (in.x[i] - in.saved.mean[k]) * in.saved.second[k];
    wanted.values[k] += g;
    wanted.values[channels + k] += product;
    wanted.tolerance[k] += errors * std::abs(g);
    wanted.tolerance[channels + k] += errors * std::abs(product);
  }
  return wanted;
}

// Returns the sums. Checks that both gradients of parameters have the same
// bits.
std::vector<double> Reduce(BatchNormKernels& kernels, const BackwardValues& in,
                           bool relu, bool affine, int64_t offset = 0,
                           int64_t dy_offset = 0) {
  const DeviceBackward device(in, offset, dy_offset);
  const DataType type = StatisticsTypeOf(in.type);
  const DeviceTensor sums(type, 2 * in.shape.c);
  const DeviceTensor dweight(type, in.shape.c);
  const DeviceTensor dbias(type, in.shape.c);
  BatchNormKernels::BackwardCall call = device.Call(in.shape, relu, affine);
  call.sums = sums.buffer();
  if (affine) call.dweight = dweight.buffer();
  if (affine) call.dbias = dbias.buffer();
  EXPECT_THAT(kernels.BackwardReduce(call), IsOk());
  const std::vector<double> got = sums.Read();
  const auto middle = got.begin() + in.shape.c;
  if (affine) {
    EXPECT_EQ(dbias.Read(), std::vector<double>(got.begin(), middle));
    EXPECT_EQ(dweight.Read(), std::vector<double>(middle, got.end()));
  }
  return got;
}

void CheckReduce(BatchNormKernels& kernels, const KernelsCase& c,
                 const ActivationShape& shape, bool relu, double mean,
                 int64_t offset = 0, int64_t dy_offset = 0) {
  SCOPED_TRACE(absl::StrCat(Describe(shape), " relu ", relu, " at ", offset,
                            " ", dy_offset));
  const BackwardValues in(shape, c.type, mean);
  const double errors = c.kernels->sum_errors(
      shape.values_per_channel(), UnitRoundoff(StatisticsTypeOf(c.type)));
  EXPECT_TRUE(ReferenceSums(in, relu, errors)
                  .Holds(Reduce(kernels, in, relu, true, offset, dy_offset)));
}

}  // namespace

TEST_P(KernelsTest, BackwardReduceSumsEachChannel) {
  const KernelsCase& c = GetParam();
  std::vector<ActivationShape> shapes = Shapes();
  const std::vector<ActivationShape> large = LargeShapes();
  shapes.insert(shapes.end(), large.begin(), large.end());
  for (const ActivationShape& shape : shapes) {
    CheckReduce(*kernels_, c, shape, false, 0);
    CheckReduce(*kernels_, c, shape, true, 100);
    if (shape.size() > kSmallShape) continue;
    for (const int64_t offset : OffsetsOf(c.type)) {
      for (const int64_t dy_offset : {0, 1}) {
        CheckReduce(*kernels_, c, shape, true, 0, offset, dy_offset);
      }
    }
  }
}

// Repeats the reduction with other parameters and with the old contents of
// scratch memory.
TEST_P(KernelsTest, BackwardReduceHasTheSameBitsAgain) {
  const BackwardValues in(InLayout({2, 2, 17001}, GetParam().layout),
                          GetParam().type, 0);
  EXPECT_EQ(Reduce(*kernels_, in, false, true),
            Reduce(*kernels_, in, false, false));
}

TEST_P(KernelsTest, BackwardReduceOfNothingIsZero) {
  const ActivationShape shape = InLayout({0, 3, 5}, GetParam().layout);
  const auto channels = static_cast<size_t>(shape.c);
  const BackwardValues in(shape, GetParam().type, 0);
  EXPECT_EQ(Reduce(*kernels_, in, true, true),
            std::vector<double>(2 * channels, 0.0));
}

// The controls: no mask, channels of another layout, a lost element.
TEST(BackwardReduceReferenceTest, RejectsWhatIsWrong) {
  const BackwardValues in({2, 32, 5}, DataType::kFloat32, 0);
  constexpr double kErrors = 0x1p-17;
  const Wanted wanted = ReferenceSums(in, true, kErrors);
  ExpectRejectsErrors(wanted, 4);
  EXPECT_FALSE(wanted.Holds(ReferenceSums(in, false, kErrors).values));
  BackwardValues wrong = in;
  for (const Layout layout : {Layout::kNhwc, Layout::kNchw16c}) {
    wrong.shape.layout = layout;
    EXPECT_FALSE(wanted.Holds(ReferenceSums(wrong, true, kErrors).values));
  }
  wrong = in;
  wrong.dy[3] = 0;  // dy counts where y is NaN.
  EXPECT_FALSE(wanted.Holds(ReferenceSums(wrong, true, kErrors).values));
}

}  // namespace lockstep
