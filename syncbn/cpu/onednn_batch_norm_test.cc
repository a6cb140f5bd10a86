// Tests the work of the local layer around oneDNN.
// //conformance/syncbn:sync_batch_norm_groups_test tests that the layer is
// batch norm of one rank, in float32 and bfloat16.
#include "syncbn/cpu/onednn_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/batch_norm_reference.h"
#include "syncbn/testing/device_tensor.h"
#include "syncbn/testing/numbers.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// One layer's memory. All objects with the same shape start with the same
// numbers.
struct LayerStep : LayerTensors {
  LayerStep(const BatchNormOptions& options, const ActivationShape& shape,
            DataType type)
      : LayerTensors(options, shape, type,
                     {.x = RandomValues(shape.size(), 1, 0.25),
                      .residual = RandomValues(shape.size(), 2),
                      .dy = RandomValues(shape.size(), 3, 0.1),
                      .weight = RandomValues(shape.c, 4, 1, 0.2),
                      .bias = RandomValues(shape.c, 5, 0, 0.2),
                      .mean = 0.5,
                      .variance = 0.75},
                     /*offset=*/1, /*gradient_offset=*/1) {
    batches = 3;
  }
};

std::unique_ptr<OnednnBatchNorm> Layer(const BatchNormOptions& options) {
  absl::StatusOr<std::unique_ptr<OnednnBatchNorm>> layer =
      OnednnBatchNorm::Create(options);
  EXPECT_THAT(layer, IsOk());
  return *std::move(layer);
}

// Checks that the gradients are those of the float64 reference. dresidual is
// the gradient that ReLU let through.
void CheckGradients(const LayerStep& step, bool training) {
  const BatchNormOptions& options = step.options;
  const Precision precision = PrecisionOf(step.x.buffer().type);
  const auto ones = std::vector<double>(step.weight.values().size(), 1);
  const ReferenceLayer layer = {
      .channels = step.shape.c,
      .hw = step.shape.hw,
      .epsilon = options.epsilon,
      .weight = options.affine ? step.weight.values() : ones,
      .bias = step.bias.values()};
  const ReferenceBatch batch = {step.shape.n,
                                FromLayout(step.shape, step.x.values()),
                                {},
                                FromLayout(step.shape, step.dresidual.Read())};
  const ReferenceStatistics statistics =
      training || !options.track_running_stats
          ? StatisticsOf(layer, {&batch, 1}, precision)
          : ConstantStatistics(layer, step.mean.values(),
                               step.variance.values(), precision);
  const ReferenceResult want =
      ReferenceOf(layer, statistics, {&batch, 1}, precision);
  const auto near = [](const std::vector<double>& got, const Bounded& want) {
    return AllNear(got, want.value, [&](size_t i) { return want.bound[i]; });
  };
  EXPECT_TRUE(near(FromLayout(step.shape, step.dx.Read()), want.dx[0]));
  if (!options.affine) return;
  EXPECT_TRUE(near(step.dweight.Read(), want.dweight));
  EXPECT_TRUE(near(step.dbias.Read(), want.dbias));
}

// Checks that the residual is added, and ReLU applied, to oneDNN's rounded
// output, and that dresidual is the gradient that ReLU let through.
void CheckWithResidual(const BatchNormOptions& options,
                       const ActivationShape& shape, DataType type) {
  const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
  for (const bool training : {true, false}) {
    LayerStep plain(options, shape, type);
    const absl::Status status = plain.Run(*layer, {.training = training});
    // oneDNN may not support the type here.
    if (type != DataType::kFloat32 && absl::IsUnimplemented(status)) return;
    ASSERT_THAT(status, IsOk());
    for (const bool relu : {true, false}) {
      LayerStep fused(options, shape, type);
      ASSERT_THAT(fused.Run(*layer, {training, relu, /*residual=*/true}),
                  IsOk());
      const std::vector<double> normal = plain.y.Read();
      const std::vector<double> y = fused.y.Read();
      const std::vector<double> dresidual = fused.dresidual.Read();
      for (size_t i = 0; i < y.size(); ++i) {
        const double sum =
            RoundTo(DataType::kFloat32, normal[i] + fused.residual.values()[i]);
        ASSERT_EQ(y[i], RoundTo(type, relu ? std::max(sum, 0.0) : sum));
        ASSERT_EQ(dresidual[i], relu && y[i] <= 0 ? 0 : fused.dy.values()[i]);
      }
      CheckGradients(fused, training);
    }
  }
}

