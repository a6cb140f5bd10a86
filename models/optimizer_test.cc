// Steps of the optimizers against float64, against PyTorch, and bit by bit
// against the order of roundings that the header states.
#include "models/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kCount = 64;
constexpr int kSteps = 20;
constexpr double kUnit = 0x1p-24;  // The rounding of float32.

struct Case {
  const char* name;
  OptimizerOptions options;
  float rate;
};

void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

const std::vector<Case>& Cases() {
  static const auto& cases = *new std::vector<Case>{
      {"Plain", {}, 0.1f},
      {"Decay", {.weight_decay = 0.01}, 0.1f},
      {"Momentum", {.momentum = 0.9}, 0.1f},
      {"MomentumDecay", {.momentum = 0.9, .weight_decay = 0.01}, 0.1f},
      {"AdamW", {.kind = OptimizerKind::kAdamW}, 0.01f},
      {"AdamWDecay",
       {.kind = OptimizerKind::kAdamW, .weight_decay = 0.1},
       0.01f},
      {"AdamWOthers",
       {.kind = OptimizerKind::kAdamW,
        .weight_decay = 0.3,
        .beta1 = 0.5,
        .beta2 = 0.75,
        .epsilon = 1e-3},
       0.05f}};
  return cases;
}

// Returns made-up values in [-1, 1), the same on every machine.
std::vector<float> Numbers(size_t count, uint32_t seed) {
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int32_t>(seed) >> 8) * 0x1p-23f;
  }
  return numbers;
}

// The gradients of a step. Those of different elements have different sizes.
std::vector<float> Gradients(int step, size_t count = kCount) {
  std::vector<float> gradients = Numbers(count, 100 + step);
  for (size_t i = 0; i < count; ++i) {
    gradients[i] *= std::exp2(static_cast<float>(i % 13) - 9);
  }
  return gradients;
}

// Takes kSteps steps from Numbers(count, 1), in ranges of `part` elements, the
// last range first.
std::pair<std::vector<float>, OptimizerState> TakeSteps(const Case& which,
                                                        size_t part = kCount,
                                                        size_t count = kCount) {
  std::vector<float> values = Numbers(count, 1);
  Optimizer optimizer(which.options, static_cast<int64_t>(count));
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradients = Gradients(step, count);
    optimizer.BeginStep(which.rate);
    for (size_t end = count; end > 0; end -= std::min(end, part)) {
      const size_t begin = end - std::min(end, part);
      optimizer.Update(static_cast<int64_t>(begin),
                       std::span(values).subspan(begin, end - begin),
                       std::span(gradients).subspan(begin, end - begin));
    }
  }
  return {values, optimizer.state()};
}

// A number in float64, and how far float32 may be from it. Operations add the
// rounding of their operands and of one float32 result, to first order.
struct Bounded {
  double value = 0;
  double error = 0;

  Bounded Rounded() const { return {value, error + kUnit * std::abs(value)}; }
};

// A number of the options, rounded to float32.
Bounded Constant(double value) { return Bounded{value}.Rounded(); }

Bounded operator*(const Bounded& a, const Bounded& b) {
  return Bounded{a.value * b.value,
                 std::abs(a.value) * b.error + std::abs(b.value) * a.error}
      .Rounded();
}
Bounded operator+(const Bounded& a, const Bounded& b) {
  return Bounded{a.value + b.value, a.error + b.error}.Rounded();
}
Bounded operator-(const Bounded& a, const Bounded& b) {
  return Bounded{a.value - b.value, a.error + b.error}.Rounded();
}
Bounded operator/(const Bounded& a, const Bounded& b) {
  const double quotient = a.value / b.value;
  return Bounded{quotient,
                 (a.error + std::abs(quotient) * b.error) / std::abs(b.value)}
      .Rounded();
}
Bounded Root(const Bounded& a) {
  const double root = std::sqrt(a.value);
  return Bounded{root, root > 0 ? a.error / (2 * root) : 0}.Rounded();
}

