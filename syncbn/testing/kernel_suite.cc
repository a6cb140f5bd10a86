// The code that the suite's tests share, and the tests of element-wise
// operations.
#include "syncbn/testing/kernel_suite.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {

std::vector<KernelsCase> CasesOf(const KernelsUnderTest* kernels,
                                 const std::vector<DataType>& types) {
  std::vector<KernelsCase> cases;
  for (const DataType type : types) {
    for (const Layout layout : kernels->layouts) {
      cases.push_back({kernels, type, layout});
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<KernelsCase>& info) {
  return absl::StrCat(Name(info.param.type), Name(info.param.layout));
}

ActivationShape InLayout(ActivationShape shape, Layout layout) {
  shape.layout = layout;
  if (layout != Layout::kNchw16c) return shape;
  constexpr int64_t kMany = 10000;
  const int64_t blocks = (shape.c + kChannelBlock - 1) / kChannelBlock;
  const int64_t channels = blocks * kChannelBlock;
  if (shape.size() > kMany) shape.hw = shape.hw * shape.c / channels;
  shape.c = channels;
  return shape;
}

namespace {

std::vector<ActivationShape> AllInLayout(
    const std::vector<ActivationShape>& shapes, Layout layout) {
  std::vector<ActivationShape> all;
  for (const ActivationShape& shape : shapes) {
    const ActivationShape own = InLayout(shape, layout);
    if (std::find(all.begin(), all.end(), own) == all.end()) all.push_back(own);
  }
  return all;
}

}  // namespace

void KernelsTest::SetUp() {
  kernels_ = GetParam().kernels->make();
  if (kernels_ == nullptr) GTEST_SKIP();
}

std::vector<ActivationShape> KernelsTest::Shapes() const {
  return AllInLayout(GetParam().kernels->shapes, GetParam().layout);
}

std::vector<ActivationShape> KernelsTest::LargeShapes() const {
  return AllInLayout(GetParam().kernels->large, GetParam().layout);
}

std::vector<ActivationShape> KernelsTest::SmallShapes() const {
  std::vector<ActivationShape> shapes = Shapes();
  std::erase_if(shapes, [](const ActivationShape& shape) {
    return shape.size() > kSmallShape;
  });
  return shapes;
}

// Normalising.

namespace {

struct NormalizeCase {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  bool affine = true;
  bool relu = false;
  bool residual = false;
  int64_t offset = 0;           // The offset of all tensors.
  int64_t residual_offset = 0;  // The residual's further offset.
  enum { kOwn, kOverX, kOverResidual } to = kOwn;
};

// The inputs of a call.
struct NormalizeInputs {
  explicit NormalizeInputs(const NormalizeCase& c)
      : x(RoundedTo(c.type, RandomValues(c.shape.size(), 1, 0.25))),
        residual(RoundedTo(c.type, RandomValues(c.shape.size(), 2))),
        weight(
            RoundedTo(StatisticsTypeOf(c.type), RandomValues(c.shape.c, 3, 1))),
        bias(RoundedTo(StatisticsTypeOf(c.type), RandomValues(c.shape.c, 4))),
        saved(RandomSaved(c.shape.c, c.type)) {}

  std::vector<double> x, residual, weight, bias;
  RecordValues saved;
};

Wanted Reference(const NormalizeCase& c, const NormalizeInputs& in) {
  Wanted wanted;
  const double u = UnitRoundoff(StatisticsTypeOf(c.type));
  for (size_t i = 0; i < in.x.size(); ++i) {
    const size_t k = ChannelAt(c.shape, i);
    const double product = (in.x[i] - in.saved.mean[k]) * in.saved.second[k] *
                           (c.affine ? in.weight[k] : 1);
    const double shift = c.affine ? in.bias[k] : 0;
    const double added = c.residual ? in.residual[i] : 0;
    double y = product + shift + added;
    if (c.relu && y < 0) y = 0;
    // The roundings of three factors and two sums; a hundredth of them covers
    // the products of these errors.
    const double sizes = std::abs(product) + std::abs(shift) + std::abs(added);
    wanted.Add(y, 5.05 * u * sizes + 1.01 * RoundingError(c.type, y));
  }
  return wanted;
}

void CheckNormalize(BatchNormKernels& kernels, const NormalizeCase& c) {
  SCOPED_TRACE(absl::StrCat(Describe(c.shape), " affine ", c.affine, " relu ",
                            c.relu, " residual ", c.residual, " at ", c.offset,
                            " ", c.residual_offset, " to ", c.to));
  const NormalizeInputs in(c);
  const DeviceTensor x(c.type, in.x, c.offset);
  const DeviceTensor residual(c.type, in.residual,
                              c.offset + c.residual_offset);
  const DeviceTensor own(c.type, c.shape.size(), c.offset);
  const DeviceTensor& y = c.to == NormalizeCase::kOwn     ? own
                          : c.to == NormalizeCase::kOverX ? x
                                                          : residual;
  const DataType statistics = StatisticsTypeOf(c.type);
  const DeviceTensor weight(statistics, in.weight);
  const DeviceTensor bias(statistics, in.bias);
  const DeviceRecords saved({in.saved}, statistics);
  BatchNormKernels::NormalizeCall call;
  call.shape = c.shape;
  call.relu = c.relu;
  call.x = x.buffer();
  if (c.residual) call.residual = residual.buffer();
  if (c.affine) call.weight = weight.buffer();
  if (c.affine) call.bias = bias.buffer();
  call.saved = saved.buffer();
  call.y = y.buffer();
  ASSERT_THAT(kernels.Normalize(call), IsOk());
  EXPECT_TRUE(Reference(c, in).Holds(y.Read()));
  for (const DeviceTensor* input : {&x, &residual}) {
    if (input != &y) {
      EXPECT_EQ(input->Read(), input->values());
    }
  }
}

}  // namespace

TEST_P(KernelsTest, NormalizeIsThatOfEachChannel) {
  const DataType type = GetParam().type;
  for (const ActivationShape& shape : Shapes()) {
    for (const int options : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const NormalizeCase c = {.shape = shape,
                               .type = type,
                               .affine = (options & 1) != 0,
                               .relu = (options & 2) != 0,
                               .residual = (options & 4) != 0};
      // For large shapes, four of the combinations suffice.
      if (shape.size() > kSmallShape && c.affine != (c.relu == c.residual)) {
        continue;
      }
      CheckNormalize(*kernels_, c);
    }
  }
}

// If all tensors are aligned alike, there are a head and a tail. Otherwise
// there are only single elements.
TEST_P(KernelsTest, NormalizeTakesEveryAlignment) {
  const DataType type = GetParam().type;
  for (const ActivationShape& shape : SmallShapes()) {
    for (int64_t offset = 1; offset < 16 / SizeOf(type); ++offset) {
      for (const int64_t residual_offset : {int64_t{0}, -offset}) {
        CheckNormalize(*kernels_, {.shape = shape,
                                   .type = type,
                                   .relu = true,
                                   .residual = true,
                                   .offset = offset,
                                   .residual_offset = residual_offset});
      }
    }
  }
}

TEST_P(KernelsTest, NormalizeWritesOverItsInputs) {
  const DataType type = GetParam().type;
  for (const ActivationShape& shape : SmallShapes()) {
    for (const auto to :
         {NormalizeCase::kOverX, NormalizeCase::kOverResidual}) {
      for (const int64_t offset : {0, 1, 3}) {
        CheckNormalize(*kernels_, {.shape = shape,
                                   .type = type,
                                   .relu = true,
                                   .residual = true,
                                   .offset = offset,
                                   .to = to});
      }
    }
  }
}

TEST_P(KernelsTest, NormalizeKeepsNanThroughRelu) {
  const auto& [kernels, type, layout] = GetParam();
  const ActivationShape shape = InLayout({1, 2, 11}, layout);
  const auto channels = static_cast<size_t>(shape.c);
  std::vector<double> values;
  for (int64_t i = 0; i < shape.size(); ++i) {
    values.push_back(static_cast<double>(i % 22 - 9));
  }
  values[3] = values[21] = std::nan("");
  const DeviceTensor x(type, values);
  const DeviceTensor y(type, shape.size());
  const DeviceRecords record(
      {{1, std::vector<double>(channels, 0), std::vector<double>(channels, 1)}},
      StatisticsTypeOf(type));
  BatchNormKernels::NormalizeCall call;
  call.shape = shape;
  call.relu = true;
  call.x = x.buffer();
  call.saved = record.buffer();
  call.y = y.buffer();
  ASSERT_THAT(kernels_->Normalize(call), IsOk());
  for (double& value : values) value = value < 0 ? 0 : value;
  EXPECT_TRUE(AllNear(y.Read(), values, [](size_t) { return 0.0; }));
}

TEST_P(KernelsTest, NormalizeOfNothingIsNothing) {
  BatchNormKernels::NormalizeCall call;
  call.shape = InLayout({0, 3, 5}, GetParam().layout);
  const DeviceRecords record({RandomSaved(call.shape.c, GetParam().type)},
                             StatisticsTypeOf(GetParam().type));
  call.saved = record.buffer();
  call.x.type = GetParam().type;
  EXPECT_THAT(kernels_->Normalize(call), IsOk());
}

// The controls: each part left out, channels of another layout, a lost NaN, and
// an error of twice the tolerance.
TEST(NormalizeReferenceTest, RejectsWhatIsWrong) {
  const NormalizeCase c = {.shape = {2, 32, 5}, .relu = true, .residual = true};
  const NormalizeInputs in(c);
  const Wanted wanted = Reference(c, in);
  ExpectRejectsErrors(wanted, 29);
  const auto rejects = [&](auto change) {
    NormalizeCase other = c;
    change(other);
    EXPECT_FALSE(wanted.Holds(Reference(other, in).values));
  };
  rejects([](NormalizeCase& other) { other.affine = false; });
  rejects([](NormalizeCase& other) { other.relu = false; });
  rejects([](NormalizeCase& other) { other.residual = false; });
  rejects([](NormalizeCase& other) { other.shape.layout = Layout::kNhwc; });
  rejects([](NormalizeCase& other) { other.shape.layout = Layout::kNchw16c; });
}

// The gradient of the input.

namespace {

struct GradientCase {
  bool affine = true;
  bool relu = false;
  bool wants_dresidual = false;
  int64_t offset = 0;     // The offset of all tensors.
  int64_t dy_offset = 0;  // The further offset of dy.
  enum { kNone, kDx, kDresidual } over_dy = kNone;
};

// roundings: the input_gradient_roundings of KernelsUnderTest.
Wanted ReferenceGradient(const BackwardValues& in, const GradientCase& c,
                         double roundings) {
  Wanted wanted;
  const auto channels = static_cast<size_t>(in.shape.c);
  const double count = static_cast<double>(in.saved.count);
  const double u = UnitRoundoff(StatisticsTypeOf(in.type));
  for (size_t i = 0; i < in.x.size(); ++i) {
    const size_t k = ChannelAt(in.shape, i);
    const double g = in.g(c.relu, i);
    const double scale = in.saved.second[k] * (c.affine ? in.weight[k] : 1);
    double mean = 0;
    double slope = 0;
    if (in.saved.count > 0) {
      mean = in.sums[k] / count;
      slope = (in.x[i] - in.saved.mean[k]) * in.saved.second[k] *
              in.sums[channels + k] / count;
    }
    const double dx = scale * (g - mean - slope);
    wanted.Add(dx, roundings * u * std::abs(scale) *
                           (std::abs(g) + std::abs(mean) + std::abs(slope)) +
                       1.01 * RoundingError(in.type, dx));
  }
  return wanted;
}

void CheckInput(BatchNormKernels& kernels, const KernelsCase& kernels_case,
                const BackwardValues& in, const GradientCase& c) {
  SCOPED_TRACE(absl::StrCat(Describe(in.shape), " affine ", c.affine, " relu ",
                            c.relu, " dresidual ", c.wants_dresidual, " count ",
                            in.saved.count, " at ", c.offset, " ", c.dy_offset,
                            " over dy ", c.over_dy));
  const DeviceBackward device(in, c.offset, c.dy_offset);
  const DeviceTensor dx(in.type, in.shape.size(), c.offset);
  const DeviceTensor dresidual(in.type, in.shape.size(), c.offset);
  const DeviceTensor sums(StatisticsTypeOf(in.type), in.sums);
  const DeviceTensor& to = c.over_dy == GradientCase::kDx ? device.dy : dx;
  const DeviceTensor& also =
      c.over_dy == GradientCase::kDresidual ? device.dy : dresidual;
  BatchNormKernels::BackwardCall call = device.Call(in.shape, c.relu, c.affine);
  call.sums = sums.buffer();
  call.dx = to.buffer();
  if (c.wants_dresidual) call.dresidual = also.buffer();
  ASSERT_THAT(kernels.BackwardInput(call), IsOk());
  EXPECT_TRUE(
      ReferenceGradient(in, c, kernels_case.kernels->input_gradient_roundings)
          .Holds(to.Read()));
  const std::vector<double> got = also.Read();
  if (!c.wants_dresidual) return;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], in.g(c.relu, i));
}

}  // namespace

