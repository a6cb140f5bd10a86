// Tensors of a model: what they hold, and what does not fit.
#include "models/model_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/parameters.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;

template <typename T>
std::vector<T> ValuesOf(const NamedTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

class ModelTensorsTest : public testing::Test {
 protected:
  ModelTensorsTest() {
    mean_ = buffers_.AddFloats("mean", {2});
    batches_ = buffers_.AddCounter("batches");
    variance_ = buffers_.AddFloats("variance", {2});
  }

  // What a file with this model would hold, all of it not zero.
  NamedTensors Filled() {
    std::iota(parameters_.values().begin(), parameters_.values().end(), 1.0f);
    std::iota(buffers_.floats().begin(), buffers_.floats().end(), 10.0f);
    buffers_.counter(batches_) = 77;
    NamedTensors tensors = ValueTensors(parameters_);
    tensors.merge(BufferTensors(buffers_));
    return tensors;
  }

  void Clear() {
    std::fill(parameters_.values().begin(), parameters_.values().end(), 0.0f);
    std::fill(buffers_.floats().begin(), buffers_.floats().end(), 0.0f);
    buffers_.counter(batches_) = 0;
  }

  Parameters parameters_{{{"weight", {2, 3}}, {"bias", {2}}}};
  Buffers buffers_;
  int mean_ = 0;
  int batches_ = 0;
  int variance_ = 0;
};

TEST_F(ModelTensorsTest, NamesEveryValueGradientAndBuffer) {
  Filled();
  std::iota(parameters_.gradients().begin(), parameters_.gradients().end(),
            -8.0f);
  const NamedTensors values = ValueTensors(parameters_);
  EXPECT_THAT(ValuesOf<float>(values.at("weight")),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values.at("weight").shape, ElementsAre(2, 3));
  EXPECT_THAT(ValuesOf<float>(values.at("bias")), ElementsAre(7, 8));
  const NamedTensors gradients = GradientTensors(parameters_);
  EXPECT_THAT(ValuesOf<float>(gradients.at("bias")), ElementsAre(-2, -1));
  const NamedTensors buffers = BufferTensors(buffers_);
  EXPECT_EQ(buffers.size(), 3u);
  EXPECT_THAT(ValuesOf<float>(buffers.at("mean")), ElementsAre(10, 11));
  EXPECT_THAT(ValuesOf<float>(buffers.at("variance")), ElementsAre(12, 13));
  EXPECT_EQ(buffers.at("batches").type, DataType::kInt64);
  EXPECT_TRUE(buffers.at("batches").shape.empty());
  EXPECT_THAT(ValuesOf<int64_t>(buffers.at("batches")), ElementsAre(77));
}

TEST_F(ModelTensorsTest, LoadsWhatItNamed) {
  const NamedTensors tensors = Filled();
  Clear();
  ASSERT_THAT(LoadTensors(tensors, "file", parameters_, buffers_), IsOk());
  EXPECT_THAT(parameters_.values(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(buffers_.value(mean_), ElementsAre(10, 11));
  EXPECT_THAT(buffers_.value(variance_), ElementsAre(12, 13));
  EXPECT_EQ(buffers_.counter(batches_), 77);
}

TEST_F(ModelTensorsTest, NamesTheTensorThatDoesNotFitAndLoadsNothing) {
  const NamedTensors good = Filled();
  Clear();
  const NamedTensor scalar = {
      DataType::kFloat32, {}, std::vector<std::byte>(4)};
  NamedTensors no_bias = good;
  no_bias.erase("bias");
  NamedTensors no_mean = good;
  no_mean.erase("mean");
  NamedTensors flat = good;
  flat["weight"].shape = {6};
  NamedTensors type = good;
  type["batches"] = scalar;
  NamedTensors negative = good;
  negative["batches"].data.assign(8, std::byte{0xff});
  NamedTensors last = good;
  last["batches"].data.assign(8, std::byte{0xff});
  last["batches"].data[7] = std::byte{0x7f};
  NamedTensors more = good;
  more["zzz\n"] = scalar;
  for (const auto& [tensors, message] :
       {std::pair(no_bias, "F: has no tensor 'bias'"),
        {no_mean, "F: has no tensor 'mean'"},
        {flat,
         "F: tensor 'weight' is float32 [6], the model's is float32 [2, 3]"},
        {type, "F: tensor 'batches' is float32 [], the model's is int64 []"},
        {negative, "F: tensor 'batches' is -1, which is no count of batches"},
        {last,
         "F: tensor 'batches' is 9223372036854775807, which is no count of "
         "batches"},
        {more, "F: tensor 'zzz\\n' is not the model's"}}) {
    EXPECT_THAT(LoadTensors(tensors, "F", parameters_, buffers_),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(parameters_.values(), Each(0.0f));
    EXPECT_THAT(buffers_.floats(), Each(0.0f));
    EXPECT_EQ(buffers_.counter(batches_), 0);
  }
}

}  // namespace
}  // namespace lockstep
