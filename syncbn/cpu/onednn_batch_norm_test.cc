// The local layer against a loop in float64.
#include "syncbn/cpu/onednn_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/test_activations.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr LayerCall kAllCalls[] = {{true, false, false}, {true, true, false},
                                   {true, true, true},   {true, false, true},
                                   {false, false, true}, {false, true, false}};

std::string Name(const LayerCall& call) {
  return absl::StrCat("training=", call.training, " relu=", call.relu,
                      " residual=", call.residual);
}

absl::Status Near(double got, double want, double bound, const char* what,
                  int64_t c) {
  if (std::abs(got - want) <= bound) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, " of channel ", c, " is ", got,
                                          ", not ", want, " +- ", bound));
}

// Compares with float64, channel by channel. oneDNN adds up in an order of its
// own: a sum of n terms in float32 is off by n u of their sizes at most, which
// the statistics hand on to all that is computed from them; numbers here are at
// most 4, and an activation is rounded to its type once more.
class Check {
 public:
  Check(const LayerStep& before, const LayerStep& after, const LayerCall& call)
      : before_(before), after_(after), call_(call) {}

  absl::Status Run() {
    for (int64_t c = 0; c < before_.x.shape.c; ++c) {
      CheckChannel(c);
      if (!status_.ok()) return status_;
    }
    return status_;
  }

 private:
  void CheckChannel(int64_t c) {
    const std::vector<double> x = before_.x.Channel(c);
    const std::vector<double> dy = before_.dy.Channel(c);
    const std::vector<double> residual = before_.residual.Channel(c);
    const std::vector<double> y = after_.y.Channel(c);
    const std::vector<double> dx = after_.dx.Channel(c);
    const std::vector<double> dresidual = after_.dresidual.Channel(c);
    const double n = static_cast<double>(x.size());
    const double u = 0x1p-24;
    const double rounding = UnitRoundoff(before_.x.array.type());
    const bool batch = call_.training || !before_.options.track_running_stats;
    double mean = 0;
    double m2 = 0;
    for (double value : x) mean += value / n;
    for (double value : x) m2 += (value - mean) * (value - mean);
    CheckRunning(c, n, mean, m2);
    if (!batch) mean = before_.mean.Get(c);
    const double variance = batch ? m2 / n : before_.variance.Get(c);
    const double inverse = 1 / std::sqrt(variance + before_.options.epsilon);
    const double weight = before_.Affine() > 0 ? before_.weight.Get(c) : 1;
    const double bias = before_.Affine() > 0 ? before_.bias.Get(c) : 0;
    const double bound = 4 * (n + 20) * u * inverse * inverse;
    std::vector<double> g = dy;
    double sum = 0;
    double product = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double normal = (x[i] - mean) * inverse * weight + bias;
      double want = normal;
      if (call_.residual) want += residual[i];
      if (call_.relu) want = std::max(0.0, want);
      // Twice with a residual, which is added to what oneDNN has rounded.
      const double rounded =
          1.01 * rounding * (std::abs(want) + std::abs(normal));
      Expect(y[i], want, bound + rounded, "y", c);
      if (call_.relu && y[i] <= 0) g[i] = 0;
      sum += g[i];
      product += g[i] * (x[i] - mean) * inverse;
      if (call_.residual) Expect(dresidual[i], g[i], 0, "dresidual", c);
    }
    const double sum_bound = 4 * n * bound;
    if (before_.Affine() > 0) {
      Expect(after_.dbias.Get(c), sum, sum_bound, "dbias", c);
      Expect(after_.dweight.Get(c), product, sum_bound, "dweight", c);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double normal = (x[i] - mean) * inverse;
      const double away = batch ? sum / n + normal * product / n : 0;
      const double want = weight * inverse * (g[i] - away);
      Expect(dx[i], want,
             8 * inverse * bound + 1.01 * rounding * std::abs(want), "dx", c);
    }
  }

  void CheckRunning(int64_t c, double n, double mean, double m2) {
    const BatchNormOptions& options = before_.options;
    if (!options.track_running_stats) return;
    const double w =
        call_.training ? WeightOfBatch(options, before_.batches + 1) : 0;
    const double variance =
        options.semantics.unbiased_running_variance ? m2 / (n - 1) : m2 / n;
    const double bound = call_.training ? 8 * (n + 20) * 0x1p-24 : 0;
    Expect(after_.mean.Get(c), (1 - w) * before_.mean.Get(c) + w * mean, bound,
           "running mean", c);
    Expect(after_.variance.Get(c),
           (1 - w) * before_.variance.Get(c) + (w > 0 ? w * variance : 0),
           bound, "running variance", c);
    Expect(static_cast<double>(after_.batches), call_.training ? 4 : 3, 0,
           "batches", c);
  }

  void Expect(double got, double want, double bound, const char* what,
              int64_t c) {
    if (status_.ok()) status_ = Near(got, want, bound, what, c);
  }

  const LayerStep& before_;
  const LayerStep& after_;
  const LayerCall call_;
  absl::Status status_;
};

