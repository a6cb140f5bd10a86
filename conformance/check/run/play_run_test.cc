// Plans of one start and of two, and two starts joined into one run.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/run/run_trainer.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using End = TrainerRun::End;

constexpr char kTrainer[] = "conformance/check/run/trainer_for_tests";

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

CasePlan Plan(int64_t stop_after, int world_size) {
  CasePlan plan;
  plan.c.name = "n";
  plan.c.model = "m";
  plan.c.evaluate = true;
  plan.c.batch_sizes.assign(static_cast<size_t>(world_size), 1);
  if (stop_after == 0) return plan;
  plan.resumed = plan.c;
  plan.resumed->resume = true;
  plan.c.stop_after = stop_after;
  return plan;
}

CaseFiles Files() {
  CaseFiles files;
  files.weights.tensors["W"] = {
      DataType::kFloat32, {2}, std::vector<std::byte>(8)};
  return files;
}

class PlayRunTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/play_run");
    fs::remove_all(folder_);
  }

  absl::StatusOr<TrainerRun> Play(const std::string& command,
                                  const CasePlan& plan) {
    fs::remove_all(folder_);
    return PlayRun({.command = command}, plan, Files(), folder_ + "/a/b");
  }

  std::string folder_;
};

TEST_F(PlayRunTest, GivesTheSameInTwoStartsAsInOne) {
  for (const int world_size : {1, 3}) {
    const auto whole = Play(kTrainer, Plan(0, world_size));
    ASSERT_THAT(whole, IsOk());
    ASSERT_THAT(whole->ranks, SizeIs(world_size));
    for (const int64_t stop_after : {1, 4}) {
      const auto joined = Play(kTrainer, Plan(stop_after, world_size));
      ASSERT_THAT(joined, IsOk());
      EXPECT_EQ(joined->end, End::kExited);
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_THAT(joined->ranks[rank].status, IsOk());
        EXPECT_THAT(joined->ranks[rank].output.steps, SizeIs(5));
        EXPECT_EQ(joined->ranks[rank].output, whole->ranks[rank].output);
      }
    }
  }
}

TEST_F(PlayRunTest, NeedsACheckpointToGoOn) {
  for (const char* after : {"", "; : > $LOCKSTEP_OUTPUT/checkpoint",
                            "; ln -s nowhere $LOCKSTEP_OUTPUT/checkpoint"}) {
    const auto run = Play(
        absl::StrCat(kTrainer, "; rm -r $LOCKSTEP_OUTPUT/checkpoint", after),
        Plan(2, 1));
    ASSERT_THAT(run, IsOk());
    EXPECT_EQ(run->end, End::kFailed);
    EXPECT_THAT(run->how, HasSubstr("no folder \"checkpoint\""));
    EXPECT_THAT(run->how, HasSubstr("after step 2"));
    EXPECT_THAT(run->ranks[0].output.steps, SizeIs(2));
  }
}

TEST_F(PlayRunTest, DoesNotGoOnAfterAFailure) {
  const auto run = Play("exit 3", Plan(2, 1));
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->how, "rank 0 exited with status 3");
  EXPECT_FALSE(fs::exists(folder_ + "/a/b/resumed_case"));
}

TEST_F(PlayRunTest, DoesNotGoOnWhatIsNotSupported) {
  const auto run = Play(
      "echo '{\"protocol\":1,\"rank\":0,\"world_size\":1,"
      "\"unsupported\":\"why\"}' > $LOCKSTEP_OUTPUT/rank0.json",
      Plan(2, 1));
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->end, End::kExited);
  EXPECT_EQ(run->ranks[0].output.unsupported, "why");
}

TEST_F(PlayRunTest, SaysThatTheSecondStartFailed) {
  const auto run = Play(
      absl::StrCat("grep -q '\"resume\": true' $LOCKSTEP_CASE/case.json && "
                   "echo oh no && exit 5; ",
                   kTrainer),
      Plan(2, 1));
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->end, End::kFailed);
  EXPECT_EQ(run->how, "after the resume: rank 0 exited with status 5");
  EXPECT_THAT(run->last_lines, ElementsAre("[0] oh no"));
}

TEST_F(PlayRunTest, NamesAFolderThatItCannotUse) {
  EXPECT_THAT(PlayRun({.command = "true"}, Plan(0, 1), Files(), "/dev/null/x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/dev/null/x")));
  ASSERT_THAT(Play(kTrainer, Plan(0, 1)), IsOk());
  EXPECT_THAT(
      PlayRun({.command = "true"}, Plan(0, 1), Files(), folder_ + "/a/b"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("has something in it")));
}

}  // namespace
}  // namespace lockstep
