// Normalising and the gradient of the input against loops in float64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

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

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

absl::Status CheckOne(double got, double want, double bound, const char* what,
                      int64_t i) {
  if (std::abs(got - want) <= bound) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(what, " ", i, " is ", got, ", not ", want, " +- ", bound));
}

// What a call reads.
struct ForwardInputs {
  ForwardInputs(const ActivationShape& shape, DataType type)
      : x(shape, type, /*seed=*/1, /*center=*/0.25),
        residual(shape, type, /*seed=*/2, /*center=*/-0.4),
        weight(TestParameters(shape.c, StatisticsTypeOf(type), 3, 0.5, 1.5)),
        bias(TestParameters(shape.c, StatisticsTypeOf(type), 4, -1, 1)),
        saved(shape.c, type) {
    FillRecord(7, saved);
  }

  TestActivations x;
  TestActivations residual;
  GuardedArray weight;
  GuardedArray bias;
  TestRecord saved;
};

struct Options {
  bool relu = false;
  bool residual = false;
  bool affine = true;
};

constexpr Options kAllOptions[] = {{false, false, true}, {true, false, true},
                                   {false, true, true},  {true, true, true},
                                   {true, true, false},  {false, false, false}};

std::string Name(const Options& options) {
  return absl::StrCat("relu=", options.relu, " residual=", options.residual,
                      " affine=", options.affine);
}

// Runs with y in memory of its own, unless `y` is given.
TestActivations Normalized(const ForwardInputs& inputs, const Options& options,
                           VectorUnit unit = BestVectorUnit(),
                           TestActivations* in_place = nullptr) {
  TestActivations y(inputs.x.shape, inputs.x.array.type());
  BatchNormKernels::NormalizeCall call;
  call.shape = inputs.x.shape;
  call.relu = options.relu;
  call.x = inputs.x.array.buffer();
  call.saved = inputs.saved.data();
  call.y = y.array.buffer();
  if (options.residual) call.residual = inputs.residual.array.buffer();
  if (options.affine) {
    call.weight = inputs.weight.buffer();
    call.bias = inputs.bias.buffer();
  }
  if (in_place != nullptr) call.y = in_place->array.buffer();
  EXPECT_THAT(CpuBatchNormKernels(unit).Normalize(call), IsOk());
  EXPECT_TRUE(y.array.GuardsAreIntact());
  return in_place == nullptr ? y : *in_place;
}

// Five roundings of what adds up to y, and that to its type; ReLU moves nothing
// apart.
absl::Status CheckNormalized(const ForwardInputs& inputs,
                             const Options& options, const TestActivations& y) {
  const ActivationShape& shape = inputs.x.shape;
  const DataType type = inputs.x.array.type();
  const double u = UnitRoundoff(StatisticsTypeOf(type));
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t c = 0; c < shape.c; ++c) {
      const double mean = inputs.saved.mean(c);
      const double scale =
          inputs.saved.second(c) * (options.affine ? inputs.weight.Get(c) : 1);
      const double bias = options.affine ? inputs.bias.Get(c) : 0;
      for (int64_t i = 0; i < shape.hw; ++i) {
        const int64_t at = inputs.x.Index(n, c, i);
        const double normal = (inputs.x.array.Get(at) - mean) * scale;
        const double residual =
            options.residual ? inputs.residual.array.Get(at) : 0;
        double want = normal + bias + residual;
        if (options.relu && want <= 0) want = 0;
        const double bound =
            7 * u * (std::abs(normal) + std::abs(bias) + std::abs(residual)) +
            1.01 * UnitRoundoff(type) * std::abs(want) + SmallestNumber(type);
        const absl::Status status =
            CheckOne(y.array.Get(at), want, bound, "y", at);
        if (!status.ok()) return status;
      }
    }
  }
  return absl::OkStatus();
}

TEST(NormalizeTest, IsThatOfEachChannel) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const ForwardInputs inputs(test_case.shape, test_case.type);
    for (const Options& options : kAllOptions) {
      EXPECT_THAT(CheckNormalized(inputs, options, Normalized(inputs, options)),
                  IsOk())
          << Name(test_case) << " " << Name(options);
    }
  }
}

