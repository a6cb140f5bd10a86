// Tests right and wrong trainers in one start, and in two starts that are
// joined into one run; also tests the last lines of their output.
#include "conformance/check/run/run_trainer.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using End = TrainerRun::End;

TEST(LastLinesTest, TakesTheLastOnesInOrder) {
  const std::string output = "one\n\n two \nthree\n  \n";
  EXPECT_THAT(LastLines(output, 0), IsEmpty());
  EXPECT_THAT(LastLines(output, 1), ElementsAre("three"));
  EXPECT_THAT(LastLines(output, 2), ElementsAre("two", "three"));
  EXPECT_THAT(LastLines(output, 9), ElementsAre("one", "two", "three"));
  EXPECT_THAT(LastLines("unfinished", 2), ElementsAre("unfinished"));
  EXPECT_THAT(LastLines("", 2), IsEmpty());
  EXPECT_THAT(LastLines("\n", 2), IsEmpty());
  EXPECT_THAT(LastLines("10%\r20%\r\ndone", 2), ElementsAre("20%", "done"));
}

TEST(LastLinesTest, ShowsNothingThatATerminalWouldObey) {
  EXPECT_THAT(LastLines("\x1b[1;31mred\x1b[0m\tend", 2),
              ElementsAre("red end"));
  EXPECT_THAT(LastLines(std::string("a\0b\x07\xc3\xa9\x7f", 7), 2),
              ElementsAre("a?b????"));
  for (const char* escape : {"\x1b", "\x1b[", "\x1b[31"}) {
    EXPECT_THAT(LastLines(absl::StrCat("a", escape), 2), ElementsAre("a"));
  }
  EXPECT_THAT(LastLines("a\033cb", 2), ElementsAre("acb"));
}

TEST(LastLinesTest, CutsLongLines) {
  const std::string longest(kMostLineBytes, 'x');
  EXPECT_THAT(LastLines(longest, 1), ElementsAre(longest));
  EXPECT_THAT(LastLines(longest + "y", 1),
              ElementsAre(std::string(kMostLineBytes - 3, 'x') + "..."));
}

constexpr char kTrainer[] = "conformance/check/run/trainer_for_tests";
constexpr absl::Duration kShort = absl::Milliseconds(500);
// Shell commands that write a rank's JSON without steps, and a tensor file
// without tensors, into the current folder.
constexpr char kNoSteps[] =
    R"(echo '{"protocol":1,"rank":'$RANK',"world_size":'$WORLD_SIZE',)"
    R"("software":"s","steps":[],"evaluation":null}' > rank$RANK.json)";
constexpr char kNoTensors[] =
    R"(printf '\2\0\0\0\0\0\0\0{}' > rank$RANK.safetensors)";
constexpr char kForEver[] = "while :; do sleep 1000; done";

NamedTensor Tensor(int64_t size) {
  return NamedTensor::Of<float>({size}, std::vector<float>(size));
}

class RunTrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/run_trainer");
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/case");
    const Case c = {.name = "n", .model = "m", .batch_sizes = {1}};
    ASSERT_THAT(WriteCaseFolder(folder_ + "/case", c, {}), IsOk());
  }

  // Makes one start on an empty output folder.
  absl::StatusOr<TrainerRun> Run(const TrainerCommand& trainer,
                                 int world_size = 1) {
    fs::remove_all(folder_ + "/output");
    return RunTrainer(trainer, folder_ + "/case", folder_ + "/output",
                      world_size);
  }
  // The same, for a command that can be started.
  TrainerRun Result(const std::string& command, int world_size = 1,
                    absl::Duration timeout = absl::Minutes(1)) {
    absl::StatusOr<TrainerRun> run =
        Run({.command = command, .timeout = timeout}, world_size);
    EXPECT_THAT(run, IsOk());
    if (!run.ok()) return {};
    EXPECT_THAT(run->ranks, SizeIs(world_size));
    EXPECT_EQ(run->world_size, world_size);
    EXPECT_EQ(run->how.empty(), run->end == End::kExited);
    return *std::move(run);
  }

  // Plays a plan with a command that can be started.
  TrainerRun Played(const std::string& command, const CasePlan& plan) {
    fs::remove_all(folder_ + "/played");
    CaseFiles files;
    files.weights.tensors["W"] = Tensor(2);
    absl::StatusOr<TrainerRun> run = RunCasePlan(
        {.command = command}, plan, files, folder_ + "/played/here");
    EXPECT_THAT(run, IsOk());
    return run.ok() ? *std::move(run) : TrainerRun();
  }

  std::string folder_;
};

