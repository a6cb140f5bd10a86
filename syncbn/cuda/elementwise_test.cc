// Normalising and the gradient of the input against float64 loops. Linked with
// the stand-in runtime they need no GPU, with the CUDA runtime they need one.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_testing.h"
#include "syncbn/cuda/kernels.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// So few that threads take several vectors of the largest shapes, and as many
// threads as three channels do not divide.
constexpr int64_t kMaxBlocks = 5;

// One call: what goes in, and how memory lies.
struct NormalizeCase {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  bool affine = true;
  bool relu = false;
  bool residual = false;
  int64_t x_offset = 0;
  int64_t y_offset = 0;
  int64_t residual_offset = 0;
};

// The definition, and what float32 and the last rounding may do to it.
struct WantedOutput {
  std::vector<double> y;
  std::vector<double> tolerance;
};

WantedOutput Reference(const NormalizeCase& c, const std::vector<double>& x,
                       const std::vector<double>& residual,
                       const std::vector<double>& weight,
                       const std::vector<double>& bias,
                       const RecordValues& saved) {
  WantedOutput wanted;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto k =
        static_cast<size_t>(ChannelOf(c.shape, static_cast<int64_t>(i)));
    const double product =
        (x[i] - saved.mean[k]) * saved.second[k] * (c.affine ? weight[k] : 1);
    const double shift = c.affine ? bias[k] : 0;
    const double added = c.residual ? residual[i] : 0;
    double y = product + shift + added;
    if (c.relu && y < 0) y = 0;
    wanted.y.push_back(y);
    // Three factors and two sums, one rounding each.
    wanted.tolerance.push_back(
        5 * kRoundOff *
            (std::abs(product) + std::abs(shift) + std::abs(added)) +
        RoundingError(c.type, y));
  }
  return wanted;
}

RecordValues RandomSaved(int64_t channels) {
  RecordValues saved;
  saved.count = 7;
  saved.mean = RoundedTo(DataType::kFloat32, RandomValues(channels, 11));
  saved.second =
      RoundedTo(DataType::kFloat32, RandomValues(channels, 12, 2, 0.2));
  return saved;
}

class NormalizeTest : public KernelTest {
 protected:
  static void Check(const NormalizeCase& c) {
    SCOPED_TRACE(absl::StrCat(Describe(c.shape), " affine ", c.affine, " relu ",
                              c.relu, " residual ", c.residual, " at ",
                              c.x_offset, " ", c.residual_offset, " ",
                              c.y_offset));
    const int64_t size = c.shape.size();
    const DeviceTensor x(c.type, RandomValues(size, 1), c.x_offset);
    const DeviceTensor residual(c.type, RandomValues(size, 2),
                                c.residual_offset);
    const DeviceTensor y(c.type, size, c.y_offset);
    const DeviceTensor weight(DataType::kFloat32,
                              RandomValues(c.shape.c, 3, 1));
    const DeviceTensor bias(DataType::kFloat32, RandomValues(c.shape.c, 4));
    const RecordValues saved = RandomSaved(c.shape.c);
    const DeviceRecords record({saved});
    BatchNormKernels::NormalizeCall call;
    call.shape = c.shape;
    call.relu = c.relu;
    call.x = x.buffer();
    if (c.residual) call.residual = residual.buffer();
    if (c.affine) call.weight = weight.buffer();
    if (c.affine) call.bias = bias.buffer();
    call.saved = record.data();
    call.y = y.buffer();
    ASSERT_THAT(Normalize(call, kMaxBlocks, nullptr), IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const WantedOutput wanted =
        Reference(c, x.values(), residual.values(), weight.values(),
                  bias.values(), saved);
    EXPECT_TRUE(AllNear(y.Read(), wanted.y,
                        [&](size_t i) { return wanted.tolerance[i]; }));
    EXPECT_EQ(x.Read(), x.values());
    EXPECT_EQ(residual.Read(), residual.values());
  }
};

TEST_P(NormalizeTest, EqualsTheReference) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    shape.layout = layout;
    for (const bool relu : {false, true}) {
      for (const bool residual : {false, true}) {
        Check({.shape = shape,
               .type = type,
               .affine = relu == residual,
               .relu = relu,
               .residual = residual});
      }
    }
  }
}

