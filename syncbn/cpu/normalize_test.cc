// Normalising against a loop in float64.
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
#include "syncbn/cpu/loops.h"
#include "syncbn/cpu/test_activations.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What a call reads.
struct Inputs {
  Inputs(const ActivationShape& shape, DataType type)
      : x(shape, type, /*seed=*/1, /*center=*/0.25),
        residual(shape, type, /*seed=*/2, /*center=*/-0.4),
        weight(TestParameters(shape.c, StatisticsTypeOf(type), 3, 0.5, 1.5)),
        bias(TestParameters(shape.c, StatisticsTypeOf(type), 4, -1, 1)),
        saved(shape.c, type) {
    saved.SetCount(7);
    for (int64_t c = 0; c < shape.c; ++c) {
      saved.SetMean(c, 0.25 + static_cast<double>(c % 5) / 7);
      saved.SetSecond(c, 1.7 + static_cast<double>(c % 3) / 5);
    }
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
TestActivations Normalized(const Inputs& inputs, const Options& options,
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
  Scratch scratch;
  EXPECT_THAT(NormalizeBatch(call, unit, scratch), IsOk());
  EXPECT_TRUE(y.array.GuardsAreIntact());
  return in_place == nullptr ? y : *in_place;
}

// Five roundings of what adds up to y, and that to its type; ReLU moves nothing
// apart.
absl::Status CheckNormalized(const Inputs& inputs, const Options& options,
                             const TestActivations& y) {
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
        const double got = y.array.Get(at);
        if (!(std::abs(got - want) <= bound)) {
          return absl::DataLossError(
              absl::StrCat("y of n=", n, " c=", c, " i=", i, " is ", got,
                           ", not ", want, " +- ", bound));
        }
      }
    }
  }
  return absl::OkStatus();
}

TEST(NormalizeTest, IsThatOfEachChannel) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const Inputs inputs(test_case.shape, test_case.type);
    for (const Options& options : kAllOptions) {
      EXPECT_THAT(CheckNormalized(inputs, options, Normalized(inputs, options)),
                  IsOk())
          << Name(test_case) << " " << Name(options);
    }
  }
}

TEST(NormalizeTest, HasTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const Inputs inputs(test_case.shape, test_case.type);
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
    const Inputs inputs(test_case.shape, test_case.type);
    const TestActivations want = Normalized(inputs, options);
    Inputs over_x = inputs;
    EXPECT_TRUE(Normalized(over_x, options, BestVectorUnit(), &over_x.x)
                    .array.SameBits(want.array))
        << Name(test_case);
    Inputs over_residual = inputs;
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
      Inputs inputs({.n = 1, .c = 1, .hw = 19, .layout = layout}, type);
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
  const Inputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  const Options options = {.relu = true, .residual = true, .affine = true};
  const auto is_rejected =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("y of n="));
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

}  // namespace
}  // namespace lockstep