std::unique_ptr<OnednnBatchNorm> Layer(const BatchNormOptions& options) {
  absl::StatusOr<std::unique_ptr<OnednnBatchNorm>> layer =
      OnednnBatchNorm::Create(options);
  EXPECT_THAT(layer, IsOk());
  return *std::move(layer);
}

std::vector<BatchNormOptions> AllOptions(int64_t channels) {
  BatchNormOptions torch = {.channels = channels, .epsilon = 1e-3};
  BatchNormOptions paddle = torch;
  paddle.semantics = kPaddleBatchNorm;
  paddle.momentum = kPaddleBatchNorm.default_momentum;
  BatchNormOptions plain = torch;
  plain.affine = false;
  plain.momentum = std::nullopt;
  BatchNormOptions untracked = torch;
  untracked.track_running_stats = false;
  return {torch, paddle, plain, untracked};
}

// Runs all calls on all shapes; false if the type is not there.
bool CheckAll(DataType type) {
  for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (int64_t c : {1, 3, 65}) {
      for (const BatchNormOptions& options : AllOptions(c)) {
        const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
        for (int64_t hw : {1, 49}) {
          for (const LayerCall& call : kAllCalls) {
            LayerStep before(
                options, {.n = 6, .c = c, .hw = hw, .layout = layout}, type);
            LayerStep after = before;
            const absl::Status status = after.Run(*layer, call);
            if (absl::IsUnimplemented(status)) return false;
            EXPECT_THAT(status, IsOk());
            EXPECT_THAT(Check(before, after, call).Run(), IsOk())
                << Name(layout) << " c=" << c << " hw=" << hw << " "
                << Name(call) << " affine=" << options.affine;
          }
        }
      }
    }
  }
  return true;
}

TEST(OnednnBatchNormTest, IsThatOfTheOwnBatch) {
  EXPECT_TRUE(CheckAll(DataType::kFloat32));
}

// Where oneDNN has it: that it says so otherwise is checked by the same test.
TEST(OnednnBatchNormTest, IsThatOfTheOwnBatchInBFloat16) {
  const bool there = CheckAll(DataType::kBFloat16);
  RecordProperty("bfloat16", there ? "there" : "unimplemented");
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
  const LayerStep before(options, shape, DataType::kFloat32);
  LayerStep want = before;
  ASSERT_THAT(want.Run(*layer, call), IsOk());

  LayerStep over_x = before;
  BatchNorm::Forwards forwards = over_x.ForwardsOf(call);
  forwards.y = over_x.x.array.buffer();
  ASSERT_THAT(layer->Forward(forwards), IsOk());
  EXPECT_TRUE(over_x.x.array.SameBits(want.y.array));

  LayerStep over_residual = before;
  forwards = over_residual.ForwardsOf(call);
  forwards.y = over_residual.residual.array.buffer();
  ASSERT_THAT(layer->Forward(forwards), IsOk());
  EXPECT_TRUE(over_residual.residual.array.SameBits(want.y.array));

  LayerStep over_dy = want;
  BatchNorm::Backwards backwards = over_dy.BackwardsOf(call);
  backwards.dx = over_dy.dy.array.buffer();
  ASSERT_THAT(layer->Backward(backwards, [] {}), IsOk());
  EXPECT_TRUE(over_dy.dy.array.SameBits(want.dx.array));
  EXPECT_TRUE(over_dy.dresidual.array.SameBits(want.dresidual.array));

  LayerStep masked_dy = want;
  backwards = masked_dy.BackwardsOf(call);
  backwards.dresidual = masked_dy.dy.array.buffer();
  ASSERT_THAT(layer->Backward(backwards, [] {}), IsOk());
  EXPECT_TRUE(masked_dy.dx.array.SameBits(want.dx.array));
  EXPECT_TRUE(masked_dy.dy.array.SameBits(want.dresidual.array));
}

TEST(OnednnBatchNormTest, ReluKeepsNan) {
  for (bool training : {true, false}) {
    const BatchNormOptions options = {.channels = 3};
    const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
    LayerStep step(options, {.n = 2, .c = 3, .hw = 16}, DataType::kFloat32);
    const int64_t at = step.x.Index(1, 1, 5);
    step.x.array.Set(at, kNan);
    ASSERT_THAT(
        layer->Forward(step.ForwardsOf({.training = training, .relu = true})),
        IsOk());
    EXPECT_TRUE(std::isnan(step.y.array.Get(at)));
    EXPECT_FALSE(std::isnan(step.y.array.Get(step.x.Index(1, 2, 5))));
  }
}