// All alike, which leaves a head and a tail, and not alike, which leaves single
// elements.
TEST_P(NormalizeTest, EqualsTheReferenceAtEveryAlignment) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    if (shape.size() > 700) continue;
    shape.layout = layout;
    for (int64_t offset = 1; offset < 16 / SizeOf(type); ++offset) {
      NormalizeCase c = {
          .shape = shape, .type = type, .relu = true, .residual = true};
      c.x_offset = c.y_offset = c.residual_offset = offset;
      Check(c);
      c.residual_offset = 0;
      Check(c);
    }
  }
}

TEST_P(NormalizeTest, WritesOverItsInputs) {
  const auto [type, layout] = GetParam();
  const NormalizeCase c = {.shape = {2, 3, 49, layout},
                           .type = type,
                           .relu = true,
                           .residual = true};
  for (const bool over_x : {true, false}) {
    for (const int64_t offset : kOffsets) {
      const int64_t size = c.shape.size();
      const DeviceTensor x(type, RandomValues(size, 5), offset);
      const DeviceTensor residual(type, RandomValues(size, 6), offset);
      const DeviceTensor weight(DataType::kFloat32, RandomValues(3, 3, 1));
      const DeviceTensor bias(DataType::kFloat32, RandomValues(3, 4));
      const RecordValues saved = RandomSaved(3);
      const DeviceRecords record({saved});
      const DeviceTensor& y = over_x ? x : residual;
      ASSERT_THAT(
          Normalize({c.shape, true, x.buffer(), residual.buffer(),
                     weight.buffer(), bias.buffer(), record.data(), y.buffer()},
                    kMaxBlocks, nullptr),
          IsOk());
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const WantedOutput wanted =
          Reference(c, x.values(), residual.values(), weight.values(),
                    bias.values(), saved);
      EXPECT_TRUE(AllNear(y.Read(), wanted.y,
                          [&](size_t i) { return wanted.tolerance[i]; }));
    }
  }
}

TEST_P(NormalizeTest, KeepsNanThroughRelu) {
  const auto [type, layout] = GetParam();
  const ActivationShape shape = {1, 2, 11, layout};
  std::vector<double> values(22, -1.0);
  values[3] = values[21] = std::nan("");
  const DeviceTensor x(type, values);
  const DeviceTensor y(type, shape.size());
  const DeviceRecords record({{1, {0, 0}, {1, 1}}});
  ASSERT_THAT(
      Normalize(
          {shape, true, x.buffer(), {}, {}, {}, record.data(), y.buffer()},
          kMaxBlocks, nullptr),
      IsOk());
  const std::vector<double> got = y.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), i == 3 || i == 21);
    if (!std::isnan(got[i])) {
      EXPECT_EQ(got[i], 0);
    }
  }
}

TEST_P(NormalizeTest, NothingIsNothing) {
  const auto [type, layout] = GetParam();
  BatchNormKernels::NormalizeCall call;
  call.shape = {0, 3, 5, layout};
  call.x.type = type;
  EXPECT_THAT(Normalize(call, kMaxBlocks, nullptr), IsOk());
}

LOCKSTEP_TYPES_AND_LAYOUTS(NormalizeTest);

