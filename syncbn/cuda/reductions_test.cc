// Moments and backward sums against float64 loops. Linked with the stand-in
// runtime they need no GPU, with the CUDA runtime they need one.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/nccl/cuda_handles.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_testing.h"
#include "syncbn/cuda/kernels.h"
#include "syncbn/moments.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// In two passes.
std::vector<Moments<double>> Reference(const ActivationShape& shape,
                                       const std::vector<double>& x) {
  std::vector<Moments<double>> moments(static_cast<size_t>(shape.c));
  const double count = static_cast<double>(shape.values_per_channel());
  const auto of = [&](size_t i) -> Moments<double>& {
    const int64_t channel = ChannelOf(shape, static_cast<int64_t>(i));
    return moments[static_cast<size_t>(channel)];
  };
  for (size_t i = 0; i < x.size(); ++i) of(i).mean += x[i] / count;
  for (size_t i = 0; i < x.size(); ++i) {
    of(i).count += 1;
    of(i).m2 += (x[i] - of(i).mean) * (x[i] - of(i).mean);
  }
  return moments;
}

// Of means: a value goes through the sum of a tile, at most 32 additions, and
// through at most 32 merges (tiles of a thread, a tree of threads, partial
// results, a tree of them), each of which adds an error of at most 6 round-offs
// and averages those before.
constexpr double kMeanErrors = 32 + 32 * 6;

// Success if mean and M2 of a record are right. M2 suffers from an error e of
// means as sum (x - mean)^2 does: n e^2 and, by Cauchy and Schwarz, 2 e
// sqrt(n M2); and from rounding: 4 for each of the same steps.
testing::AssertionResult AreMoments(const RecordValues& got,
                                    const std::vector<Moments<double>>& want,
                                    double largest) {
  const double e = kMeanErrors * kRoundOff * largest;
  std::vector<double> mean, m2;
  for (const Moments<double>& moments : want) {
    if (got.count != moments.count) {
      return testing::AssertionFailure()
             << "count " << got.count << ", want " << moments.count;
    }
    mean.push_back(moments.mean);
    m2.push_back(moments.m2);
  }
  testing::AssertionResult result =
      AllNear(got.mean, mean, [&](size_t) { return e; });
  if (!result) return result << " (mean)";
  const double n = static_cast<double>(got.count);
  return AllNear(got.second, m2,
                 [&](size_t i) {
                   return 64 * 4 * kRoundOff * m2[i] +
                          2 * e * std::sqrt(n * m2[i]) + n * e * e;
                 })
         << " (M2)";
}

class StatisticsTest : public KernelTest {
 protected:
  static RecordValues Compute(const ActivationShape& shape,
                              const DeviceTensor& x) {
    const std::vector<double> nan(static_cast<size_t>(shape.c), std::nan(""));
    const DeviceRecords record({{-1, nan, nan}});
    const auto bytes = MomentsScratchBytes(shape, x.buffer());
    EXPECT_THAT(bytes, IsOk());
    const auto scratch = AllocateDeviceMemory(bytes.value_or(0));
    EXPECT_THAT(scratch, IsOk());
    EXPECT_THAT(ComputeMoments(shape, x.buffer(), record.data(), scratch->get(),
                               nullptr),
                IsOk());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(AllNear(x.Read(), x.values(), [](size_t) { return 0.0; }));
    return record.Read(shape.c);
  }

  static void Check(const ActivationShape& shape, DataType type, double mean,
                    int64_t offset) {
    SCOPED_TRACE(
        absl::StrCat(Describe(shape), " at ", offset, ", mean ", mean));
    const DeviceTensor x(type, RandomValues(shape.size(), 1, mean), offset);
    EXPECT_TRUE(AreMoments(Compute(shape, x), Reference(shape, x.values()),
                           Largest(x.values())));
  }
};

TEST_P(StatisticsTest, EqualsTheReference) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    shape.layout = layout;
    Check(shape, type, 0, 0);
  }
}

