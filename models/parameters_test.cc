#include "models/parameters.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace lockstep
