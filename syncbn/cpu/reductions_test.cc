// Moments and backward sums against loops in long double and float64, within
// the bounds that the header derives.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/test_activations.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TestRecord MomentsOf(const TestActivations& x,
                     VectorUnit unit = BestVectorUnit()) {
  TestRecord record(x.shape.c, x.array.type());
  CpuBatchNormKernels kernels(unit);
  EXPECT_THAT(kernels.ComputeMoments(x.shape, x.array.buffer(), record.data()),
              IsOk());
  EXPECT_TRUE(record.GuardIsIntact());
  return record;
}

absl::Status CheckOne(double got, double want, double bound, const char* what,
                      int64_t c) {
  if (std::abs(got - want) <= bound) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, " of channel ", c, " is ", got,
                                          ", not ", want, " +- ", bound));
}

struct Expected {
  double mean = 0;
  double m2 = 0;
  double mean_bound = 0;
  double m2_bound = 0;
};

// The bound is the header's.
Expected Reference(const std::vector<double>& values, double unit_roundoff) {
  Expected expected;
  if (values.empty()) return expected;
  const double n = static_cast<double>(values.size());
  long double sum = 0;
  double largest = 0;
  for (double value : values) {
    sum += value;
    largest = std::max(largest, std::abs(value));
  }
  const long double mean = sum / n;
  long double m2 = 0;
  for (double value : values) m2 += (value - mean) * (value - mean);
  expected.mean = static_cast<double>(mean);
  expected.m2 = static_cast<double>(m2);
  const double g = 20 * unit_roundoff;
  const double d = g * largest;
  const double merges = n / 64 + 74;
  const double e = 2 * merges * 0x1p-53 * largest;
  expected.mean_bound = g * (std::sqrt(expected.m2 / n) + d) + e +
                        unit_roundoff * std::abs(expected.mean);
  expected.m2_bound =
      (5 * g + 4 * merges * 0x1p-53) * (expected.m2 + n * d * d) +
      3 * (std::sqrt(expected.m2 * n) * e + n * e * e);
  return expected;
}

absl::Status CheckMoments(const TestActivations& x, const TestRecord& record) {
  if (record.count() != x.shape.values_per_channel()) {
    return absl::DataLossError(absl::StrCat("count is ", record.count()));
  }
  const double u = UnitRoundoff(record.layout().type);
  for (int64_t c = 0; c < x.shape.c; ++c) {
    const Expected expected = Reference(x.Channel(c), u);
    absl::Status status =
        CheckOne(record.mean(c), expected.mean, expected.mean_bound, "mean", c);
    status.Update(
        CheckOne(record.second(c), expected.m2, expected.m2_bound, "m2", c));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The deviation of the test's values is 0.58.
constexpr double kThousandDeviations = 577;

std::vector<ActivationCase> AllCases() {
  std::vector<ActivationCase> cases = AllActivationCases();
  for (const ActivationCase& large : LargeActivationCases()) {
    cases.push_back(large);
  }
  return cases;
}

TEST(BatchMomentsTest, AreThoseOfEachChannel) {
  for (const ActivationCase& test_case : AllCases()) {
    const TestActivations x(test_case.shape, test_case.type, /*seed=*/1,
                            /*center=*/0.25);
    EXPECT_THAT(CheckMoments(x, MomentsOf(x)), IsOk()) << Name(test_case);
  }
}

TEST(BatchMomentsTest, KeepTheVarianceUnderAMeanOfAThousandDeviations) {
  for (const ActivationCase& test_case : AllCases()) {
    // The others hold no such numbers.
    if (SizeOf(test_case.type) < 4) continue;
    const TestActivations x(test_case.shape, test_case.type, /*seed=*/2,
                            kThousandDeviations);
    EXPECT_THAT(CheckMoments(x, MomentsOf(x)), IsOk()) << Name(test_case);
  }
}

TEST(BatchMomentsTest, AreExactOfEqualValues) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    TestActivations x(test_case.shape, test_case.type);
    for (int64_t i = 0; i < x.array.size(); ++i) x.array.Set(i, 0.3);
    const TestRecord record = MomentsOf(x);
    if (x.array.size() == 0) continue;
    for (int64_t c = 0; c < x.shape.c; ++c) {
      EXPECT_EQ(record.mean(c), x.array.Get(0)) << Name(test_case);
      EXPECT_EQ(record.second(c), 0) << Name(test_case);
    }
  }
}

TEST(BatchMomentsTest, OfNothingAreZero) {
  const TestActivations x({.n = 0, .c = 5, .hw = 4}, DataType::kFloat32);
  const TestRecord record = MomentsOf(x);
  EXPECT_EQ(record.count(), 0);
  for (int64_t c = 0; c < 5; ++c) {
    EXPECT_EQ(record.mean(c), 0);
    EXPECT_EQ(record.second(c), 0);
  }
}

TEST(BatchMomentsTest, HaveTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const TestActivations x(test_case.shape, test_case.type, /*seed=*/3,
                            /*center=*/2);
    EXPECT_TRUE(MomentsOf(x, VectorUnit::kBaseline).SameBits(MomentsOf(x)))
        << Name(test_case);
  }
}

TEST(BatchMomentsTest, KeepANan) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                        DataType::kBFloat16, DataType::kFloat64}) {
    TestActivations x({.n = 5, .c = 3, .hw = 100}, type, /*seed=*/4,
                      /*center=*/0);
    x.array.Set(x.Index(3, 1, 77), std::nan(""));
    const TestRecord record = MomentsOf(x);
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(std::isnan(record.mean(c)), c == 1) << Name(type);
      EXPECT_EQ(std::isnan(record.second(c)), c == 1) << Name(type);
    }
    EXPECT_THAT(CheckMoments(x, record),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("channel 1")));
  }
}