TEST_P(StatisticsTest, EqualsTheReferenceAtOtherAlignments) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    if (shape.size() > 700) continue;
    shape.layout = layout;
    for (const int64_t offset : {int64_t{1}, 16 / SizeOf(type) - 1}) {
      Check(shape, type, 3, offset);
    }
  }
}

TEST_P(StatisticsTest, KeepsDeviationsOfALargeMean) {
  const auto [type, layout] = GetParam();
  Check({2, 3, 1031, layout}, type, 1000, 0);
  Check({61, 65, 1, layout}, type, -1000, 1);
  Check({1, 1, 9001, layout}, type, 1000, 3);
}

// The order of additions does not depend on the address but modulo 16, nor on
// what scratch memory held.
TEST_P(StatisticsTest, GivesTheSameBitsAgain) {
  const auto [type, layout] = GetParam();
  for (const ActivationShape shape : {ActivationShape{2, 2, 17001, layout},
                                      ActivationShape{3, 63, 5, layout}}) {
    const std::vector<double> values = RandomValues(shape.size(), 2, 10);
    const DeviceTensor a(type, values, 1);
    const DeviceTensor b(type, values, 1 + 16 / SizeOf(type));
    const RecordValues once = Compute(shape, a);
    const RecordValues again = Compute(shape, b);
    EXPECT_EQ(once.mean, again.mean);
    EXPECT_EQ(once.second, again.second);
  }
}

TEST_P(StatisticsTest, ConstantsHaveNoDeviation) {
  const auto [type, layout] = GetParam();
  const ActivationShape shape = {3, 5, 67, layout};
  const DeviceTensor x(
      type, std::vector<double>(static_cast<size_t>(shape.size()), 0.1));
  const RecordValues record = Compute(shape, x);
  for (const double mean : record.mean) {
    EXPECT_LE(std::abs(mean - x.values()[0]), kMeanErrors * kRoundOff * 0.1);
  }
  const double e = kMeanErrors * kRoundOff * 0.1;
  for (const double m2 : record.second) {
    EXPECT_LE(m2, 4 * static_cast<double>(record.count) * e * e);
  }
}

TEST_P(StatisticsTest, EmptyIsCountZero) {
  const auto [type, layout] = GetParam();
  const ActivationShape shape = {0, 3, 5, layout};
  const DeviceTensor x(type, std::vector<double>{});
  const RecordValues record = Compute(shape, x);
  EXPECT_EQ(record.count, 0);
  EXPECT_EQ(record.mean, std::vector<double>(3, 0.0));
  EXPECT_EQ(record.second, std::vector<double>(3, 0.0));
}

// A NaN is in its channel's numbers and in no other's.
TEST_P(StatisticsTest, NanStaysInItsChannel) {
  const auto [type, layout] = GetParam();
  const ActivationShape shape = {2, 5, 13, layout};
  std::vector<double> values = RandomValues(shape.size(), 3);
  for (const size_t i : {size_t{0}, size_t{77}, values.size() - 1}) {
    std::vector<double> spoilt = values;
    spoilt[i] = std::nan("");
    const DeviceTensor x(type, spoilt, 1);
    const RecordValues record = Compute(shape, x);
    for (int64_t c = 0; c < shape.c; ++c) {
      const bool is = c == ChannelOf(shape, static_cast<int64_t>(i));
      EXPECT_EQ(std::isnan(record.mean[static_cast<size_t>(c)]), is);
      EXPECT_EQ(std::isnan(record.second[static_cast<size_t>(c)]), is);
    }
  }
}

LOCKSTEP_TYPES_AND_LAYOUTS(StatisticsTest);