// One element, by PyTorch's formulas as its documentation states them.
Bounded Reference(const Case& which, size_t element) {
  const OptimizerOptions& options = which.options;
  const double rate = which.rate;
  Bounded value = {Numbers(kCount, 1)[element]}, first, second;
  for (int step = 1; step <= kSteps; ++step) {
    const Bounded gradient = {Gradients(step - 1)[element]};
    if (options.kind == OptimizerKind::kSgd) {
      const Bounded decayed = gradient + Constant(options.weight_decay) * value;
      first = Constant(options.momentum) * first + decayed;
      value = value - Constant(rate) * first;
      continue;
    }
    value = Constant(1 - rate * options.weight_decay) * value;
    first = Constant(options.beta1) * first +
            Constant(1 - options.beta1) * gradient;
    second = Constant(options.beta2) * second +
             Constant(1 - options.beta2) * gradient * gradient;
    const Bounded corrected =
        Root(second) / Constant(std::sqrt(1 - std::pow(options.beta2, step)));
    const Bounded size = Constant(rate / (1 - std::pow(options.beta1, step)));
    value = value - size * first / (corrected + Constant(options.epsilon));
  }
  // Products of two errors are below a hundredth of the errors.
  value.error *= 1.01;
  return value;
}

class OptimizerTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, OptimizerTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(OptimizerTest, IsAsCloseToFloat64AsRoundingAllows) {
  const std::vector<float> values = TakeSteps(GetParam()).first;
  const std::vector<float> start = Numbers(kCount, 1);
  for (size_t i = 0; i < kCount; ++i) {
    const Bounded want = Reference(GetParam(), i);
    EXPECT_TRUE(std::abs(values[i] - want.value) <= want.error)
        << values[i] << " instead of " << want.value << " +- " << want.error;
    // The bound would show a change of a hundredth of the way.
    EXPECT_LT(want.error, 0.01 * std::abs(want.value - start[i])) << i;
  }
}

void WriteNumbers(const std::string& path, std::span<const float> numbers) {
  std::ofstream file(path, std::ios::app);
  for (const double number : numbers) {
    file.write(reinterpret_cast<const char*>(&number), sizeof(number));
  }
}

// Returns the folder with the values that PyTorch gives; "" without PyTorch.
std::string RunPyTorch() {
  const std::string folder = testing::TempDir() + "/optimizers";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream cases(folder + "/cases");
  for (const auto& [name, options, rate] : Cases()) {
    cases << absl::StrFormat("%s %s %.17g %.17g %.17g %.17g %.17g %.17g\n",
                             name, Name(options.kind), rate, options.momentum,
                             options.weight_decay, options.beta1, options.beta2,
                             options.epsilon);
  }
  cases.close();
  WriteNumbers(folder + "/values", Numbers(kCount, 1));
  for (int step = 0; step < kSteps; ++step) {
    WriteNumbers(folder + "/gradients", Gradients(step));
  }
  const std::string output = RunPythonTest(
      "torch, numpy", "-B models/testdata/torch_optimizers.py " + folder,
      /*deadline_seconds=*/120);
  return output.empty() ? "" : folder;
}

// PyTorch computes in float64; its own rounding is negligible.
TEST(TorchOptimizerTest, TakesTheSameSteps) {
  const std::string folder = RunPyTorch();
  if (testing::Test::IsSkipped() || testing::Test::HasFailure()) return;
  for (const Case& which : Cases()) {
    const std::vector<float> values = TakeSteps(which).first;
    std::vector<double> theirs(kCount);
    std::ifstream(folder + "/" + which.name)
        .read(reinterpret_cast<char*>(theirs.data()), kCount * sizeof(double));
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_TRUE(std::abs(values[i] - theirs[i]) <= Reference(which, i).error)
          << which.name << " " << i << ": " << values[i] << " and "
          << theirs[i];
    }
  }
}

// Products and sums go through memory, so that no compiler can fuse them.
float Product(float a, float b) {
  volatile float product = a * b;
  return product;
}
float Sum(float a, float b) {
  volatile float sum = a + b;
  return sum;
}