// Tests training, and evaluation, in which the sums have no meaning.
TEST_P(KernelsTest, BackwardInputIsThatOfEachChannel) {
  const KernelsCase& c = GetParam();
  for (const ActivationShape& shape : Shapes()) {
    BackwardValues in(shape, c.type, 0);
    in.saved.count = 3 * shape.values_per_channel();
    for (const bool relu : {false, true}) {
      BackwardValues constant = in;  // Unused values may be anything.
      constant.saved.count = 0;
      constant.sums.assign(constant.sums.size(), std::nan(""));
      constant.x.assign(constant.x.size(), std::nan(""));
      constant.saved.mean.assign(constant.saved.mean.size(), std::nan(""));
      for (const bool affine : {false, true}) {
        if (shape.size() > kSmallShape && !affine) continue;
        for (const BackwardValues* const values : {&in, &constant}) {
          CheckInput(*kernels_, c, *values,
                     {.affine = affine, .relu = relu, .wants_dresidual = relu});
        }
      }
    }
  }
}

TEST_P(KernelsTest, BackwardInputTakesOtherAlignments) {
  const KernelsCase& c = GetParam();
  for (const ActivationShape& shape : SmallShapes()) {
    const BackwardValues in(shape, c.type, 0);
    for (const int64_t offset : OffsetsOf(c.type)) {
      for (const int64_t dy_offset : {0, 1}) {
        CheckInput(*kernels_, c, in,
                   {.relu = true,
                    .wants_dresidual = true,
                    .offset = offset,
                    .dy_offset = dy_offset});
      }
    }
  }
}

