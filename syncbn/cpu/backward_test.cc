// The backward operations against loops in float64.
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
#include "syncbn/cpu/loops.h"
#include "syncbn/cpu/test_activations.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What a call reads. A third of y is negative, some of it zero, and one is NaN.
struct Inputs {
  Inputs(const ActivationShape& shape, DataType type)
      : x(shape, type, /*seed=*/1, /*center=*/0.25),
        y(shape, type, /*seed=*/2, /*center=*/0),
        dy(shape, type, /*seed=*/3, /*center=*/0.1),
        weight(TestParameters(shape.c, StatisticsTypeOf(type), 4, 0.5, 1.5)),
        sums(TestParameters(2 * shape.c, StatisticsTypeOf(type), 5, -3, 3)),
        saved(shape.c, type) {
    for (int64_t i = 0; i < y.array.size(); i += 3) y.array.Set(i, 0);
    if (y.array.size() > 0) y.array.Set(y.array.size() / 2, kNan);
    saved.SetCount(shape.values_per_channel() + 3);
    for (int64_t c = 0; c < shape.c; ++c) {
      saved.SetMean(c, 0.25 + static_cast<double>(c % 5) / 7);
      saved.SetSecond(c, 1.7 + static_cast<double>(c % 3) / 5);
    }
  }

  BatchNormKernels::BackwardCall Call(bool relu, bool affine = true) const {
    BatchNormKernels::BackwardCall call;
    call.shape = x.shape;
    call.relu = relu;
    call.x = x.array.buffer();
    call.dy = dy.array.buffer();
    call.saved = saved.data();
    if (relu) call.y = y.array.buffer();
    if (affine) call.weight = weight.buffer();
    return call;
  }
  double g(bool relu, int64_t at) const {
    return relu && y.array.Get(at) <= 0 ? 0 : dy.array.Get(at);
  }

  TestActivations x;
  TestActivations y;
  TestActivations dy;
  GuardedArray weight;
  GuardedArray sums;
  TestRecord saved;
};

GuardedArray SumsOf(const Inputs& inputs, bool relu,
                    VectorUnit unit = BestVectorUnit()) {
  const int64_t c = inputs.x.shape.c;
  const DataType type = inputs.weight.type();
  GuardedArray sums(2 * c, type);
  GuardedArray dweight(c, type);
  GuardedArray dbias(c, type);
  Scratch scratch;
  EXPECT_THAT(ReduceBackward(inputs.Call(relu), sums.buffer(), dweight.buffer(),
                             dbias.buffer(), unit, scratch),
              IsOk());
  EXPECT_TRUE(sums.GuardsAreIntact() && dweight.GuardsAreIntact() &&
              dbias.GuardsAreIntact());
  for (int64_t j = 0; j < c; ++j) {
    EXPECT_EQ(dbias.Get(j), sums.Get(j));
    EXPECT_EQ(dweight.Get(j), sums.Get(c + j));
  }
  return sums;
}

absl::Status CheckOne(double got, double want, double bound, const char* what,
                      int64_t i) {
  if (std::abs(got - want) <= bound) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(what, " ", i, " is ", got, ", not ", want, " +- ", bound));
}

