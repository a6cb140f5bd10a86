#include "models/create_model.h"

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

TEST(CreateModelTest, MakesTheModelOfTheName) {
  const auto lenet = CreateModel("lenet", /*seed=*/0);
  ASSERT_THAT(lenet, IsOk());
  EXPECT_EQ((*lenet)->parameters().specs()[0].name, "W1");
  EXPECT_EQ((*lenet)->buffers().count(), 0);
  const auto resnet = CreateModel("resnet18", /*seed=*/0);
  ASSERT_THAT(resnet, IsOk());
  EXPECT_EQ((*resnet)->parameters().specs()[0].name, "0.weight");
  EXPECT_GT((*resnet)->buffers().count(), 0);
}

TEST(CreateModelTest, TakesTheSeed) {
  const auto first = CreateModel("lenet", /*seed=*/1);
  const auto second = CreateModel("lenet", /*seed=*/2);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE((*first)->parameters().values()[0],
            (*second)->parameters().values()[0]);
}

TEST(CreateModelTest, ListsTheNames) {
  for (const char* name : {"", "LeNet", "resnet", "resnet18 "}) {
    EXPECT_THAT(CreateModel(name, /*seed=*/0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "no such model; there are lenet, lenet_bn, resnet18"));
  }
}

}  // namespace
}  // namespace lockstep
