// Two starts with everything in them.
#include "conformance/check/join_runs.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "conformance/check/trainer_run.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_tensors.h"
#include "models/safetensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

NamedTensor Tensor(int64_t size) {
  return {DataType::kFloat32, {size}, std::vector<std::byte>(4 * size)};
}

StepOutput Step(int64_t index) {
  StepOutput step;
  step.indices = {index};
  return step;
}

// A start of one rank with these steps and tensors.
TrainerRun Start(std::vector<StepOutput> steps, NamedTensors tensors) {
  TrainerRun run;
  run.wall = absl::Seconds(2);
  run.ranks.resize(1);
  run.ranks[0].output.steps = std::move(steps);
  run.ranks[0].output.tensors = std::move(tensors);
  return run;
}

TrainerRun First() {
  TrainerRun run = Start({Step(1), Step(2)}, {{"gradient.1/W", Tensor(1)}});
  run.last_lines = {"first"};
  return run;
}

TrainerRun Second() {
  TrainerRun run = Start(
      {Step(3)}, {{"gradient.1/W", Tensor(9)}, {"gradient.3/W", Tensor(3)}});
  run.ranks[0].output.evaluation = {.indices = {}, .count = 7};
  run.last_lines = {"second"};
  return run;
}

TEST(JoinRunsTest, PutsTheSecondAfterTheFirst) {
  const TrainerRun run = JoinRuns(First(), Second());
  EXPECT_EQ(run.end, TrainerRun::End::kExited);
  EXPECT_EQ(run.how, "");
  EXPECT_EQ(run.wall, absl::Seconds(4));
  EXPECT_THAT(run.last_lines, ElementsAre("second"));
  ASSERT_EQ(run.ranks.size(), 1u);
  const RankOutput& output = run.ranks[0].output;
  ASSERT_EQ(output.steps.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_THAT(output.steps[i].indices, ElementsAre(i + 1));
  }
  ASSERT_EQ(output.tensors.size(), 2u);
  EXPECT_EQ(output.tensors.at("gradient.1/W"), Tensor(1));
  EXPECT_EQ(output.tensors.at("gradient.3/W"), Tensor(3));
  EXPECT_EQ(output.evaluation->count, 7);
}

TEST(JoinRunsTest, EndsAsTheSecondDid) {
  TrainerRun second = Second();
  second.end = TrainerRun::End::kTimedOut;
  second.how = "rank 0 had not ended after 1.0 s";
  second.ranks[0] = {.status = absl::NotFoundError("rank0.json: none"),
                     .output = {}};
  const TrainerRun run = JoinRuns(First(), second);
  EXPECT_EQ(run.end, TrainerRun::End::kTimedOut);
  EXPECT_EQ(run.how, "after the resume: rank 0 had not ended after 1.0 s");
  EXPECT_THAT(run.ranks[0].status,
              StatusIs(absl::StatusCode::kNotFound,
                       "after the resume: rank0.json: none"));
  EXPECT_EQ(run.ranks[0].output, RankOutput());
}

TEST(JoinRunsTest, KeepsTheFirstError) {
  TrainerRun first = First();
  first.ranks[0] = {.status = absl::DataLossError("rank0.json: half"),
                    .output = {}};
  EXPECT_THAT(JoinRuns(first, Second()).ranks[0].status,
              StatusIs(absl::StatusCode::kDataLoss, "rank0.json: half"));
}

TEST(JoinRunsTest, IsUnsupportedIfEitherIs) {
  TrainerRun refuses;
  refuses.ranks.resize(1);
  refuses.ranks[0].output.unsupported = "no resume";
  for (const bool second : {false, true}) {
    const TrainerRun run =
        second ? JoinRuns(First(), refuses) : JoinRuns(refuses, Second());
    EXPECT_EQ(run.ranks[0].output.unsupported, "no resume");
    EXPECT_THAT(run.ranks[0].output.steps, IsEmpty());
  }
}

}  // namespace
}  // namespace lockstep