TEST_F(RunTrainerTest, GathersWhatEachRankWrote) {
  for (const int world_size : {1, 2, 3}) {
    for (const char* all : {"", " {world_size}"}) {
      const TrainerRun run = Result(absl::StrCat(kTrainer, all), world_size);
      EXPECT_EQ(run.end, End::kExited);
      EXPECT_THAT(run.last_lines, IsEmpty());
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_THAT(run.ranks[rank].status, IsOk());
        EXPECT_EQ(run.ranks[rank].output.rank, rank);
        EXPECT_EQ(run.ranks[rank].output.world_size, world_size);
        EXPECT_THAT(run.ranks[rank].output.steps, SizeIs(5));
      }
    }
  }
}

TEST_F(RunTrainerTest, TellsEachRankWhatTorchrunWould) {
  const TrainerRun run = Result(
      "echo $RANK $WORLD_SIZE $LOCAL_RANK; [ -n \"$MASTER_ADDR$MASTER_PORT\" ]",
      2);
  EXPECT_EQ(run.end, End::kExited);
  EXPECT_THAT(run.last_lines, ElementsAre("[1] 1 2 1", "[0] 0 2 0"));
}

TEST_F(RunTrainerTest, TellsACommandThatStartsItsRanksNothingOfRanks) {
  const TrainerRun run = Result(
      "echo -$RANK$WORLD_SIZE$LOCAL_RANK$MASTER_PORT- {world_size} "
      "{world_size}",
      3);
  EXPECT_THAT(run.last_lines, ElementsAre("-- 3 3"));
}

// The check itself may have been started by a launcher.
TEST_F(RunTrainerTest, PassesNoLaunchersRankOn) {
  const std::vector<std::string> kNames = absl::StrSplit(
      "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE "
      "MPI_LOCALRANKID SLURM_PROCID SLURM_STEP_ID SLURM_STEP_NUM_TASKS "
      "TORCHELASTIC_RUN_ID",
      ' ');
  for (const std::string& name : kNames) setenv(name.c_str(), "1", 1);
  const std::string echo =
      absl::StrCat("echo -$", absl::StrJoin(kNames, "$"), "-");
  EXPECT_THAT(Result(echo, 2).last_lines, ElementsAre("[1] --", "[0] --"));
  EXPECT_THAT(Result(echo + " {world_size}", 2).last_lines,
              ElementsAre("-- 2"));
  for (const std::string& name : kNames) unsetenv(name.c_str());
}

TEST_F(RunTrainerTest, NamesTheFoldersFromWhereverItStarts) {
  fs::create_directories(folder_ + "/it's here");
  const std::string relative = fs::relative(folder_).string();
  fs::remove_all(folder_ + "/output");
  const absl::StatusOr<TrainerRun> run =
      RunTrainer({.command = "pwd; cat < $LOCKSTEP_CASE/case.json > /dev/null "
                             "&& ls -d $LOCKSTEP_OUTPUT",
                  .working_folder = relative + "/it's here"},
                 relative + "/case", relative + "/output", 1);
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->end, End::kExited);
  ASSERT_THAT(run->last_lines, SizeIs(2));
  EXPECT_THAT(run->last_lines[0], testing::EndsWith("/it's here"));
}