TEST(NormalizeTest, HasTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const ForwardInputs inputs(test_case.shape, test_case.type);
    for (const Options& options : {kAllOptions[0], kAllOptions[3]}) {
      EXPECT_TRUE(Normalized(inputs, options, VectorUnit::kBaseline)
                      .array.SameBits(Normalized(inputs, options).array))
          << Name(test_case) << " " << Name(options);
    }
  }
}

TEST(NormalizeTest, WorksInPlace) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const Options options = {.relu = true, .residual = true, .affine = true};
    const ForwardInputs inputs(test_case.shape, test_case.type);
    const TestActivations want = Normalized(inputs, options);
    ForwardInputs over_x = inputs;
    EXPECT_TRUE(Normalized(over_x, options, BestVectorUnit(), &over_x.x)
                    .array.SameBits(want.array))
        << Name(test_case);
    ForwardInputs over_residual = inputs;
    EXPECT_TRUE(Normalized(over_residual, options, BestVectorUnit(),
                           &over_residual.residual)
                    .array.SameBits(want.array))
        << Name(test_case);
  }
}

TEST(NormalizeTest, ReluKeepsNanAndClearsTheRest) {
  for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (DataType type : {DataType::kFloat32, DataType::kFloat16,
                          DataType::kBFloat16, DataType::kFloat64}) {
      ForwardInputs inputs({.n = 1, .c = 1, .hw = 19, .layout = layout}, type);
      inputs.saved.SetMean(0, 0);
      inputs.saved.SetSecond(0, 1);
      for (int64_t i = 0; i < 19; ++i) inputs.x.array.Set(i, i - 9.0);
      inputs.x.array.Set(3, kNan);
      inputs.x.array.Set(18, kNan);
      const TestActivations y = Normalized(
          inputs, {.relu = true, .residual = false, .affine = false});
      for (int64_t i = 0; i < 19; ++i) {
        if (i == 3 || i == 18) {
          EXPECT_TRUE(std::isnan(y.array.Get(i)));
        } else {
          EXPECT_EQ(y.array.Get(i), std::max(0.0, i - 9.0));
        }
      }
    }
  }
}

TEST(NormalizeTest, CheckRejectsOtherOutputs) {
  const ForwardInputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  const Options options = {.relu = true, .residual = true, .affine = true};
  const auto is_rejected =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("y "));
  for (const Options& other : kAllOptions) {
    const bool same = other.relu && other.residual && other.affine;
    if (same) continue;
    EXPECT_THAT(CheckNormalized(inputs, options, Normalized(inputs, other)),
                is_rejected)
        << Name(other);
  }
  TestActivations y = Normalized(inputs, options);
  const int64_t at = inputs.x.Index(1, 2, 3);
  y.array.Set(at, y.array.Get(at) + 4e-6);
  EXPECT_THAT(CheckNormalized(inputs, options, y), is_rejected);
  y.array.Set(at, kNan);
  EXPECT_THAT(CheckNormalized(inputs, options, y), is_rejected);
}

struct Outputs {
  explicit Outputs(const BackwardInputs& inputs)
      : dx(inputs.x.shape, inputs.x.array.type()), dresidual(dx) {}
  TestActivations dx;
  TestActivations dresidual;
};

Outputs InputGradients(const BackwardInputs& inputs, bool relu,
                       bool affine = true, VectorUnit unit = BestVectorUnit()) {
  Outputs outputs(inputs);
  EXPECT_THAT(CpuBatchNormKernels(unit).BackwardInput(
                  inputs.Call(relu, affine), inputs.sums.buffer(),
                  outputs.dx.array.buffer(), outputs.dresidual.array.buffer()),
              IsOk());
  EXPECT_TRUE(outputs.dx.array.GuardsAreIntact() &&
              outputs.dresidual.array.GuardsAreIntact());
  return outputs;
}