TEST(NormalizeTypesTest, RefusesFloat64) {
  BatchNormKernels::NormalizeCall call;
  call.x.type = DataType::kFloat64;
  EXPECT_THAT(Normalize(call, kMaxBlocks, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: channels of the other layout, a lost NaN, one unit too much.
TEST(NormalizeCheckTest, RejectsWhatIsWrong) {
  const NormalizeCase c = {.shape = {2, 3, 5, Layout::kNchw}, .affine = true};
  const std::vector<double> x = RandomValues(30, 1);
  const std::vector<double> weight = {1, 2, 3};
  const std::vector<double> bias = {0.1, 0.2, 0.3};
  const RecordValues saved = RandomSaved(3);
  const WantedOutput wanted = Reference(c, x, x, weight, bias, saved);
  const auto tolerance = [&](size_t i) { return wanted.tolerance[i]; };
  EXPECT_TRUE(AllNear(wanted.y, wanted.y, tolerance));
  NormalizeCase other = c;
  other.shape.layout = Layout::kNhwc;
  EXPECT_FALSE(AllNear(Reference(other, x, x, weight, bias, saved).y, wanted.y,
                       tolerance));
  std::vector<double> wrong = wanted.y;
  wrong[7] = std::nan("");
  EXPECT_FALSE(AllNear(wrong, wanted.y, tolerance));
  wrong = wanted.y;
  wrong[29] += 2 * tolerance(29);
  EXPECT_FALSE(AllNear(wrong, wanted.y, tolerance));
}

enum class Output { kOwn, kOverDy };

struct GradientCase {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  bool affine = true;
  bool relu = false;
  bool wants_dresidual = false;
  int64_t count = 0;
  int64_t offset = 0;     // Of all tensors,
  int64_t dy_offset = 0;  // and of dy beside it.
  Output dx = Output::kOwn;
  Output dresidual = Output::kOwn;
};

struct GradientInputs : BackwardValues {
  explicit GradientInputs(const ActivationShape& shape)
      : BackwardValues(RandomBackwardValues(shape, 0, 1)),
        weight(RoundedTo(DataType::kFloat32, RandomValues(shape.c, 4, 1))),
        sums(RoundedTo(DataType::kFloat32,
                       RandomValues(2 * shape.c, 5, 0, 5))) {}

  std::vector<double> weight, sums;
};

struct WantedGradient {
  std::vector<double> dx, tolerance, dresidual;
};

WantedGradient Reference(const GradientCase& c, const GradientInputs& in) {
  WantedGradient wanted;
  const auto channels = static_cast<size_t>(c.shape.c);
  const double count = static_cast<double>(c.count);
  for (size_t i = 0; i < in.x.size(); ++i) {
    const auto k =
        static_cast<size_t>(ChannelOf(c.shape, static_cast<int64_t>(i)));
    const double g = c.relu && in.y[i] <= 0 ? 0 : in.dy[i];
    const double scale = in.saved.second[k] * (c.affine ? in.weight[k] : 1);
    double mean = 0;
    double slope = 0;
    if (c.count > 0) {
      mean = in.sums[k] / count;
      slope = (in.x[i] - in.saved.mean[k]) * in.saved.second[k] *
              in.sums[channels + k] / count;
    }
    const double dx = scale * (g - mean - slope);
    wanted.dx.push_back(dx);
    wanted.dresidual.push_back(g);
    // The longest product: a difference, a reciprocal, three factors; then two
    // differences and the scale, itself a product.
    wanted.tolerance.push_back(
        10 * kRoundOff * std::abs(scale) *
            (std::abs(g) + std::abs(mean) + std::abs(slope)) +
        RoundingError(c.type, dx));
  }
  return wanted;
}

class BackwardInputTest : public KernelTest {
 protected:
  static void Check(const GradientCase& c) {
    SCOPED_TRACE(absl::StrCat(Describe(c.shape), " affine ", c.affine, " relu ",
                              c.relu, " dresidual ", c.wants_dresidual,
                              " count ", c.count, " at ", c.offset, " ",
                              c.dy_offset));
    GradientInputs in(c.shape);
    in.saved.count = c.count;
    const DeviceBackward device(c.type, in, c.offset, c.dy_offset);
    const DeviceTensor dx(c.type, c.shape.size(), c.offset);
    const DeviceTensor dresidual(c.type, c.shape.size(), c.offset);
    const DeviceTensor weight(DataType::kFloat32, in.weight);
    const DeviceTensor sums(DataType::kFloat32, in.sums);
    BatchNormKernels::BackwardCall call = device.Call(c.shape, c.relu);
    if (c.affine) call.weight = weight.buffer();
    const DeviceTensor& to = c.dx == Output::kOverDy ? device.dy : dx;
    const DeviceTensor& also =
        c.dresidual == Output::kOverDy ? device.dy : dresidual;
    ASSERT_THAT(BackwardInput(call, sums.buffer(), to.buffer(),
                              c.wants_dresidual ? also.buffer() : Buffer(),
                              kMaxBlocks, nullptr),
                IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const WantedGradient wanted = Reference(c, in);
    EXPECT_TRUE(AllNear(to.Read(), wanted.dx,
                        [&](size_t i) { return wanted.tolerance[i]; }));
    if (c.wants_dresidual) {
      EXPECT_TRUE(
          AllNear(also.Read(), wanted.dresidual, [](size_t) { return 0.0; }));
    }
  }
};

TEST_P(BackwardInputTest, EqualsTheReference) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    shape.layout = layout;
    for (const bool relu : {false, true}) {
      for (const int64_t count : {int64_t{0}, 3 * shape.values_per_channel()}) {
        Check({.shape = shape,
               .type = type,
               .affine = count > 0,
               .relu = relu,
               .wants_dresidual = relu,
               .count = count});
      }
    }
  }
}

TEST_P(BackwardInputTest, EqualsTheReferenceAtOtherAlignments) {
  const auto [type, layout] = GetParam();
  for (ActivationShape shape : AwkwardShapes()) {
    if (shape.size() > 700) continue;
    shape.layout = layout;
    for (const int64_t offset : {int64_t{1}, 16 / SizeOf(type) - 1}) {
      for (const int64_t dy_offset : {0, 1}) {
        Check({.shape = shape,
               .type = type,
               .relu = true,
               .wants_dresidual = true,
               .count = 9,
               .offset = offset,
               .dy_offset = dy_offset});
      }
    }
  }
}

TEST_P(BackwardInputTest, WritesOverDy) {
  const auto [type, layout] = GetParam();
  for (const int64_t offset : kOffsets) {
    GradientCase c = {.shape = {2, 3, 49, layout},
                      .type = type,
                      .relu = true,
                      .wants_dresidual = true,
                      .count = 5,
                      .offset = offset,
                      .dx = Output::kOverDy};
    Check(c);
    c.dx = Output::kOwn;
    c.dresidual = Output::kOverDy;
    Check(c);
  }
}

// In evaluation the sums are of no meaning, even if they are not finite.
TEST_P(BackwardInputTest, IgnoresSumsOfNoCount) {
  const auto [type, layout] = GetParam();
  const ActivationShape shape = {1, 2, 9, layout};
  const DeviceTensor x(type, RandomValues(18, 1));
  const DeviceTensor dy(type, std::vector<double>(18, 2.0));
  const DeviceTensor dx(type, 18);
  const DeviceTensor sums(DataType::kFloat32, 4);
  const DeviceRecords saved({{0, {0, 0}, {0.5, 0.25}}});
  BatchNormKernels::BackwardCall call;
  call.shape = shape;
  call.x = x.buffer();
  call.dy = dy.buffer();
  call.saved = saved.data();
  ASSERT_THAT(
      BackwardInput(call, sums.buffer(), dx.buffer(), {}, kMaxBlocks, nullptr),
      IsOk());
  const std::vector<double> got = dx.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], ChannelOf(shape, static_cast<int64_t>(i)) == 0 ? 1 : 0.5);
  }
}