// The order of roundings of the header, for one element.
void StepByTheHeader(const OptimizerOptions& options, const StepFactors& f,
                     float gradient, float& value, float* first,
                     float* second) {
  if (options.kind == OptimizerKind::kSgd) {
    if (options.weight_decay > 0) {
      gradient = Sum(gradient, Product(f.weight_decay, value));
    }
    if (options.momentum > 0) {
      *first = gradient = Sum(Product(f.momentum, *first), gradient);
    }
    value = Sum(value, -Product(f.rate, gradient));
    return;
  }
  *first = Sum(Product(f.beta1, *first), Product(f.rest1, gradient));
  *second = Sum(Product(f.beta2, *second),
                Product(Product(f.rest2, gradient), gradient));
  const float scale = Sum(std::sqrt(*second) / f.root, f.epsilon);
  value = Sum(Product(f.keep, value), -(Product(f.step_size, *first) / scale));
}

// The sizes include every vector width that a compiler may choose.
TEST_P(OptimizerTest, RoundsInTheHeadersOrder) {
  for (size_t count = 0; count <= 70; ++count) {
    std::vector<float> want = Numbers(count, 1);
    std::vector<float> first(count), second(count);
    for (int step = 0; step < kSteps; ++step) {
      const StepFactors factors =
          FactorsOf(GetParam().options, GetParam().rate, step + 1);
      const std::vector<float> gradients = Gradients(step, count);
      for (size_t i = 0; i < count; ++i) {
        StepByTheHeader(GetParam().options, factors, gradients[i], want[i],
                        &first[i], &second[i]);
      }
    }
    const auto [values, state] = TakeSteps(GetParam(), count, count);
    EXPECT_EQ(values, want) << count;
    const auto arrays = std::ssize(StateNames(GetParam().options));
    const std::vector<std::vector<float>> both = {first, second};
    EXPECT_EQ(state.arrays, std::vector(both.begin(), both.begin() + arrays));
    EXPECT_EQ(state.steps, arrays > 0 ? kSteps : 0);
  }
}

TEST_P(OptimizerTest, HasTheSameBitsInRangesOfAnySize) {
  const auto whole = TakeSteps(GetParam());
  for (const size_t part : {1, 7, 63})
    EXPECT_EQ(TakeSteps(GetParam(), part), whole);
}

TEST_P(OptimizerTest, GoesOnFromItsState) {
  Optimizer whole(GetParam().options, kCount), part = whole, rest = whole;
  std::vector<float> values = Numbers(kCount, 1), others = values;
  for (int step = 0; step < kSteps; ++step) {
    Optimizer& other = step < kSteps / 2 ? part : rest;
    if (step == kSteps / 2) {
      EXPECT_THAT(rest.SetState(part.state()), IsOk());
    }
    whole.BeginStep(GetParam().rate);
    whole.Update(0, values, Gradients(step));
    other.BeginStep(GetParam().rate);
    other.Update(0, others, Gradients(step));
  }
  EXPECT_EQ(others, values);
  EXPECT_EQ(rest.state(), whole.state());
}

TEST(OptimizerStateTest, RefusesAStateOfAnotherOptimizerOrModel) {
  Optimizer optimizer({.momentum = 0.9}, 3);
  const OptimizerState good = {.steps = 2, .arrays = {{1, 2, 3}}};
  ASSERT_THAT(optimizer.SetState(good), IsOk());
  const std::vector<OptimizerState> bad = {
      {},
      {.steps = -1, .arrays = {{1, 2, 3}}},
      {.steps = 1, .arrays = {{1, 2}}},
      {.steps = 1, .arrays = {{1, 2, 3}, {1, 2, 3}}}};
  for (const OptimizerState& state : bad) {
    EXPECT_THAT(optimizer.SetState(state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("must have 1 of 3 elements")));
    EXPECT_EQ(optimizer.state(), good);
  }
}

