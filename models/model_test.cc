#include "models/model.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

Parameters Three() {
  return Parameters({{"W", {2, 3}}, {"s", {}}, {"b", {5}}});
}

TEST(ParametersTest, PlacesTensorsOneAfterTheOther) {
  const Parameters parameters = Three();
  ASSERT_EQ(parameters.count(), 3);
  const std::vector<ParameterSpec>& specs = parameters.specs();
  EXPECT_EQ(specs[0].name, "W");
  EXPECT_THAT(specs[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(specs[0].offset, 0);
  EXPECT_EQ(specs[0].size, 6);
  EXPECT_EQ(specs[1].offset, 6);
  EXPECT_EQ(specs[1].size, 1);  // A scalar has one element.
  EXPECT_EQ(specs[2].offset, 7);
  EXPECT_EQ(specs[2].size, 5);
  EXPECT_EQ(parameters.values().size(), 12u);
  EXPECT_EQ(parameters.gradients().size(), 12u);
}

TEST(ParametersTest, NeighboursAreOneSpan) {
  Parameters parameters = Three();
  for (int i = 0; i < parameters.count(); ++i) {
    const int64_t offset = parameters.specs()[i].offset;
    EXPECT_EQ(parameters.value(i).data(), parameters.values().data() + offset);
    EXPECT_EQ(parameters.gradient(i).data(),
              parameters.gradients().data() + offset);
    EXPECT_EQ(static_cast<int64_t>(parameters.value(i).size()),
              parameters.specs()[i].size);
    EXPECT_EQ(static_cast<int64_t>(parameters.gradient(i).size()),
              parameters.specs()[i].size);
  }
}

TEST(ParametersTest, StartsZeroAndAligned) {
  const Parameters parameters = Three();
  EXPECT_THAT(parameters.values(), Each(0.0f));
  EXPECT_THAT(parameters.gradients(), Each(0.0f));
  for (const auto all : {parameters.values(), parameters.gradients()}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.data()) % 64, 0u);
  }
}

TEST(ParametersTest, ValuesAndGradientsAreApart) {
  Parameters parameters = Three();
  std::ranges::fill(parameters.value(2), 3.0f);
  EXPECT_THAT(parameters.gradients(), Each(0.0f));
  EXPECT_THAT(parameters.values(),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3));
}

TEST(ParametersTest, SpansOutliveAMove) {
  Parameters parameters = Three();
  const float* before = parameters.values().data();
  const Parameters moved = std::move(parameters);
  EXPECT_EQ(moved.values().data(), before);
}

TEST(ParametersTest, NoneAndEmptyTensorsAreAllowed) {
  EXPECT_THAT(Parameters({}).values(), IsEmpty());
  const Parameters parameters({{"empty", {3, 0}}, {"one", {1}}});
  EXPECT_THAT(parameters.value(0), IsEmpty());
  EXPECT_EQ(parameters.specs()[1].offset, 0);
}

TEST(BuffersTest, IsEmptyAtFirst) {
  const Buffers buffers;
  EXPECT_EQ(buffers.count(), 0);
  EXPECT_TRUE(buffers.floats().empty());
  EXPECT_TRUE(buffers.counters().empty());
}

TEST(BuffersTest, KeepsEachBufferApart) {
  Buffers buffers;
  const int mean = buffers.AddFloats("bn.running_mean", {2});
  const int batches = buffers.AddCounter("bn.num_batches_tracked");
  const int table = buffers.AddFloats("table", {1, 3});
  const int steps = buffers.AddCounter("steps");
  buffers.value(mean)[1] = 1;
  buffers.value(table)[2] = 2;
  buffers.counter(batches) = 3;
  buffers.counter(steps) = 4;
  EXPECT_THAT(buffers.floats(), ElementsAre(0, 1, 0, 0, 2));
  EXPECT_THAT(buffers.counters(), ElementsAre(3, 4));
  const Buffers copy = buffers;
  EXPECT_THAT(copy.value(mean), ElementsAre(0, 1));
  EXPECT_THAT(copy.value(table), ElementsAre(0, 0, 2));
  EXPECT_EQ(copy.counter(batches), 3);
  EXPECT_EQ(copy.counter(steps), 4);
}

TEST(BuffersTest, NamesThemInTheOrderTheyWereAdded) {
  Buffers buffers;
  buffers.AddFloats("b", {4, 5});
  buffers.AddCounter("a");
  ASSERT_EQ(buffers.count(), 2);
  EXPECT_EQ(buffers.specs()[0].name, "b");
  EXPECT_EQ(buffers.specs()[0].type, DataType::kFloat32);
  EXPECT_THAT(buffers.specs()[0].shape, ElementsAre(4, 5));
  EXPECT_EQ(buffers.specs()[0].size, 20);
  EXPECT_EQ(buffers.specs()[1].name, "a");
  EXPECT_EQ(buffers.specs()[1].type, DataType::kInt64);
  EXPECT_THAT(buffers.specs()[1].shape, ElementsAre());
  EXPECT_EQ(buffers.specs()[1].size, 1);
}

}  // namespace
}  // namespace lockstep
