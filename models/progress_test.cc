// Progress lines: what they say, how often, and that all ranks add to them.
#include "models/progress.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/trainer.h"

namespace lockstep {
namespace {

using testing::Each;

// What rank 0, then rank 1, prints of an epoch of `steps` steps of the given
// length, in each of which rank r has r + 1 samples of loss r + 1, all correct
// on rank 0 and none on rank 1.
std::vector<std::string> PrintEpoch(int64_t steps, absl::Duration wall,
                                    bool rewrite = false) {
  std::vector<std::ostringstream> outs(2);
  const std::vector<absl::Status> statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        Progress progress(communicator, /*epochs=*/10, outs[rank], rewrite);
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