TEST_P(KernelsTest, BackwardInputWritesOverDy) {
  const KernelsCase& c = GetParam();
  for (const ActivationShape& shape : SmallShapes()) {
    const BackwardValues in(shape, c.type, 0);
    for (const int64_t offset : {0, 1, 3}) {
      GradientCase over = {
          .relu = true, .wants_dresidual = true, .offset = offset};
      over.over_dy = GradientCase::kDx;
      CheckInput(*kernels_, c, in, over);
      over.wants_dresidual = false;
      CheckInput(*kernels_, c, in, over);
      over.wants_dresidual = true;
      over.over_dy = GradientCase::kDresidual;
      CheckInput(*kernels_, c, in, over);
    }
  }
}

// The controls: a gradient without its cross-term, without the mean, without
// weight, without the mask of ReLU, as of constants, with an error of twice the
// tolerance, and no gradient at all.
TEST(BackwardInputReferenceTest, RejectsWhatIsWrong) {
  constexpr double kRoundings = 10;
  const GradientCase c = {.relu = true};
  const BackwardValues in({2, 3, 5}, DataType::kFloat32, 0);
  const Wanted wanted = ReferenceGradient(in, c, kRoundings);
  ExpectRejectsErrors(wanted, 20);
  const auto rejects = [&](auto change) {
    BackwardValues other = in;
    GradientCase other_case = c;
    change(other, other_case);
    EXPECT_FALSE(
        wanted.Holds(ReferenceGradient(other, other_case, kRoundings).values));
  };
  rejects([](auto& v, auto&) { std::fill_n(v.sums.begin() + 3, 3, 0.0); });
  rejects([](auto& v, auto&) { std::fill_n(v.sums.begin(), 3, 0.0); });
  rejects([](auto& v, auto&) { v.saved.count = 0; });
  rejects([](auto&, auto& other) { other.affine = false; });
  rejects([](auto&, auto& other) { other.relu = false; });
  EXPECT_FALSE(wanted.Holds(std::vector<double>(in.x.size(), 0)));
}

}  // namespace lockstep
