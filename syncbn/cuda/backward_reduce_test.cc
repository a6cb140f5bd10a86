// The backward sums against a float64 loop. Linked with the stand-in runtime it
// needs no GPU, with the CUDA runtime it needs one.
#include "syncbn/cuda/backward_reduce.h"

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
#include "collectives/nccl/cuda_handles.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_testing.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Case {
  ActivationShape shape;
  DataType type = DataType::kFloat32;
  bool relu = false;
  int64_t offset = 0;     // Of all tensors,
  int64_t dy_offset = 0;  // and of dy beside it.
  double mean = 0;        // Of x, in deviations.
};

struct Inputs {
  std::vector<double> x, y, dy;
  RecordValues saved;
};

// sums [2, c], and what float32 may do to them.
struct Wanted {
  std::vector<double> sums, tolerance;
};

// A term is rounded four times, and goes through at most so many additions: of
// a thread (at most 96 of the largest shape here), of a tree, of partial
// results, of a tree.
constexpr double kErrors = 4 + 96 + 8 + 8 + 8;

Wanted Reference(const Case& c, const Inputs& in) {
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

Inputs RandomInputs(const ActivationShape& shape, double mean) {
  Inputs in;
  in.x = RandomValues(shape.size(), 1, mean);
  in.dy = RandomValues(shape.size(), 2);
  in.y = RandomValues(shape.size(), 3);
  for (size_t i = 0; i < in.y.size(); i += 5) in.y[i] = 0;
  for (size_t i = 3; i < in.y.size(); i += 17) in.y[i] = std::nan("");
  in.saved.count = 7;
  in.saved.mean = RandomValues(shape.c, 6, mean, 0.1);
  in.saved.second = RandomValues(shape.c, 7, 2, 0.2);
  for (double& value : in.saved.mean) {
    value = Rounded(DataType::kFloat32, value);
  }
  for (double& value : in.saved.second) {
    value = Rounded(DataType::kFloat32, value);
  }
  return in;
}

class BackwardReduceTest : public GpuTest,
                           public testing::WithParamInterface<TypeAndLayout> {
 protected:
  static std::vector<double> Compute(const Case& c, Inputs& in,
                                     bool affine = true) {
    const DeviceTensor x(c.type, in.x, c.offset);
    const DeviceTensor y(c.type, in.y, c.offset);
    const DeviceTensor dy(c.type, in.dy, c.offset + c.dy_offset);
    const DeviceTensor sums(DataType::kFloat32, 2 * c.shape.c);
    const DeviceTensor dweight(DataType::kFloat32, c.shape.c);
    const DeviceTensor dbias(DataType::kFloat32, c.shape.c);
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
    call.saved = saved.data();
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
    Inputs in = RandomInputs(c.shape, c.mean);
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
  Inputs in = RandomInputs(c.shape, 0);
  EXPECT_EQ(Compute(c, in), Compute(c, in, /*affine=*/false));
}

TEST_P(BackwardReduceTest, EmptyIsZero) {
  const auto [type, layout] = GetParam();
  const Case c = {.shape = {0, 3, 5, layout}, .type = type, .relu = true};
  Inputs in = RandomInputs(c.shape, 0);
  EXPECT_EQ(Compute(c, in), std::vector<double>(6, 0.0));
}

INSTANTIATE_TEST_SUITE_P(All, BackwardReduceTest,
                         testing::Combine(testing::ValuesIn(kGpuTypes),
                                          testing::ValuesIn(kLayouts)),
                         CaseName);

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
  const Inputs in = RandomInputs(c.shape, 0);
  const Wanted wanted = Reference(c, in);
  const auto tolerance = [&](size_t i) { return wanted.tolerance[i]; };
  EXPECT_TRUE(AllNear(wanted.sums, wanted.sums, tolerance));
  Case wrong = c;
  wrong.relu = false;
  EXPECT_FALSE(AllNear(Reference(wrong, in).sums, wanted.sums, tolerance));
  wrong = c;
  wrong.shape.layout = Layout::kNhwc;
  EXPECT_FALSE(AllNear(Reference(wrong, in).sums, wanted.sums, tolerance));
  Inputs lost = in;
  lost.dy[3] = 0;  // Where y is NaN, dy counts.
  EXPECT_FALSE(AllNear(Reference(c, lost).sums, wanted.sums, tolerance));
}

}  // namespace
}  // namespace lockstep