TEST(OnednnBatchNormTest, AnEmptyBatchChangesNothing) {
  for (bool training : {true, false}) {
    const BatchNormOptions options = {.channels = 3, .epsilon = 0.25};
    const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
    const LayerStep before(options, {.n = 0, .c = 3, .hw = 16},
                           DataType::kFloat32);
    LayerStep after = before;
    ASSERT_THAT(after.Run(*layer, {.training = training}), IsOk());
    EXPECT_TRUE(after.mean.SameBits(before.mean));
    EXPECT_TRUE(after.variance.SameBits(before.variance));
    EXPECT_EQ(after.batches, 3);
    for (int64_t c = 0; c < 3; ++c) {
      EXPECT_EQ(after.dweight.Get(c), 0);
      EXPECT_EQ(after.dbias.Get(c), 0);
      if (training) {
        EXPECT_EQ(after.saved.second(c), 2);
      }
    }
  }
}

TEST(OnednnBatchNormTest, OneValueIsRefusedWhereTheSemanticsSaySo) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    const BatchNormOptions options = {
        .channels = 3, .semantics = semantics, .momentum = 0.5};
    const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
    const LayerStep before(options, {.n = 1, .c = 3, .hw = 1},
                           DataType::kFloat32);
    LayerStep after = before;
    const absl::Status status = after.Run(*layer, {});
    if (semantics.refuses_one_value) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("one value")));
      EXPECT_TRUE(after.mean.SameBits(before.mean));
      EXPECT_EQ(after.batches, 3);
    } else {
      EXPECT_THAT(status, IsOk());
      EXPECT_EQ(after.batches, 4);
      for (int64_t c = 0; c < 3; ++c) {
        EXPECT_EQ(after.y.array.Get(c), after.bias.Get(c));
        EXPECT_EQ(after.dx.array.Get(c), 0);
      }
    }
  }
}

TEST(OnednnBatchNormTest, ReportsWrongArguments) {
  EXPECT_THAT(
      OnednnBatchNorm::Create({.channels = 0}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("channels")));
  const BatchNormOptions options = {.channels = 3};
  const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
  LayerStep step(options, {.n = 2, .c = 3, .hw = 4}, DataType::kFloat32);
  BatchNorm::Forwards forwards = step.ForwardsOf({});
  forwards.x.count -= 1;
  EXPECT_THAT(layer->Forward(forwards),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x has")));
}

// The control: each number off by a little, and each part left out.
TEST(OnednnBatchNormTest, CheckRejectsOtherNumbers) {
  const BatchNormOptions options = {.channels = 3, .epsilon = 1e-3};
  const std::unique_ptr<OnednnBatchNorm> layer = Layer(options);
  const LayerCall call = {.training = true, .relu = true, .residual = true};
  const LayerStep before(options, {.n = 3, .c = 3, .hw = 16},
                         DataType::kFloat32);
  LayerStep right = before;
  ASSERT_THAT(right.Run(*layer, call), IsOk());
  ASSERT_THAT(Check(before, right, call).Run(), IsOk());
  const auto rejects = [&](const LayerStep& wrong, const char* what) {
    EXPECT_THAT(Check(before, wrong, call).Run(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what)));
  };
  for (double off : {0.01, kNan}) {
    LayerStep wrong = right;
    const int64_t at = wrong.x.Index(1, 2, 7);
    wrong.y.array.Set(at, right.y.array.Get(at) + off);
    rejects(wrong, "y of channel 2");
    wrong = right;
    wrong.dx.array.Set(at, right.dx.array.Get(at) + off);
    rejects(wrong, "dx of channel 2");
    wrong = right;
    wrong.dresidual.array.Set(at, right.dresidual.array.Get(at) + off);
    rejects(wrong, "dresidual of channel 2");
    wrong = right;
    wrong.dweight.Set(1, right.dweight.Get(1) + off);
    rejects(wrong, "dweight of channel 1");
    wrong = right;
    wrong.dbias.Set(1, right.dbias.Get(1) + off);
    rejects(wrong, "dbias of channel 1");
    wrong = right;
    wrong.mean.Set(0, right.mean.Get(0) + off);
    rejects(wrong, "running mean of channel 0");
    wrong = right;
    wrong.variance.Set(0, right.variance.Get(0) + off);
    rejects(wrong, "running variance of channel 0");
  }
  LayerStep wrong = right;
  wrong.batches = 3;
  rejects(wrong, "batches");
}

}  // namespace
}  // namespace lockstep
