// Tests of the places and names of a model's buffers.
#include "models/buffers.h"

#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

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
