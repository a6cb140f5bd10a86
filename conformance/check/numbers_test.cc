// Bytes become numbers, and numbers are ordered and compared.
#include "conformance/check/numbers.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "collectives/data_type.h"
#include "conformance/check/case_files.h"
#include "conformance/check/check_case.h"
#include "conformance/protocol/rank_output.h"
#include "gtest/gtest.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

template <typename T>
NamedTensor Tensor(DataType type, const std::vector<T>& values) {
  NamedTensor tensor{.type = type, .shape = {}, .data = {}};
  tensor.data.resize(values.size() * sizeof(T));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

TEST(NumbersTest, ReadsEveryType) {
  const Values want = {1, -2, 0};
  EXPECT_EQ(ToValues(Tensor<double>(DataType::kFloat64, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<float>(DataType::kFloat32, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<uint16_t>(DataType::kFloat16, {0x3c00, 0xc000, 0})),
            want);
  EXPECT_EQ(
      ToValues(Tensor<uint16_t>(DataType::kBFloat16, {0x3f80, 0xc000, 0})),
      want);
  EXPECT_EQ(ToValues(Tensor<int32_t>(DataType::kInt32, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<int64_t>(DataType::kInt64, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<uint8_t>(DataType::kUInt8, {7})), Values{7});
}

TEST(NumbersTest, ReadsOddHalves) {
  const Values values = ToValues(Tensor<uint16_t>(
      DataType::kFloat16, {1, 0x7c00, 0xfc00, 0x7e00, 0x7bff}));
  EXPECT_EQ(values[0], 0x1p-24);
  EXPECT_EQ(values[1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(values[2], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_EQ(values[4], 65504);
}

TEST(NumbersTest, PicksTensorsByKindAndStep) {
  RankOutput output;
  for (const char* name :
       {"gradient.1/a", "gradient.1/b/c", "gradient.11/a", "parameter.1/a"}) {
    output.tensors[name] = FloatTensor({1}, std::vector<float>{1});
  }
  const Tensors tensors = TensorsOf(output, "gradient", 1);
  EXPECT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(tensors.contains("a"));
  EXPECT_TRUE(tensors.contains("b/c"));
}

TEST(NumbersTest, DifferencesKeepNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(LargestDifference(Values{1, 5}, Values{2, 3}), 2);
  EXPECT_TRUE(
      std::isnan(LargestDifference(Values{1, nan, 1}, Values{1, 2, 9})));
  EXPECT_TRUE(std::isinf(LargestDifference(Values{1}, Values{1, 2})));
  EXPECT_TRUE(std::isnan(LargestMagnitude(Values{1, nan, 2})));
  EXPECT_EQ(LargestMagnitude(Values{1, -3}), 3);
}

TEST(NumbersTest, Sums) {
  const std::vector<Tensors> terms = {{{"a", {1, 2}}}, {{"a", {3, 5}}}};
  const std::vector<double> weights = {2, -1};
  EXPECT_EQ(WeightedSum(weights, terms).at("a"), (Values{-1, -1}));
}

TEST(NumbersTest, UnitsInTheLastPlace) {
  EXPECT_EQ(UnitInLastPlace(1, 24), 0x1p-23);
  EXPECT_EQ(UnitInLastPlace(-1.99, 24), 0x1p-23);
  EXPECT_EQ(UnitInLastPlace(2, 8), 0x1p-6);
  EXPECT_EQ(UnitInLastPlace(0, 24), 0);
}

TEST(NumbersTest, OrdersByLayerThenName) {
  CheckCase check;
  check.layers = {{"the second-named", {"b"}}, {"another", {"a", "none"}}};
  for (const char* name : {"a", "b", "d", "c"}) {
    check.files.weights.tensors[name] = {};
  }
  EXPECT_EQ(NamesInOrder(check),
            (std::vector<std::string>{"b", "a", "c", "d"}));
  EXPECT_EQ(WithLayer(check, "a"), "a (another)");
  EXPECT_EQ(WithLayer(check, "c"), "c");
}

}  // namespace
}  // namespace lockstep