TEST_F(RunTrainerTest, SaysHowItFailed) {
  struct {
    std::string command;
    int world_size;
    std::string how;
  } const cases[] = {
      {"exit 3", 1, "rank 0 exited with status 3"},
      {absl::StrCat("[ $RANK = 1 ] && exit 4; ", kForEver), 3,
       "rank 1 exited with status 4"},
      {"kill -SEGV $$", 1, "rank 0 was killed by signal 11 (SIGSEGV)"},
      {"kill -KILL $$", 1, "rank 0 was killed by signal 9 (SIGKILL)"},
      {"exit {world_size}", 2, "the command exited with status 2"},
      {"lockstep-no-such-command", 1,
       "rank 0 exited with status 127: the command was not found"},
      {"lockstep-no-such-command {world_size}", 1,
       "the command exited with status 127: the command was not found"},
      {"/", 1, "rank 0 exited with status 126: the command cannot be run"},
      {"if", 1, "rank 0 exited with status 2"},
  };
  for (const auto& c : cases) {
    const TrainerRun run = Result(c.command, c.world_size);
    EXPECT_EQ(run.end, End::kFailed) << c.command;
    EXPECT_EQ(run.how, c.how);
  }
}

TEST_F(RunTrainerTest, ReadsWhatWasWrittenBeforeAFailure) {
  const TrainerRun run = Result(absl::StrCat(kTrainer, "; exit 1"));
  EXPECT_EQ(run.end, End::kFailed);
  EXPECT_THAT(run.ranks[0].status, IsOk());
}

TEST_F(RunTrainerTest, EndsWhatHangs) {
  const TrainerRun alone = Result(kForEver, 1, kShort);
  EXPECT_EQ(alone.end, End::kTimedOut);
  EXPECT_EQ(alone.how, "rank 0 had not ended after 0.5 s");
  EXPECT_THAT(alone.ranks[0].status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank0.json")));
  EXPECT_EQ(Result(kForEver, 3, kShort).how,
            "ranks 0-2 had not ended after 0.5 s");
  EXPECT_EQ(Result(absl::StrCat(kForEver, " # {world_size}"), 3, kShort).how,
            "the command had not ended after 0.5 s");
}

TEST_F(RunTrainerTest, EndsWhatIgnoresThatItIsToEnd) {
  const TrainerRun run = Result(
      absl::StrCat("trap '' TERM INT HUP; setsid sleep 1000 & ", kForEver), 2,
      kShort);
  EXPECT_EQ(run.end, End::kTimedOut);
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);  // No child process is left.
}

TEST_F(RunTrainerTest, EndsWhatATrainerLeftBehind) {
  // The sleeper holds the pipe of the command's output open.
  const TrainerRun run =
      Result("(setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo done");
  EXPECT_EQ(run.end, End::kExited);
  EXPECT_THAT(run.last_lines, ElementsAre("[0] done"));
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);
}

TEST_F(RunTrainerTest, KeepsFewLinesOfMuch) {
  const TrainerRun run = Result("yes", 1, kShort);
  EXPECT_EQ(run.end, End::kTimedOut);
  EXPECT_EQ(run.last_lines, std::vector<std::string>(20, "[0] y"));
  const TrainerRun line =
      Result("head -c 5000000 /dev/zero; printf '\\033[1mend'; exit 1");
  ASSERT_THAT(line.last_lines, SizeIs(1));
  EXPECT_EQ(line.last_lines[0].size(), 200u);
  EXPECT_THAT(line.last_lines[0], testing::StartsWith("[0] ????"));
}

TEST_F(RunTrainerTest, EndsWithTheLinesOfTheRankThatFailed) {
  const std::string script =
      "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; done; "
      "[ $RANK = 1 ] && exit 1; " +
      std::string(kForEver);
  const TrainerRun few = Result(script, 3);
  ASSERT_THAT(few.last_lines, SizeIs(20));
  EXPECT_EQ(few.last_lines.back(), "[1] 12");
  EXPECT_EQ(few.last_lines[10], "[1] 3");
  const TrainerRun many =
      Result("echo $RANK; if [ $RANK = 29 ]; then exit 1; fi", 30);
  EXPECT_THAT(many.last_lines, SizeIs(testing::Le(20u)));
  EXPECT_EQ(many.last_lines.back(), "[29] 29");
}

