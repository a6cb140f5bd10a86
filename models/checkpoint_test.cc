// Checkpoints: round trips, and files that do not fit.
#include "models/checkpoint.h"

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/model_tensors.h"
#include "models/parameters.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::StartsWith;

const CheckpointInfo kInfo = {
    .model = "lenet", .seed = ~uint64_t{0}, .epochs = 3};

Parameters TwoParameters() { return Parameters({{"W", {2, 3}}, {"b", {2}}}); }

Buffers TwoBuffers() {
  Buffers buffers;
  buffers.AddFloats("running_mean", {3});
  buffers.AddCounter("num_batches_tracked");
  return buffers;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : path_(absl::StrCat(testing::TempDir(), "/checkpoint.safetensors")) {
    const std::span<float> values = saved_.values();
    std::iota(values.begin(), values.end(), 0.1f);
    const std::span<float> floats = buffers_.floats();
    std::iota(floats.begin(), floats.end(), -0.3f);
    buffers_.counters()[0] = (int64_t{1} << 60) + 1;
    EXPECT_THAT(Save(), IsOk());
  }

  absl::Status Save() { return SaveCheckpoint(path_, kInfo, saved_, buffers_); }

  const std::string path_;
  Parameters saved_ = TwoParameters();
  Buffers buffers_ = TwoBuffers();
};

TEST_F(CheckpointTest, ReadsBackWhatItWrote) {
  Parameters loaded = TwoParameters();
  Buffers buffers = TwoBuffers();
  EXPECT_THAT(LoadCheckpoint(path_, loaded, buffers), IsOkAndHolds(kInfo));
  EXPECT_THAT(loaded.values(), ElementsAreArray(saved_.values()));
  EXPECT_THAT(buffers.floats(), ElementsAreArray(buffers_.floats()));
  EXPECT_EQ(buffers.counters()[0], buffers_.counters()[0]);
  EXPECT_THAT(ReadCheckpointInfo(path_), IsOkAndHolds(kInfo));
}

TEST_F(CheckpointTest, HoldsTheTensorsOfParametersAndBuffersAlone) {
  const absl::StatusOr<Safetensors> content = ReadSafetensors(path_);
  ASSERT_THAT(content, IsOk());
  NamedTensors want = ValueTensors(saved_);
  want.merge(BufferTensors(buffers_));
  EXPECT_EQ(want.size(), 4u);
  EXPECT_EQ(content->tensors, want);
}

TEST_F(CheckpointTest, ReadsACheckpointOfAModelWithoutBuffers) {
  Buffers none;
  ASSERT_THAT(SaveCheckpoint(path_, kInfo, saved_, none), IsOk());
  Parameters loaded = TwoParameters();
  EXPECT_THAT(LoadCheckpoint(path_, loaded, none), IsOkAndHolds(kInfo));
  EXPECT_THAT(loaded.values(), ElementsAreArray(saved_.values()));
  // A model with buffers cannot go on from it.
  Buffers buffers = TwoBuffers();
  EXPECT_THAT(LoadCheckpoint(path_, loaded, buffers),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has no tensor 'num_batches_tracked'")));
}

TEST_F(CheckpointTest, RefusesAnotherModelsTensorsAndLeavesItsOwn) {
  using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  for (const Shapes& shapes :
       {Shapes{{"W", {3, 2}}, {"b", {2}}}, Shapes{{"W", {2, 3}}},
        Shapes{{"W", {2, 3}}, {"c", {2}}}}) {
    Parameters other(shapes);
    Buffers buffers = TwoBuffers();
    EXPECT_THAT(
        LoadCheckpoint(path_, other, buffers),
        StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(path_)));
    EXPECT_THAT(other.values(), Each(0.0f));
    EXPECT_THAT(buffers.floats(), Each(0.0f));
  }
}

TEST_F(CheckpointTest, RefusesFilesThatAreNoCheckpoint) {
  for (const auto& [key, value] :
       {std::pair("seed", "x"), {"epochs", "-1"}, {"epochs", ""}}) {
    Safetensors content = *ReadSafetensors(path_);
    content.metadata[key] = value;
    ASSERT_THAT(WriteSafetensors(path_, content), IsOk());
    EXPECT_THAT(ReadCheckpointInfo(path_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith(path_), HasSubstr("no checkpoint"))));
    EXPECT_THAT(Save(), IsOk());
  }
  Safetensors content = *ReadSafetensors(path_);
  content.metadata.erase("model");
  ASSERT_THAT(WriteSafetensors(path_, content), IsOk());
  EXPECT_FALSE(ReadCheckpointInfo(path_).ok());
}

}  // namespace
}  // namespace lockstep