// The control: what E[x^2] - E[x]^2 in float32 gives, and other near misses.
TEST(BatchMomentsTest, CheckRejectsOtherMoments) {
  const ActivationShape shape = {.n = 4, .c = 3, .hw = 49};
  const TestActivations x(shape, DataType::kFloat32, /*seed=*/2,
                          kThousandDeviations);
  TestRecord squares = MomentsOf(x);
  float sum = 0;
  float sum_of_squares = 0;
  for (double value : x.Channel(2)) {
    sum += static_cast<float>(value);
    sum_of_squares += static_cast<float>(value) * static_cast<float>(value);
  }
  squares.SetSecond(2, sum_of_squares - sum * sum / (4 * 49));
  EXPECT_THAT(CheckMoments(x, squares),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m2")));
  TestRecord biased = MomentsOf(x);
  biased.SetMean(1, biased.mean(1) * (1 + 0x1p-21));
  EXPECT_THAT(CheckMoments(x, biased),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("mean")));
  TestRecord unbiased = MomentsOf(x);
  unbiased.SetSecond(0, unbiased.second(0) * (4 * 49 - 1) / (4 * 49));
  EXPECT_THAT(CheckMoments(x, unbiased),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("m2")));
  TestRecord counted = MomentsOf(x);
  counted.SetCount(4);
  EXPECT_THAT(CheckMoments(x, counted),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("count")));
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

GuardedArray SumsOf(const BackwardInputs& inputs, bool relu,
                    VectorUnit unit = BestVectorUnit()) {
  const int64_t c = inputs.x.shape.c;
  const DataType type = inputs.weight.type();
  GuardedArray sums(2 * c, type);
  GuardedArray dweight(c, type);
  GuardedArray dbias(c, type);
  CpuBatchNormKernels kernels(unit);
  EXPECT_THAT(kernels.BackwardReduce(inputs.Call(relu), sums.buffer(),
                                     dweight.buffer(), dbias.buffer()),
              IsOk());
  EXPECT_TRUE(sums.GuardsAreIntact() && dweight.GuardsAreIntact() &&
              dbias.GuardsAreIntact());
  for (int64_t j = 0; j < c; ++j) {
    EXPECT_EQ(dbias.Get(j), sums.Get(j));
    EXPECT_EQ(dweight.Get(j), sums.Get(c + j));
  }
  return sums;
}

// The header's bound, and in float64 what merging rounds.
absl::Status CheckSums(const BackwardInputs& inputs, bool relu,
                       const GuardedArray& sums) {
  const ActivationShape& shape = inputs.x.shape;
  const double u = UnitRoundoff(sums.type());
  const double merges =
      static_cast<double>(shape.values_per_channel()) / 64 + 74;
  const double terms = 23 * u + merges * 0x1p-53;
  for (int64_t c = 0; c < shape.c; ++c) {
    double sum = 0;
    double size = 0;
    double product = 0;
    double product_size = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        const int64_t at = inputs.x.Index(n, c, i);
        const double g = inputs.g(relu, at);
        const double normal = (inputs.x.array.Get(at) - inputs.saved.mean(c)) *
                              inputs.saved.second(c);
        sum += g;
        size += std::abs(g);
        product += g * normal;
        product_size += std::abs(g * normal);
      }
    }
    absl::Status status =
        CheckOne(sums.Get(c), sum, terms * size, "sum of g", c);
    status.Update(CheckOne(sums.Get(shape.c + c), product, terms * product_size,
                           "sum of products", c));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(BackwardReduceTest, SumsEachChannel) {
  for (const ActivationCase& test_case : AllCases()) {
    const BackwardInputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      EXPECT_THAT(CheckSums(inputs, relu, SumsOf(inputs, relu)), IsOk())
          << Name(test_case) << " relu=" << relu;
    }
  }
}

TEST(BackwardReduceTest, HasTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const BackwardInputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      EXPECT_TRUE(SumsOf(inputs, relu, VectorUnit::kBaseline)
                      .SameBits(SumsOf(inputs, relu)))
          << Name(test_case) << " relu=" << relu;
    }
  }
}

TEST(BackwardReduceTest, LeavesOutWhatIsNotWanted) {
  const BackwardInputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  GuardedArray sums(6, DataType::kFloat32);
  CpuBatchNormKernels kernels;
  EXPECT_THAT(kernels.BackwardReduce(inputs.Call(false), sums.buffer(),
                                     Buffer(), Buffer()),
              IsOk());
  EXPECT_TRUE(sums.SameBits(SumsOf(inputs, false)));
}

TEST(BackwardReduceTest, CheckRejectsOtherSums) {
  const BackwardInputs inputs({.n = 4, .c = 3, .hw = 49}, DataType::kFloat32);
  const auto is_rejected =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sum of"));
  EXPECT_THAT(CheckSums(inputs, true, SumsOf(inputs, false)), is_rejected);
  EXPECT_THAT(CheckSums(inputs, false, SumsOf(inputs, true)), is_rejected);
  for (int64_t j : {2, 5}) {
    GuardedArray sums = SumsOf(inputs, true);
    sums.Set(j, sums.Get(j) + 1e-3);
    EXPECT_THAT(CheckSums(inputs, true, sums), is_rejected);
    sums.Set(j, kNan);
    EXPECT_THAT(CheckSums(inputs, true, sums), is_rejected);
  }
}

}  // namespace
}  // namespace lockstep