TEST_F(RunTrainerTest, SaysThatARankWroteNothing) {
  const TrainerRun run = Result(absl::StrCat("[ $RANK = 1 ] || ", kTrainer), 2);
  EXPECT_EQ(run.end, End::kExited);
  EXPECT_THAT(run.ranks[0].status, IsOk());
  EXPECT_THAT(run.ranks[1].status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/rank1.json")));
  EXPECT_THAT(Result("rm -r $LOCKSTEP_OUTPUT").ranks[0].status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank0.json")));
}

// Each rank writes different garbage.
TEST_F(RunTrainerTest, ReadsNoGarbageAndWaitsForNobody) {
  const std::string good = absl::StrCat(kNoSteps, "; ");
  const std::vector<std::string> kinds = {
      "head -c 999 /dev/urandom > rank$RANK.json",
      "printf '{\"protocol\": 1, \"ra' > rank$RANK.json",
      ": > rank$RANK.json",
      "mkfifo rank$RANK.json",
      "mkdir rank$RANK.json",
      "ln -s /dev/zero rank$RANK.json",
      "truncate -s 1T rank$RANK.json",
      kNoSteps,
      good + "head -c 999 /dev/urandom > rank$RANK.safetensors",
      good + "printf '\\2\\0\\0' > rank$RANK.safetensors",
      good + "mkfifo rank$RANK.safetensors",
      good + "mkdir rank$RANK.safetensors",
      good + "truncate -s 1T rank$RANK.safetensors",
      absl::StrCat(good, kNoTensors, "; ",
                   R"(sed -i 's/"rank":[0-9]*/"rank":0/' rank$RANK.json)"),
  };
  std::string script = "cd $LOCKSTEP_OUTPUT; case $RANK in";
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    absl::StrAppend(&script, " ", rank, ") ", kinds[rank], ";;");
  }
  const TrainerRun run =
      Result(script + " esac", static_cast<int>(kinds.size()));
  EXPECT_EQ(run.end, End::kExited) << run.how;
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    EXPECT_THAT(run.ranks[rank].status,
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr(absl::StrCat("/rank", rank, "."))))
        << kinds[rank];
    EXPECT_EQ(run.ranks[rank].output, RankOutput()) << kinds[rank];
  }
  EXPECT_THAT(Result(absl::StrCat("cd $LOCKSTEP_OUTPUT; ", good, kNoTensors,
                                  "; for i in $(seq 500); do "
                                  "echo $i > rank$i.json; done"))
                  .ranks[0]
                  .status,
              IsOk());
}

TEST_F(RunTrainerTest, LeavesItToTheJudgeWhatRanksSay) {
  const TrainerRun alone =
      Result(absl::StrCat("WORLD_SIZE=1 ", kTrainer, "; [ $RANK = 0 ]"), 2);
  EXPECT_EQ(alone.ranks[0].output.world_size, 1);
  const TrainerRun nan = Result(absl::StrCat(
      kTrainer, "; sed -i s/1.0/\\\"nan\\\"/ $LOCKSTEP_OUTPUT/rank0.json"));
  ASSERT_THAT(nan.ranks[0].status, IsOk());
  EXPECT_TRUE(std::isnan(*nan.ranks[0].output.steps[0].loss));
}