TEST(StatisticsTypesTest, RefusesFloat64) {
  const ConstBuffer x(nullptr, 0, DataType::kFloat64);
  EXPECT_THAT(ComputeMoments({0, 1, 1}, x, nullptr, nullptr, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
  EXPECT_THAT(MomentsScratchBytes({0, 1, 1}, x),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: what the check above must not take.
TEST(StatisticsCheckTest, RejectsWhatIsWrong) {
  const ActivationShape shape = {2, 3, 1031};
  std::vector<double> x = RandomValues(shape.size(), 1, 1000);
  for (double& value : x) value = Rounded(DataType::kFloat32, value);
  const std::vector<Moments<double>> want = Reference(shape, x);
  RecordValues right;
  right.count = want[0].count;
  for (const Moments<double>& moments : want) {
    right.mean.push_back(moments.mean);
    right.second.push_back(moments.m2);
  }
  const double largest = Largest(x);
  EXPECT_TRUE(AreMoments(right, want, largest));

  RecordValues wrong = right;
  wrong.count += 1;
  EXPECT_FALSE(AreMoments(wrong, want, largest));
  wrong = right;
  wrong.mean[2] = std::nan("");
  EXPECT_FALSE(AreMoments(wrong, want, largest));
  wrong = right;
  std::swap(wrong.mean[0], wrong.mean[1]);
  wrong.mean[0] += 0.1;
  EXPECT_FALSE(AreMoments(wrong, want, largest));

  // E[x^2] - E[x]^2 in float32.
  wrong = right;
  for (size_t c = 0; c < wrong.mean.size(); ++c) {
    float sum = 0;
    float squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (ChannelOf(shape, static_cast<int64_t>(i)) !=
          static_cast<int64_t>(c)) {
        continue;
      }
      const float value = static_cast<float>(x[i]);
      sum += value;
      squares += value * value;
    }
    const float n = static_cast<float>(wrong.count);
    wrong.second[c] = n * (squares / n - (sum / n) * (sum / n));
  }
  EXPECT_FALSE(AreMoments(wrong, want, largest));
}

// A case of the backward sums.
struct Case {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  bool relu = false;
  int64_t offset = 0;     // Of all tensors,
  int64_t dy_offset = 0;  // and of dy beside it.
  double mean = 0;        // Of x, in deviations.
};

// sums [2, c], and what float32 may do to them.
struct Wanted {
  std::vector<double> sums, tolerance;
};

// A term is rounded four times, and goes through at most so many additions: of
// a thread (at most 96 of the largest shape here), of a tree, of partial
// results, of a tree.
constexpr double kErrors = 4 + 96 + 8 + 8 + 8;

Wanted Reference(const Case& c, const BackwardValues& in) {
  const auto channels = static_cast<size_t>(c.shape.c);
  Wanted wanted = {std::vector<double>(2 * channels, 0.0),
                   std::vector<double>(2 * channels, 1e-30)};
  for (size_t i = 0; i < in.x.size(); ++i) {
    const auto k =
        static_cast<size_t>(ChannelOf(c.shape, static_cast<int64_t>(i)));
    const double g = c.relu && in.y[i] <= 0 ? 0 : in.dy[i];
    const double product =
        g * (in.x[i] - in.saved.mean[k]) * in.saved.second[k];
    wanted.sums[k] += g;
    wanted.sums[channels + k] += product;
    wanted.tolerance[k] += kErrors * kRoundOff * std::abs(g);
    wanted.tolerance[channels + k] += kErrors * kRoundOff * std::abs(product);
  }
  return wanted;
}

class BackwardReduceTest : public KernelTest {
 protected:
  static std::vector<double> Compute(const Case& c, BackwardValues& in,
                                     bool affine = true) {
    const DeviceBackward device(c.type, in, c.offset, c.dy_offset);
    const DeviceTensor sums(DataType::kFloat32, 2 * c.shape.c);
    const DeviceTensor dweight(DataType::kFloat32, c.shape.c);
    const DeviceTensor dbias(DataType::kFloat32, c.shape.c);
    const BatchNormKernels::BackwardCall call = device.Call(c.shape, c.relu);
    const auto bytes = BackwardReduceScratchBytes(call);
    EXPECT_THAT(bytes, IsOk());
    const auto scratch = AllocateDeviceMemory(bytes.value_or(0));
    EXPECT_THAT(scratch, IsOk());
    EXPECT_THAT(BackwardReduce(call, sums.buffer(),
                               affine ? dweight.buffer() : Buffer(),
                               affine ? dbias.buffer() : Buffer(),
                               scratch->get(), nullptr),
                IsOk());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<double> got = sums.Read();
    const auto middle = got.begin() + c.shape.c;
    if (affine) {
      EXPECT_EQ(dbias.Read(), std::vector<double>(got.begin(), middle));
      EXPECT_EQ(dweight.Read(), std::vector<double>(middle, got.end()));
    }
    return got;
  }

  static void Check(const Case& c) {
    SCOPED_TRACE(absl::StrCat(Describe(c.shape), " relu ", c.relu, " at ",
                              c.offset, " ", c.dy_offset));
    BackwardValues in = RandomBackwardValues(c.shape, c.mean, 0.1);
    const std::vector<double> got = Compute(c, in);
    const Wanted wanted = Reference(c, in);
    EXPECT_TRUE(AllNear(got, wanted.sums,
                        [&](size_t i) { return wanted.tolerance[i]; }));
  }
};

TEST_P(BackwardReduceTest, EqualsTheReference) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    shape.layout = layout;
    Check({.shape = shape, .type = type});
    Check({.shape = shape, .type = type, .relu = true, .mean = 100});
  }
}

TEST_P(BackwardReduceTest, EqualsTheReferenceAtOtherAlignments) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    if (shape.size() > 700) continue;
    shape.layout = layout;
    for (const int64_t offset : {int64_t{1}, 16 / SizeOf(type) - 1}) {
      for (const int64_t dy_offset : {0, 1}) {
        Check({.shape = shape,
               .type = type,
               .relu = true,
               .offset = offset,
               .dy_offset = dy_offset});
      }
    }
  }
}

