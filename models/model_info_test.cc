// That the list of models says what CreateModel makes.
#include "models/model_info.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/create_model.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::EndsWith;

TEST(ModelInfoTest, FindsEachByItsName) {
  for (const ModelInfo& info : AllModels()) {
    EXPECT_EQ(FindModel(info.name), &info);
  }
  EXPECT_EQ(FindModel(""), nullptr);
  EXPECT_EQ(FindModel("LeNet"), nullptr);
}

TEST(ModelInfoTest, HasTheNamesThatCreateModelLists) {
  const absl::Status status = CreateModel("none", /*seed=*/0).status();
  EXPECT_THAT(std::string(status.message()), EndsWith(" " + ModelNames()));
}

TEST(ModelInfoTest, SaysWhatTheModelsTake) {
  for (const ModelInfo& info : AllModels()) {
    const absl::StatusOr<std::unique_ptr<Model>> model =
        CreateModel(info.name, /*seed=*/0);
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ((*model)->buffers().count() > 0, info.has_batch_norm);
    const std::vector<float> image(info.channels * info.height * info.width);
    const std::vector<float> longer(image.size() + 1);
    const auto last = static_cast<int32_t>(info.classes) - 1;
    const int32_t beyond = last + 1;
    EXPECT_THAT((*model)->Evaluate({image, {&last, 1}}), IsOk());
    EXPECT_FALSE((*model)->Evaluate({image, {&beyond, 1}}).ok());
    EXPECT_FALSE((*model)->Evaluate({longer, {&last, 1}}).ok());
  }
}

}  // namespace
}  // namespace lockstep