TEST(CheckOptimizerTest, NamesTheOption) {
  for (const Case& which : Cases()) {
    EXPECT_THAT(CheckOptimizer(which.options), IsOk()) << which.name;
  }
  const double nan = std::nan(""), infinity = HUGE_VAL;
  constexpr auto kAdamW = OptimizerKind::kAdamW;
  const std::vector<std::pair<OptimizerOptions, std::string>> cases = {
      {{.momentum = -0.5}, "momentum=-0.5: must be at least 0 and finite"},
      {{.momentum = nan}, "momentum=nan: must be"},
      {{.weight_decay = -1}, "weight_decay=-1: must be"},
      {{.weight_decay = infinity}, "weight_decay=inf: must be"},
      {{.kind = kAdamW, .beta1 = -1}, "adam_beta1=-1: must be"},
      {{.kind = kAdamW, .beta1 = 1}, "adam_beta1=1: must be below 1"},
      {{.kind = kAdamW, .beta2 = 1.5}, "adam_beta2=1.5: must be below 1"},
      {{.kind = kAdamW, .beta2 = nan}, "adam_beta2=nan: must be"},
      {{.kind = kAdamW, .epsilon = -1e-8}, "adam_epsilon=-1e-08: must be"},
      {{.kind = kAdamW, .epsilon = 1e300}, "adam_epsilon=1e+300: must be"},
      {{.kind = kAdamW, .momentum = 0.9},
       "momentum=0.9: is an option of sgd alone"},
      {{.beta1 = 0.5}, "adam_beta1=0.5: is an option of adamw alone"},
      {{.beta2 = 0.5}, "adam_beta2=0.5: is an option of adamw alone"},
      {{.epsilon = 0.5}, "adam_epsilon=0.5: is an option of adamw alone"}};
  for (const auto& [options, message] : cases) {
    EXPECT_THAT(CheckOptimizer(options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(message), Not(HasSubstr("\n")))));
  }
}

// Powers at counts of steps that tests do not reach by stepping.
TEST(FactorsOfTest, CorrectsTheBiasInFloat64) {
  const OptimizerOptions options = {.kind = OptimizerKind::kAdamW};
  for (const int64_t step : {1, 2, 3, 10, 1000, 12345, 1'000'000}) {
    const StepFactors factors = FactorsOf(options, 0.5f, step);
    // The same, by logarithms.
    const double size = 0.5 / -std::expm1(step * std::log(0.9));
    const double root = std::sqrt(-std::expm1(step * std::log(0.999)));
    EXPECT_NEAR(factors.step_size, size, kUnit * size * 1.01) << step;
    EXPECT_NEAR(factors.root, root, kUnit * root * 1.01) << step;
  }
  EXPECT_EQ(FactorsOf(options, 0.5f, 1).step_size,
            static_cast<float>(0.5 / (1 - 0.9)));
}

// The sizes include every vector width that a compiler may choose.
TEST(SgdUpdateTest, RoundsTheProductAndThenTheDifference) {
  for (size_t n = 0; n <= 70; ++n) {
    std::vector<float> values(n), gradients(n), want(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = 1.0f / static_cast<float>(i + 3);
      gradients[i] = 1.0f / static_cast<float>(2 * i + 7);
      // The product goes through memory, so that no compiler can fuse the two
      // operations.
      volatile float product = 0.3f * gradients[i];
      want[i] = values[i] - product;
    }
    SgdUpdate(values, gradients, 0.3f);
    EXPECT_EQ(values, want) << "n = " << n;
  }
}

// The control: on these inputs a fused update gives other bits. NaN stays NaN.
TEST(SgdUpdateTest, DiffersFromAFusedUpdate) {
  const float e = std::numeric_limits<float>::epsilon();
  std::vector<float> values = {1.0f + 2 * e, 1.0f};
  const std::vector<float> gradients = {1.0f + e, std::nanf("")};
  SgdUpdate(values, gradients, 1.0f + e);
  EXPECT_TRUE(std::isnan(values[1]));
  // (1 + e)^2 rounds to 1 + 2e, which loses e^2.
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(std::fma(-(1.0f + e), 1.0f + e, 1.0f + 2 * e), -e * e);
}

}  // namespace
}  // namespace lockstep