// The header's bound, and in float64 what merging rounds.
absl::Status CheckSums(const Inputs& inputs, bool relu,
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

struct Outputs {
  explicit Outputs(const Inputs& inputs)
      : dx(inputs.x.shape, inputs.x.array.type()), dresidual(dx) {}
  TestActivations dx;
  TestActivations dresidual;
};

Outputs InputGradients(const Inputs& inputs, bool relu, bool affine = true,
                       VectorUnit unit = BestVectorUnit()) {
  Outputs outputs(inputs);
  Scratch scratch;
  EXPECT_THAT(BackwardToInput(inputs.Call(relu, affine), inputs.sums.buffer(),
                              outputs.dx.array.buffer(),
                              outputs.dresidual.array.buffer(), unit, scratch),
              IsOk());
  EXPECT_TRUE(outputs.dx.array.GuardsAreIntact() &&
              outputs.dresidual.array.GuardsAreIntact());
  return outputs;
}

// Eight roundings of what adds up to dx, and that to its type.
absl::Status CheckInputGradients(const Inputs& inputs, bool relu, bool affine,
                                 const Outputs& outputs) {
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

TEST(BackwardReduceTest, SumsEachChannel) {
  std::vector<ActivationCase> cases = AllActivationCases();
  for (const ActivationCase& large : LargeActivationCases()) {
    cases.push_back(large);
  }
  for (const ActivationCase& test_case : cases) {
    const Inputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      EXPECT_THAT(CheckSums(inputs, relu, SumsOf(inputs, relu)), IsOk())
          << Name(test_case) << " relu=" << relu;
    }
  }
}

TEST(BackwardReduceTest, HasTheBitsOfTheBaseline) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const Inputs inputs(test_case.shape, test_case.type);
    for (bool relu : {false, true}) {
      EXPECT_TRUE(SumsOf(inputs, relu, VectorUnit::kBaseline)
                      .SameBits(SumsOf(inputs, relu)))
          << Name(test_case) << " relu=" << relu;
    }
  }
}

TEST(BackwardReduceTest, LeavesOutWhatIsNotWanted) {
  const Inputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  GuardedArray sums(6, DataType::kFloat32);
  Scratch scratch;
  EXPECT_THAT(ReduceBackward(inputs.Call(false), sums.buffer(), Buffer(),
                             Buffer(), BestVectorUnit(), scratch),
              IsOk());
  EXPECT_TRUE(sums.SameBits(SumsOf(inputs, false)));
}

TEST(BackwardReduceTest, CheckRejectsOtherSums) {
  const Inputs inputs({.n = 4, .c = 3, .hw = 49}, DataType::kFloat32);
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

TEST(BackwardInputTest, IsThatOfEachChannel) {
  for (const ActivationCase& test_case : AllActivationCases()) {
    const Inputs inputs(test_case.shape, test_case.type);
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
    Inputs inputs(test_case.shape, test_case.type);
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
    const Inputs inputs(test_case.shape, test_case.type);
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
    const Inputs inputs(test_case.shape, test_case.type);
    const Outputs want = InputGradients(inputs, true);
    Scratch scratch;
    Inputs over_dx = inputs;
    ASSERT_THAT(BackwardToInput(over_dx.Call(true), inputs.sums.buffer(),
                                over_dx.dy.array.buffer(), Buffer(),
                                BestVectorUnit(), scratch),
                IsOk());
    EXPECT_TRUE(over_dx.dy.array.SameBits(want.dx.array)) << Name(test_case);
    Inputs over_dresidual = inputs;
    Outputs outputs(inputs);
    ASSERT_THAT(BackwardToInput(over_dresidual.Call(true), inputs.sums.buffer(),
                                outputs.dx.array.buffer(),
                                over_dresidual.dy.array.buffer(),
                                BestVectorUnit(), scratch),
                IsOk());
    EXPECT_TRUE(outputs.dx.array.SameBits(want.dx.array)) << Name(test_case);
    EXPECT_TRUE(over_dresidual.dy.array.SameBits(want.dresidual.array))
        << Name(test_case);
  }
}

TEST(BackwardInputTest, CheckRejectsOtherGradients) {
  const Inputs inputs({.n = 2, .c = 3, .hw = 5}, DataType::kFloat32);
  const auto is_rejected =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("dx"));
  const Outputs right = InputGradients(inputs, true);
  EXPECT_THAT(CheckInputGradients(inputs, false, true, right), is_rejected);
  EXPECT_THAT(CheckInputGradients(inputs, true, false, right), is_rejected);
  Inputs constant = inputs;
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
