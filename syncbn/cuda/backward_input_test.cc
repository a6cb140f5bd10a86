// The input's gradient against a float64 loop. Linked with the stand-in runtime
// it needs no GPU, with the CUDA runtime it needs one.
#include "syncbn/cuda/backward_input.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_testing.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// So few that threads take several vectors of the largest shapes, and as many
// threads as three channels do not divide.
constexpr int64_t kMaxBlocks = 5;

enum class Output { kOwn, kOverDy };

struct Case {
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

struct Inputs {
  std::vector<double> x, y, dy, weight, sums;
  RecordValues saved;
};

struct Wanted {
  std::vector<double> dx, tolerance, dresidual;
};

Wanted Reference(const Case& c, const Inputs& in) {
  Wanted wanted;
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

std::vector<double> RoundedToFloat(std::vector<double> values) {
  for (double& value : values) value = Rounded(DataType::kFloat32, value);
  return values;
}

// y has zeros and, since they count as passed, NaN.
Inputs RandomInputs(const ActivationShape& shape) {
  Inputs in;
  in.x = RandomValues(shape.size(), 1);
  in.dy = RandomValues(shape.size(), 2);
  in.y = RandomValues(shape.size(), 3);
  for (size_t i = 0; i < in.y.size(); i += 5) in.y[i] = 0;
  for (size_t i = 3; i < in.y.size(); i += 17) in.y[i] = std::nan("");
  in.weight = RoundedToFloat(RandomValues(shape.c, 4, 1));
  in.sums = RoundedToFloat(RandomValues(2 * shape.c, 5, 0, 5));
  in.saved.mean = RoundedToFloat(RandomValues(shape.c, 6));
  in.saved.second = RoundedToFloat(RandomValues(shape.c, 7, 2, 0.2));
  return in;
}

class BackwardInputTest : public GpuTest,
                          public testing::WithParamInterface<TypeAndLayout> {
 protected:
  static void Check(const Case& c) {
    SCOPED_TRACE(absl::StrCat(Describe(c.shape), " affine ", c.affine, " relu ",
                              c.relu, " dresidual ", c.wants_dresidual,
                              " count ", c.count, " at ", c.offset, " ",
                              c.dy_offset));
    Inputs in = RandomInputs(c.shape);
    in.saved.count = c.count;
    const DeviceTensor x(c.type, in.x, c.offset);
    const DeviceTensor y(c.type, in.y, c.offset);
    const DeviceTensor dy(c.type, in.dy, c.offset + c.dy_offset);
    const DeviceTensor dx(c.type, c.shape.size(), c.offset);
    const DeviceTensor dresidual(c.type, c.shape.size(), c.offset);
    const DeviceTensor weight(DataType::kFloat32, in.weight);
    const DeviceTensor sums(DataType::kFloat32, in.sums);
    const DeviceRecords saved({in.saved});
    in.x = x.values();
    in.y = y.values();
    in.dy = dy.values();
    BatchNormKernels::BackwardCall call;
    call.shape = c.shape;
    call.relu = c.relu;
    call.x = x.buffer();
    if (c.relu) call.y = y.buffer();
    call.dy = dy.buffer();
    if (c.affine) call.weight = weight.buffer();
    call.saved = saved.data();
    const DeviceTensor& to = c.dx == Output::kOverDy ? dy : dx;
    const DeviceTensor& also = c.dresidual == Output::kOverDy ? dy : dresidual;
    ASSERT_THAT(BackwardInput(call, sums.buffer(), to.buffer(),
                              c.wants_dresidual ? also.buffer() : Buffer(),
                              kMaxBlocks, nullptr),
                IsOk());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Wanted wanted = Reference(c, in);
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
    Case c = {.shape = {2, 3, 49, layout},
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

INSTANTIATE_TEST_SUITE_P(All, BackwardInputTest,
                         testing::Combine(testing::ValuesIn(kGpuTypes),
                                          testing::ValuesIn(kLayouts)),
                         CaseName);

TEST(BackwardInputTypesTest, RefusesFloat64) {
  BatchNormKernels::BackwardCall call;
  call.x.type = DataType::kFloat64;
  EXPECT_THAT(BackwardInput(call, {}, {}, {}, kMaxBlocks, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("float64")));
}

// The controls: a gradient without its cross-term, without the mean, without
// the mask of ReLU, and none at all.
TEST(BackwardInputCheckTest, RejectsWhatIsWrong) {
  const Case c = {.shape = {2, 3, 5}, .relu = true, .count = 10};
  Inputs in = RandomInputs(c.shape);
  const Wanted wanted = Reference(c, in);
  const auto tolerance = [&](size_t i) { return wanted.tolerance[i]; };
  EXPECT_TRUE(AllNear(wanted.dx, wanted.dx, tolerance));
  Inputs wrong = in;
  for (size_t k = 3; k < 6; ++k) wrong.sums[k] = 0;
  EXPECT_FALSE(AllNear(Reference(c, wrong).dx, wanted.dx, tolerance));
  wrong = in;
  for (size_t k = 0; k < 3; ++k) wrong.sums[k] = 0;
  EXPECT_FALSE(AllNear(Reference(c, wrong).dx, wanted.dx, tolerance));
  Case unmasked = c;
  unmasked.relu = false;
  EXPECT_FALSE(AllNear(Reference(unmasked, in).dx, wanted.dx, tolerance));
  EXPECT_FALSE(
      AllNear(std::vector<double>(in.x.size(), 0), wanted.dx, tolerance));
}

}  // namespace
}  // namespace lockstep