TEST_F(RunTrainerTest, RefusesWhatItCannotRun) {
  const auto expect = [&](const TrainerCommand& trainer, int world_size,
                          absl::StatusCode code, const std::string& message) {
    EXPECT_THAT(Run(trainer, world_size), StatusIs(code, HasSubstr(message)));
  };
  expect({.command = ""}, 1, absl::StatusCode::kInvalidArgument, "no command");
  for (const int world_size : {0, -1, 4097}) {
    expect({.command = "true"}, world_size, absl::StatusCode::kInvalidArgument,
           absl::StrCat("world size is ", world_size));
  }
  expect({.command = "true", .timeout = absl::ZeroDuration()}, 1,
         absl::StatusCode::kInvalidArgument, "timeout");
  expect({.command = "true", .working_folder = folder_ + "/none"}, 1,
         absl::StatusCode::kNotFound, folder_ + "/none");
  EXPECT_THAT(RunTrainer({.command = "true"}, folder_ + "/none",
                         folder_ + "/output", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
}

TEST_F(RunTrainerTest, RefusesAnOutputFolderThatIsNotEmpty) {
  const std::string output = folder_ + "/used";
  fs::create_directories(output + "/checkpoint");
  EXPECT_THAT(RunTrainer({.command = "true"}, folder_ + "/case", output, 1),
              IsOk());
  std::ofstream(output + "/rank0.json") << "{}";
  EXPECT_THAT(
      RunTrainer({.command = "true"}, folder_ + "/case", output, 1),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank0.json")));
  const std::string file = output + "/rank0.json";
  EXPECT_FALSE(
      RunTrainer({.command = "true"}, folder_ + "/case", file, 1).ok());
}

TEST_F(RunTrainerTest, StopsWhenItIsToldTo) {
  EXPECT_THAT(
      Run({.command = absl::StrCat("kill -TERM ", getpid(), "; ", kForEver)}),
      StatusIs(absl::StatusCode::kCancelled, HasSubstr("SIGTERM")));
}

// Returns a start of one rank that drew these samples, one in each step.
TrainerRun Start(const std::string& line, const std::vector<int64_t>& samples,
                 NamedTensors tensors) {
  RankOutput output = {.tensors = std::move(tensors)};
  for (const int64_t sample : samples) {
    output.steps.push_back({.indices = {sample}});
  }
  return {.last_lines = {line}, .ranks = {{.output = std::move(output)}}};
}

TrainerRun First() {
  return Start("first", {1, 2}, {{"gradient.1/W", Tensor(1)}});
}

TrainerRun Second() {
  TrainerRun run =
      Start("second", {3},
            {{"gradient.1/W", Tensor(9)}, {"gradient.3/W", Tensor(3)}});
  run.ranks[0].output.evaluation = {.count = 7};
  return run;
}

TEST(JoinRunsTest, PutsTheSecondAfterTheFirst) {
  const TrainerRun run = JoinRuns(First(), Second());
  EXPECT_EQ(run.end, TrainerRun::End::kExited);
  EXPECT_EQ(run.how, "");
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

TEST(JoinRunsTest, KeepsTheFirstErrorAndIsUnsupportedIfEitherIs) {
  TrainerRun first = First();
  first.ranks[0] = {.status = absl::DataLossError("rank0.json: half")};
  EXPECT_THAT(JoinRuns(first, Second()).ranks[0].status,
              StatusIs(absl::StatusCode::kDataLoss, "rank0.json: half"));
  const TrainerRun refuses = {
      .ranks = {{.output = {.unsupported = "no resume"}}}};
  for (const TrainerRun& run :
       {JoinRuns(First(), refuses), JoinRuns(refuses, Second())}) {
    EXPECT_EQ(run.ranks[0].output.unsupported, "no resume");
    EXPECT_THAT(run.ranks[0].output.steps, IsEmpty());
  }
}

CasePlan Plan(int64_t stop_after, int world_size) {
  CasePlan plan;
  plan.c = {.name = "n",
            .model = "m",
            .batch_sizes = std::vector<int64_t>(world_size, 1),
            .evaluate = true};
  if (stop_after == 0) return plan;
  plan.resumed = plan.c;
  plan.resumed->resume = true;
  plan.c.stop_after = stop_after;
  return plan;
}

TEST_F(RunTrainerTest, PlaysTheSameInTwoStartsAsInOne) {
  for (const int world_size : {1, 3}) {
    const TrainerRun whole = Played(kTrainer, Plan(0, world_size));
    ASSERT_THAT(whole.ranks, SizeIs(world_size));
    for (const int64_t stop_after : {1, 4}) {
      const TrainerRun joined = Played(kTrainer, Plan(stop_after, world_size));
      EXPECT_EQ(joined.end, End::kExited);
      ASSERT_THAT(joined.ranks, SizeIs(world_size));
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_THAT(joined.ranks[rank].status, IsOk());
        EXPECT_THAT(joined.ranks[rank].output.steps, SizeIs(5));
        EXPECT_EQ(joined.ranks[rank].output, whole.ranks[rank].output);
      }
    }
  }
}

TEST_F(RunTrainerTest, NeedsACheckpointToGoOn) {
  for (const char* after : {"", "; : > $LOCKSTEP_OUTPUT/checkpoint",
                            "; ln -s nowhere $LOCKSTEP_OUTPUT/checkpoint"}) {
    const TrainerRun run = Played(
        absl::StrCat(kTrainer, "; rm -r $LOCKSTEP_OUTPUT/checkpoint", after),
        Plan(2, 1));
    EXPECT_EQ(run.end, End::kFailed);
    EXPECT_THAT(run.how, AllOf(HasSubstr("no folder \"checkpoint\""),
                               HasSubstr("after step 2")));
    EXPECT_THAT(run.ranks.at(0).output.steps, SizeIs(2));
  }
}

TEST_F(RunTrainerTest, DoesNotGoOnAfterAFailure) {
  EXPECT_EQ(Played("exit 3", Plan(2, 1)).how, "rank 0 exited with status 3");
  EXPECT_FALSE(fs::exists(folder_ + "/played/here/resumed_case"));
}

TEST_F(RunTrainerTest, DoesNotGoOnWithWhatIsNotSupported) {
  const TrainerRun run = Played(
      "echo '{\"protocol\":1,\"rank\":0,\"world_size\":1,"
      "\"unsupported\":\"why\"}' > $LOCKSTEP_OUTPUT/rank0.json",
      Plan(2, 1));
  EXPECT_EQ(run.end, End::kExited);
  EXPECT_EQ(run.ranks.at(0).output.unsupported, "why");
}

TEST_F(RunTrainerTest, SaysThatTheSecondStartFailed) {
  const TrainerRun run = Played(
      absl::StrCat("grep -q '\"resume\": true' $LOCKSTEP_CASE/case.json && "
                   "echo oh no && exit 5; ",
                   kTrainer),
      Plan(2, 1));
  EXPECT_EQ(run.end, End::kFailed);
  EXPECT_EQ(run.how, "after the resume: rank 0 exited with status 5");
  EXPECT_THAT(run.ranks.at(0).status,
              StatusIs(absl::StatusCode::kNotFound,
                       testing::StartsWith("after the resume: ")));
  EXPECT_EQ(run.ranks[0].output, RankOutput());
  EXPECT_THAT(run.last_lines, ElementsAre("[0] oh no"));
}

// The script finds the checkpoint again and does not use the first start's
// output folder.
TEST_F(RunTrainerTest, KeepsAScriptOfEachStart) {
  const TrainerCommand trainer = {
      .command = "cd $LOCKSTEP_OUTPUT && (mkdir checkpoint || exec ls; exit 4)",
      .keep = true};
  const std::string folder = folder_ + "/kept";
  CaseFiles files;
  files.weights.tensors["W"] = Tensor(2);
  const absl::StatusOr<TrainerRun> failed =
      RunCasePlan(trainer, Plan(2, 1), files, folder);
  ASSERT_THAT(failed, IsOk());
  EXPECT_EQ(failed->by_hand, absl::StrCat("sh '", folder, "/run.sh'"));
  EXPECT_EQ(WEXITSTATUS(std::system(failed->by_hand.c_str())), 4);
  EXPECT_TRUE(fs::exists(folder + "/logs/rank-0.log"));
  fs::remove_all(folder);
  const absl::StatusOr<TrainerRun> resumed = RunCasePlan(
      {.command = "cd $LOCKSTEP_OUTPUT && mkdir -p checkpoint/$RESUMED",
       .keep = true},
      Plan(2, 1), files, folder);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_EQ(resumed->by_hand, absl::StrCat("sh '", folder, "/resumed_run.sh'"));
  const std::string by_hand = "RESUMED=yes " + resumed->by_hand;
  EXPECT_EQ(std::system(by_hand.c_str()), 0);
  EXPECT_EQ(std::system(absl::StrCat("cd '", folder,
                                     "'/resumed_output_by_hand_* && test -d "
                                     "checkpoint/yes && test ! -e ../resumed_"
                                     "output/checkpoint/yes")
                            .c_str()),
            0);
  EXPECT_EQ(Played("true", Plan(0, 1)).by_hand, "");
}

TEST_F(RunTrainerTest, NamesAFolderThatItCannotPlayIn) {
  const auto play = [](const std::string& folder) {
    return RunCasePlan({.command = "true"}, Plan(0, 1), {}, folder);
  };
  EXPECT_THAT(play("/dev/null/x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/dev/null/x")));
  Played(kTrainer, Plan(0, 1));
  EXPECT_THAT(play(folder_ + "/played/here"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has something in it")));
}

}  // namespace
}  // namespace lockstep::conformance