TEST(OnednnBatchNormTest, AddsTheResidualToTheRoundedOutput) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const Layout layout :
         {Layout::kNchw, Layout::kNhwc, Layout::kNchw16c}) {
      for (const auto& [channels, hw] : {std::pair(1, 49), {3, 1}, {65, 49}}) {
        const int c = layout == Layout::kNchw16c ? 32 : channels;
        const ActivationShape shape = {6, c, hw, layout};
        SCOPED_TRACE(Describe(shape) + " " + Name(type));
        BatchNormOptions options = {.channels = c, .epsilon = 1e-3};
        CheckWithResidual(options, shape, type);
        options.affine = false;
        CheckWithResidual(options, shape, type);
        options.affine = true;
        options.track_running_stats = false;
        CheckWithResidual(options, shape, type);
      }
    }
  }
}

TEST(OnednnBatchNormTest, NamesATypeThatItLacks) {
  for (DataType type : {DataType::kFloat16, DataType::kFloat64}) {
    const BatchNormOptions options = {
        .channels = 2, .affine = false, .track_running_stats = false};
    const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
    LayerStep step(options, {.n = 2, .c = 2, .hw = 3}, type);
    EXPECT_THAT(step.Run(*layer, {}), StatusIs(absl::StatusCode::kUnimplemented,
                                               HasSubstr(Name(type))));
  }
}

TEST(OnednnBatchNormTest, WorksInPlace) {
  const BatchNormOptions options = {.channels = 3, .epsilon = 1e-3};
  const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
  const ActivationShape shape = {.n = 2, .c = 3, .hw = 16};
  const LayerCall call = {.training = true, .relu = true, .residual = true};
  LayerStep want(options, shape, DataType::kFloat32);
  ASSERT_THAT(want.Run(*layer, call), IsOk());
  for (const auto over : {&LayerStep::x, &LayerStep::residual}) {
    LayerStep step(options, shape, DataType::kFloat32);
    BatchNorm::ForwardBuffers forwards = step.ForwardBuffers(call);
    forwards.y = (step.*over).buffer();
    ASSERT_THAT(layer->Forward(forwards), IsOk());
    EXPECT_EQ((step.*over).Bytes(), want.y.Bytes());
  }
  for (const bool over_dx : {true, false}) {
    LayerStep step(options, shape, DataType::kFloat32);
    ASSERT_THAT(layer->Forward(step.ForwardBuffers(call)), IsOk());
    BatchNorm::BackwardBuffers backwards = step.BackwardBuffers(call);
    (over_dx ? backwards.dx : backwards.dresidual) = step.dy.buffer();
    ASSERT_THAT(layer->Backward(backwards, [] {}), IsOk());
    EXPECT_EQ((over_dx ? step.dy : step.dx).Bytes(), want.dx.Bytes());
    EXPECT_EQ((over_dx ? step.dresidual : step.dy).Bytes(),
              want.dresidual.Bytes());
  }
}

TEST(OnednnBatchNormTest, ReluKeepsNan) {
  const ActivationShape shape = {.n = 2, .c = 3, .hw = 16};
  std::vector<double> values = RandomValues(shape.size(), 1);
  const size_t at = (1 * 3 + 1) * 16 + 5;
  values[at] = std::nan("");
  const DeviceTensor x(DataType::kFloat32, values);
  for (bool training : {true, false}) {
    const BatchNormOptions options = {.channels = 3};
    LayerStep step(options, shape, DataType::kFloat32);
    BatchNorm::ForwardBuffers forwards =
        step.ForwardBuffers({.training = training, .relu = true});
    forwards.x = x.buffer();
    ASSERT_THAT(Layer(options)->Forward(forwards), IsOk());
    EXPECT_TRUE(std::isnan(step.y.Read()[at]));
    EXPECT_FALSE(std::isnan(step.y.Read()[at + 16]));
  }
}

TEST(OnednnBatchNormTest, ReportsWrongArguments) {
  EXPECT_THAT(
      OnednnBatchNorm::Create({.channels = 0}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("channels")));
  const BatchNormOptions options = {.channels = 3};
  const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
  LayerStep step(options, {.n = 2, .c = 3, .hw = 4}, DataType::kFloat32);
  BatchNorm::ForwardBuffers forwards = step.ForwardBuffers({});
  forwards.x.count -= 1;
  EXPECT_THAT(layer->Forward(forwards),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x has")));
}

}  // namespace
}  // namespace lockstep