TEST_P(BackwardReduceTest, GivesTheSameBitsAgain) {
  const auto [type, layout] = GetParam();
  const Case c = {.shape = {2, 2, 17001, layout}, .type = type};
  BackwardValues in = RandomBackwardValues(c.shape, 0, 0.1);
  EXPECT_EQ(Compute(c, in), Compute(c, in, /*affine=*/false));
}

TEST_P(BackwardReduceTest, EmptyIsZero) {
  const auto [type, layout] = GetParam();
  const Case c = {.shape = {0, 3, 5, layout}, .type = type, .relu = true};
  BackwardValues in = RandomBackwardValues(c.shape, 0, 0.1);
  EXPECT_EQ(Compute(c, in), std::vector<double>(6, 0.0));
}

LOCKSTEP_TYPES_AND_LAYOUTS(BackwardReduceTest);

TEST(BackwardReduceTypesTest, RefusesFloat64) {
  BatchNormKernels::BackwardCall call;
  call.x.type = DataType::kFloat64;
  EXPECT_THAT(BackwardReduceScratchBytes(call),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
  EXPECT_THAT(BackwardReduce(call, {}, {}, {}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: no mask, channels of the other layout, a lost element.
TEST(BackwardReduceCheckTest, RejectsWhatIsWrong) {
  const Case c = {.shape = {2, 3, 5}, .relu = true};
  const BackwardValues in = RandomBackwardValues(c.shape, 0, 0.1);
  const Wanted wanted = Reference(c, in);
  const auto tolerance = [&](size_t i) { return wanted.tolerance[i]; };
  EXPECT_TRUE(AllNear(wanted.sums, wanted.sums, tolerance));
  Case wrong = c;
  wrong.relu = false;
  EXPECT_FALSE(AllNear(Reference(wrong, in).sums, wanted.sums, tolerance));
  wrong = c;
  wrong.shape.layout = Layout::kNhwc;
  EXPECT_FALSE(AllNear(Reference(wrong, in).sums, wanted.sums, tolerance));
  BackwardValues lost = in;
  lost.dy[3] = 0;  // Where y is NaN, dy counts.
  EXPECT_FALSE(AllNear(Reference(c, lost).sums, wanted.sums, tolerance));
}

}  // namespace
}  // namespace lockstep