// Eight roundings of what adds up to dx, and that to its type.
absl::Status CheckInputGradients(const BackwardInputs& inputs, bool relu,
                                 bool affine, const Outputs& outputs) {
  const ActivationShape& shape = inputs.x.shape;
  const DataType type = inputs.x.array.type();
  const double u = UnitRoundoff(StatisticsTypeOf(type));
  const double count = static_cast<double>(inputs.saved.count());
  for (int64_t at = 0; at < inputs.x.array.size(); ++at) {
    const int64_t c =
        shape.layout == Layout::kNhwc ? at % shape.c : at / shape.hw % shape.c;
    const double inverse = inputs.saved.second(c);
    const double a = inverse * (affine ? inputs.weight.Get(c) : 1);
    const double g = inputs.g(relu, at);
    double b = 0;
    double normal = 0;
    if (count > 0) {
      b = inputs.sums.Get(c) / count;
      normal = (inputs.x.array.Get(at) - inputs.saved.mean(c)) * inverse *
               inputs.sums.Get(shape.c + c) / count;
    }
    const double want = a * (g - b - normal);
    const double bound =
        9 * u * std::abs(a) * (std::abs(g) + std::abs(b) + std::abs(normal)) +
        1.01 * UnitRoundoff(type) * std::abs(want) + SmallestNumber(type);
    absl::Status status =
        CheckOne(outputs.dx.array.Get(at), want, bound, "dx", at);
    status.Update(
        CheckOne(outputs.dresidual.array.Get(at), g, 0, "dresidual", at));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST(BackwardInputTest, IsThatOfEachChannel) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const BackwardInputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      for (bool affine : {false, true}) {
        EXPECT_THAT(CheckInputGradients(inputs, relu, affine,
                                        InputGradients(inputs, relu, affine)),
                    IsOk())
            << Name(test_case) << " relu=" << relu << " affine=" << affine;
      }
    }
  }
}

TEST(BackwardInputTest, TakesConstantStatistics) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    BackwardInputs inputs(test_case.shape, test_case.type);
    inputs.saved.SetCount(0);
    // What is not used may be anything.
    for (int64_t i = 0; i < inputs.x.array.size(); ++i) {
      inputs.x.array.Set(i, kNan);
    }
    for (bool relu : {false, true}) {
      EXPECT_THAT(
          CheckInputGradients(inputs, relu, true, InputGradients(inputs, relu)),
          IsOk())
          << Name(test_case) << " relu=" << relu;
    }
  }
}

TEST(BackwardInputTest, HasTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const BackwardInputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      EXPECT_TRUE(InputGradients(inputs, relu, true, VectorUnit::kBaseline)
                      .dx.array.SameBits(InputGradients(inputs, relu).dx.array))
          << Name(test_case) << " relu=" << relu;
    }
  }
}

// dx over dy, and dresidual over dy, and without dresidual.
TEST(BackwardInputTest, WorksInPlace) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const BackwardInputs inputs(test_case.shape, test_case.type);
    const Outputs want = InputGradients(inputs, true);
    CpuBatchNormKernels kernels;
    BackwardInputs over_dx = inputs;
    ASSERT_THAT(kernels.BackwardInput(over_dx.Call(true), inputs.sums.buffer(),
                                      over_dx.dy.array.buffer(), Buffer()),
                IsOk());
    EXPECT_TRUE(over_dx.dy.array.SameBits(want.dx.array)) << Name(test_case);
    BackwardInputs over_dresidual = inputs;
    Outputs outputs(inputs);
    ASSERT_THAT(
        kernels.BackwardInput(over_dresidual.Call(true), inputs.sums.buffer(),
                              outputs.dx.array.buffer(),
                              over_dresidual.dy.array.buffer()),
        IsOk());
    EXPECT_TRUE(outputs.dx.array.SameBits(want.dx.array)) << Name(test_case);
    EXPECT_TRUE(over_dresidual.dy.array.SameBits(want.dresidual.array))
        << Name(test_case);
  }
}

TEST(BackwardInputTest, CheckRejectsOtherGradients) {
  const BackwardInputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  const auto is_rejected =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("dx"));
  const Outputs right = InputGradients(inputs, true);
  EXPECT_THAT(CheckInputGradients(inputs, false, true, right), is_rejected);
  EXPECT_THAT(CheckInputGradients(inputs, true, false, right), is_rejected);
  BackwardInputs constant = inputs;
  constant.saved.SetCount(0);
  EXPECT_THAT(CheckInputGradients(constant, true, true, right), is_rejected);
  for (double wrong : {1e-4, kNan}) {
    Outputs outputs = right;
    outputs.dx.array.Set(20, outputs.dx.array.Get(20) + wrong);
    EXPECT_THAT(CheckInputGradients(inputs, true, true, outputs), is_rejected);
  }
  Outputs outputs = right;
  outputs.dresidual.array.Set(20, 1e-4);
  EXPECT_THAT(CheckInputGradients(inputs, true, true, outputs),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("dresidual")));
}

}  // namespace
}  // namespace lockstep