LOCKSTEP_TYPES_AND_LAYOUTS(BackwardInputTest);

TEST(BackwardInputTypesTest, RefusesFloat64) {
  BatchNormKernels::BackwardCall call;
  call.x.type = DataType::kFloat64;
  EXPECT_THAT(BackwardInput(call, {}, {}, {}, kMaxBlocks, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: a gradient without its cross-term, without the mean, without
// the mask of ReLU, and none at all.
TEST(BackwardInputCheckTest, RejectsWhatIsWrong) {
  const GradientCase c = {.shape = {2, 3, 5}, .relu = true, .count = 10};
  GradientInputs in(c.shape);
  const WantedGradient wanted = Reference(c, in);
  const auto tolerance = [&](size_t i) { return wanted.tolerance[i]; };
  EXPECT_TRUE(AllNear(wanted.dx, wanted.dx, tolerance));
  GradientInputs wrong = in;
  for (size_t k = 3; k < 6; ++k) wrong.sums[k] = 0;
  EXPECT_FALSE(AllNear(Reference(c, wrong).dx, wanted.dx, tolerance));
  wrong = in;
  for (size_t k = 0; k < 3; ++k) wrong.sums[k] = 0;
  EXPECT_FALSE(AllNear(Reference(c, wrong).dx, wanted.dx, tolerance));
  GradientCase unmasked = c;
  unmasked.relu = false;
  EXPECT_FALSE(AllNear(Reference(unmasked, in).dx, wanted.dx, tolerance));
  EXPECT_FALSE(
      AllNear(std::vector<double>(in.x.size(), 0), wanted.dx, tolerance));
}

}  // namespace
}  // namespace lockstep
