// Checkpoints: round trips, and files that do not fit.
#include "models/train/train_run.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/model_tensors.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/train/checkpoint.h"
#include "models/train/trainer.h"

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

// Progress lines: what they say, how often, and that all ranks add to them.
// What rank 0, then rank 1, prints of an epoch of `steps` steps of the given
// length, in each of which rank r has r + 1 samples of loss r + 1, all correct
// on rank 0 and none on rank 1.
std::vector<std::string> PrintEpoch(int64_t steps, absl::Duration wall,
                                    bool rewrite = false) {
  std::vector<std::ostringstream> outs(2);
  const std::vector<absl::Status> statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        TrainingProgress progress(communicator, /*epochs=*/10, outs[rank],
                                  rewrite);
        for (int64_t step = 0; step < steps; ++step) {
          StepReport report;
          report.epoch = 1;
          report.step = step;
          report.steps_per_epoch = steps;
          report.global_samples = 3;
          report.shard_metrics = {(rank + 1.0) * (rank + 1), 1 - rank,
                                  rank + 1};
          report.wall = wall;
          LOCKSTEP_RETURN_IF_ERROR(progress.OnStep(report));
        }
        EpochSummary summary;
        summary.epoch = 1;
        summary.train = {6.0, 3, 4};
        summary.test = {1.0, 7, 8};
        summary.train_time = absl::Milliseconds(500);
        progress.OnEpoch(summary);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return {outs[0].str(), outs[1].str()};
}

constexpr char kSummary[] =
    "epoch  2/10  train loss 1.5000  train accuracy 0.750  test accuracy "
    "0.8750  8 images/s  0.5 s\n";

TEST(ProgressTest, WeighsRanksBySamplesAndPrintsOnRankZeroOnly) {
  const std::vector<std::string> printed = PrintEpoch(2, absl::Seconds(2));
  EXPECT_EQ(printed[0],
            std::string("epoch  2/10  step 1/2  loss 1.6667  accuracy 0.333  2 "
                        "images/s\n"
                        "epoch  2/10  step 2/2  loss 1.6667  accuracy 0.333  2 "
                        "images/s\n") +
                kSummary);
  EXPECT_EQ(printed[1], "");
}

int64_t Lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ProgressTest, PrintsTenTimesAnEpochAndAtMostOnceASecond) {
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Seconds(1))[0]), 10 + 1);
  EXPECT_EQ(Lines(PrintEpoch(5, absl::Seconds(1))[0]), 5 + 1);
  // 23 steps of 20 ms a tenth: the first, and then every third.
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Milliseconds(20))[0]), 4 + 1);
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Milliseconds(1))[0]), 1 + 1);
}

TEST(ProgressTest, RewritesTheLineOnATerminal) {
  EXPECT_EQ(PrintEpoch(1, absl::Seconds(3), /*rewrite=*/true)[0],
            std::string("\x1b[2Kepoch  2/10  step 1/1  loss 1.6667  accuracy "
                        "0.333  1 images/s\r\x1b[2K") +
                kSummary);
}

}  // namespace
}  // namespace lockstep
