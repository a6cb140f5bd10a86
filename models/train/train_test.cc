// The trainer as its users run it: a binary, files, flags, and ranks that die.
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "models/io/model_tensors.h"
#include "models/io/safetensors.h"
#include "models/train/train_fixture.h"

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// How far apart two runs' weights are: the largest difference of any two.
double Distance(const NamedTensors& a, const NamedTensors& b) {
  double distance = 0;
  for (const auto& [name, tensor] : a) {
    const std::vector<float> x = tensor.Values<float>();
    const std::vector<float> y = b.at(name).Values<float>();
    for (size_t i = 0; i < x.size(); ++i) {
      distance = std::max<double>(distance, std::abs(x[i] - y.at(i)));
    }
  }
  return distance;
}

class TrainTest : public TrainFixture {
 protected:
  TrainTest() : TrainFixture("train_test") {}
};

TEST_F(TrainTest, EveryParallelismTrainsTheSameModel) {
  const std::string single = Train("single", {"--epochs=4"});
  const NamedTensors want = WeightsOf(single);
  const nlohmann::json want_metrics = MetricsOf(single);
  // What the runs agree on must have moved further than they may differ by.
  const double moved =
      Distance(want, WeightsOf(Train("first", {"--epochs=1"})));
  ASSERT_GT(moved, 1e-4);
  const std::map<std::string, std::vector<std::string>> runs = {
      {"dp2", {"--nproc=2", "--parallelism=dp"}},
      {"ddp2", {"--nproc=2"}},
      {"dp3", {"--nproc=3", "--parallelism=dp", "--bucket_kb=1"}},
      {"ddp3", {"--nproc=3", "--parallelism=ddp", "--bucket_kb=1000"}}};
  for (auto [name, flags] : runs) {
    flags.push_back("--epochs=4");
    const std::string dir = Train(name, flags);
    EXPECT_LE(Distance(WeightsOf(dir), want), moved / 100) << name;
    const nlohmann::json metrics = MetricsOf(dir);
    ASSERT_EQ(metrics["epochs"].size(), 4u);
    EXPECT_EQ(metrics["world_size"], flags[0].back() - '0');
    for (size_t i = 0; i < 4; ++i) {
      const nlohmann::json& epoch = metrics["epochs"][i];
      const nlohmann::json& other = want_metrics["epochs"][i];
      EXPECT_EQ(epoch["epoch"], i + 1);
      EXPECT_EQ(epoch["train_samples"], kTrain);
      EXPECT_EQ(epoch["test_samples"], kTest);
      EXPECT_NEAR(epoch["train_loss"], other["train_loss"], 1e-4) << name;
      EXPECT_NEAR(epoch["test_loss"], other["test_loss"], 1e-4) << name;
    }
  }
}

TEST_F(TrainTest, ResumesBitForBitAsIfItHadNotStopped) {
  const std::map<std::string, std::vector<std::string>> runs = {
      {"single", {}},
      {"ddp", {"--nproc=2", "--seed=5"}},
      {"dp", {"--nproc=2", "--parallelism=dp"}}};
  for (auto [name, flags] : runs) {
    flags.push_back("--epochs=3");
    const std::string whole = Train(name + "_whole", flags);
    flags.back() = "--epochs=2";
    const std::string part = Train(name + "_part", flags);
    const std::string checkpoint = part + "/weights.safetensors";
    EXPECT_NE(ReadText(checkpoint), ReadText(whole + "/weights.safetensors"));
    flags.back() = "--epochs=3";
    flags.push_back("--resume=" + checkpoint);
    const std::string rest = Train(name + "_rest", flags);
    EXPECT_EQ(ReadText(rest + "/weights.safetensors"),
              ReadText(whole + "/weights.safetensors"))
        << name;
    ASSERT_EQ(MetricsOf(rest)["epochs"].size(), 1u);
    EXPECT_EQ(MetricsOf(rest)["epochs"][0]["train_loss"],
              MetricsOf(whole)["epochs"][2]["train_loss"]);
  }
}

// Of a run into the folder that it goes on from.
TEST_F(TrainTest, ResumingKeepsTheEarlierEpochsOfItsFolder) {
  const std::string dir = Train("run", {"--epochs=2"});
  const nlohmann::json first = MetricsOf(dir)["epochs"];
  ASSERT_EQ(first.size(), 2u);
  const std::string second = dir + "/second.safetensors";
  std::filesystem::copy_file(dir + "/weights.safetensors", second);
  Train("run", {"--epochs=4", "--nproc=2",
                "--resume=" + dir + "/weights.safetensors"});
  // Again from the second, so that the third and fourth are not kept.
  Train("run", {"--epochs=3", "--resume=" + second});
  const nlohmann::json metrics = MetricsOf(dir);
  EXPECT_EQ(metrics["world_size"], 1);
  ASSERT_EQ(metrics["epochs"].size(), 3u);
  EXPECT_EQ(metrics["epochs"][0], first[0]);
  EXPECT_EQ(metrics["epochs"][1], first[1]);
  EXPECT_EQ(metrics["epochs"][2]["epoch"], 3);
  // Another run's are not: here one that began anew with another seed.
  Train("run", {"--epochs=1", "--seed=1"});
  Train("run", {"--epochs=3", "--resume=" + second});
  ASSERT_EQ(MetricsOf(dir)["epochs"].size(), 1u);
  EXPECT_EQ(MetricsOf(dir)["epochs"][0]["epoch"], 3);
}

TEST_F(TrainTest, NamesATensorThatDoesNotFitOnce) {
  const std::string path = root_ + "/transposed.safetensors";
  absl::StatusOr<Safetensors> content =
      ReadSafetensors(Train("run", {"--epochs=1"}) + "/weights.safetensors");
  ASSERT_THAT(content, IsOk());
  content->tensors["W3"].shape = {128, 800};
  ASSERT_THAT(WriteSafetensors(path, *content), IsOk());
  for (const char* nproc : {"--nproc=1", "--nproc=2"}) {
    const SubprocessResult result =
        Run({"--data_dir=" + data(), "--epochs=2", "--resume=" + path, nproc});
    EXPECT_EQ(result.exit_status, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "train: " + path +
                              ": tensor 'W3' is float32 [128, 800], the "
                              "model's is float32 [800, 128]\n");
  }
}

// One rank writes more than the limit; of two, already the memory that they
// share is more.
TEST_F(TrainTest, SaysWhatIsBeyondTheFileSizeLimit) {
  const std::string dir = Folder("limited");
  const auto run = [&](int nproc) {
    const std::string command = absl::StrCat(
        "ulimit -f 200 && exec models/train/train --epochs=1 --data_dir=",
        data(), " --output_dir=", dir, " --nproc=", nproc);
    return RunSubprocess({"/bin/sh", "-c", command}, kDeadline);
  };
  const SubprocessResult one = run(1);
  EXPECT_EQ(one.exit_status, 1);
  EXPECT_EQ(one.err,
            absl::StrCat("train: rank 0: ", dir, "/weights.safetensors.partial",
                         ": cannot write: beyond the file size limit "
                         "(ulimit -f)\n"));
  EXPECT_TRUE(std::filesystem::is_empty(dir));
  const SubprocessResult two = run(2);
  EXPECT_EQ(two.exit_status, 1);
  EXPECT_THAT(two.err, HasSubstr("shared by the ranks: File too large"));
  EXPECT_THAT(two.err, testing::Not(HasSubstr("SIGXFSZ")));
}

TEST_F(TrainTest, RefusesACheckpointThatDoesNotFit) {
  const std::string dir = Train("run", {"--epochs=1"});
  const std::string checkpoint = dir + "/weights.safetensors";
  const std::string text = root_ + "/text";
  std::ofstream(text) << "this is no checkpoint";
  struct Case {
    std::vector<std::string> flags;
    std::string message;
    int exit_status;  // 2 for flags that do not fit, 1 for files.
  };
  const std::vector<Case> cases = {
      {{"--resume=" + checkpoint, "--epochs=1"}, "--epochs=1: ", 2},
      {{"--resume=" + checkpoint, "--seed=3"}, "--seed=3: ", 2},
      {{"--output_dir=" + text}, "--output_dir=" + text + ": ", 2},
      {{"--resume=" + text}, text + ": ", 1},
      {{"--resume=" + root_ + "/missing"}, root_ + "/missing: ", 1}};
  for (auto [flags, message, exit_status] : cases) {
    for (const char* nproc : {"--nproc=1", "--nproc=2"}) {
      flags.push_back(nproc);
      flags.push_back("--data_dir=" + data());
      const SubprocessResult result = Run(flags);
      EXPECT_EQ(result.exit_status, exit_status) << message;
      EXPECT_THAT(result.err, StartsWith("train: " + message));
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
          << result.err;
    }
  }
}

TEST_F(TrainTest, NamesAWrongFlagInOneLineAndStartsNothing) {
  const std::string data_dir = "--data_dir=" + data();
  for (const std::string flag : {"--epochs=ten",
                                 "--epochs=0",
                                 "--batch_size=0",
                                 "--batch_size=-5",
                                 "--lr=0",
                                 "--lr=nan",
                                 "--lr=fast",
                                 "--nproc=0",
                                 "--nproc=65",
                                 "--nproc=two",
                                 "--parallelism=mpi",
                                 "--model=resnet",
                                 "--dataset=cifar",
                                 "--sync_bn",
                                 "--train_samples=0",
                                 "--train_samples=201",
                                 "--train_samples=few",
                                 "--test_samples=-1",
                                 "--test_samples=38",
                                 "--seed=-1",
                                 "--bucket_kb=0",
                                 "--timeout_s=0",
                                 "--threads_per_rank=0",
                                 "--no_such_flag",
                                 "--parallelism=single",
                                 "stray"}) {
    const SubprocessResult result = Run({data_dir, "--nproc=2", flag});
    EXPECT_EQ(result.exit_status, 2) << flag;
    EXPECT_EQ(result.out, "") << flag;
    EXPECT_THAT(result.err, StartsWith("train: "));
    EXPECT_THAT(result.err, HasSubstr(flag.substr(0, flag.find('='))));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
        << result.err;
  }
}

// A launched rank reads the data by itself.
TEST_F(TrainTest, NamesTooManySamplesAsALaunchedRank) {
  const SubprocessResult result =
      Run({"--data_dir=" + data(), "--test_samples=38"},
          {{"RANK", "0"},
           {"WORLD_SIZE", "1"},
           {"LOCKSTEP_RENDEZVOUS", root_ + "/meet"}});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_EQ(result.err,
            "train: rank 0: --test_samples=38: must be in [1, 37]\n");
}

TEST_F(TrainTest, TrainsOnTheFirstSamplesAlone) {
  const std::string all = Train("all", {"--epochs=2"});
  const std::string same =
      Train("same", {"--epochs=2", "--train_samples=200", "--test_samples=37"});
  EXPECT_EQ(ReadText(same + "/weights.safetensors"),
            ReadText(all + "/weights.safetensors"));
  const std::string first =
      Train("first", {"--epochs=2", "--train_samples=70", "--test_samples=5"});
  const nlohmann::json metrics = MetricsOf(first);
  EXPECT_EQ(metrics["train_samples"], 70);
  EXPECT_EQ(metrics["test_samples"], 5);
  EXPECT_EQ(metrics["sync_bn"], false);
  EXPECT_EQ(metrics["epochs"][1]["train_samples"], 70);
  EXPECT_EQ(metrics["epochs"][1]["test_samples"], 5);
  // The files of a smaller data set begin as those of a larger one do.
  const std::string small = Folder("small");
  WriteIdxFiles(small, 70, 1);
  EXPECT_EQ(
      ReadText(Train("small_data", {"--epochs=2", "--data_dir=" + small}) +
               "/weights.safetensors"),
      ReadText(first + "/weights.safetensors"));
  EXPECT_NE(ReadText(first + "/weights.safetensors"),
            ReadText(all + "/weights.safetensors"));
}

TEST_F(TrainTest, ExplainsItselfWithoutTraining) {
  const SubprocessResult result = Run({"--nproc=2", "--help"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.err, "");
  for (const char* flag :
       {"--model", "--dataset", "--data_dir", "--epochs", "--batch_size",
        "--lr", "--nproc", "--parallelism", "--sync_bn", "--seed",
        "--output_dir", "--resume", "--bucket_kb", "--timeout_s",
        "--threads_per_rank", "--train_samples", "--test_samples"}) {
    EXPECT_THAT(result.out, HasSubstr(flag));
  }
}

TEST_F(TrainTest, NamesAMissingDataFolderOnce) {
  const std::string missing = root_ + "/nothing";
  for (const std::string nproc : {"--nproc=1", "--nproc=2"}) {
    const SubprocessResult result = Run({nproc, "--data_dir=" + missing});
    EXPECT_EQ(result.exit_status, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(missing));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
        << result.err;
  }
}

TEST_F(TrainTest, TakesPathsRelativeToWhereBazelWasRun) {
  const SubprocessResult result =
      Run({"--data_dir=data", "--output_dir=relative/out", "--epochs=1"},
          {{"BUILD_WORKING_DIRECTORY", root_}});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_TRUE(
      std::filesystem::exists(root_ + "/relative/out/weights.safetensors"));
}

// As torchrun --no-python starts ranks.
TEST_F(TrainTest, JoinsTheRanksOfAnotherLauncher) {
  const std::string temp = Folder("tmp");
  const std::string dir = Folder("out");
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(Start({"--data_dir=" + data(), "--batch_size=64",
                           "--lr=0.5", "--epochs=2", "--output_dir=" + dir},
                          {{"RANK", absl::StrCat(rank)},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", absl::StrCat(rank)},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", "29500"},
                           {"TMPDIR", temp}}));
  }
  for (Subprocess& rank : ranks) {
    EXPECT_EQ(rank.Wait(kDeadline), 0) << rank.err();
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp));
  EXPECT_EQ(ReadText(dir + "/weights.safetensors"),
            ReadText(Train("ours", {"--nproc=2", "--epochs=2"}) +
                     "/weights.safetensors"));
}

TEST_F(TrainTest, RefusesFlagsThatContradictTheLauncher) {
  for (const std::string flag :
       {"--nproc=3", "--nproc=1", "--parallelism=dp", "--parallelism=single"}) {
    const SubprocessResult result = Run({"--data_dir=" + data(), flag},
                                        {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    EXPECT_EQ(result.exit_status, 2) << flag;
    EXPECT_THAT(result.err, StartsWith("train: " + flag));
  }
}

// Reaps what has become a child of this process, until there is nothing left;
// false at the deadline.
bool AwaitNoChildren(absl::Duration deadline) {
  const absl::Time end = absl::Now() + deadline;
  while (absl::Now() < end) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0) return errno == ECHILD;
    if (pid == 0) poll(nullptr, 0, 2);  // Leaves the core to those that end.
  }
  return false;
}

TEST_F(TrainTest, LeavesNothingTwoSecondsAfterTheDeathOfTheTrainer) {
  constexpr int kRanks = 3;
  const std::string temp = Folder("tmp");
  Subprocess program = StartEndless({absl::StrCat("--nproc=", kRanks)}, temp);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    pids.push_back(FindRank(program, rank));
    ASSERT_GT(pids.back(), 0);
    ASSERT_EQ(kill(pids.back(), 0), 0);  // It is seen while it lives.
  }
  const absl::Time killed = absl::Now();
  ASSERT_EQ(kill(program.pid(), SIGKILL), 0);
  EXPECT_EQ(program.Wait(kDeadline), 128 + SIGKILL);
  EXPECT_TRUE(AwaitNoChildren(absl::Seconds(2) - (absl::Now() - killed)));
  for (const pid_t pid : pids) {
    EXPECT_EQ(kill(pid, 0), -1);
    EXPECT_EQ(errno, ESRCH);
  }
  EXPECT_TRUE(std::filesystem::is_empty(temp));
}

TEST_F(TrainTest, EndsWithinTwoSecondsOfTheDeathOfARankAndLeavesNothing) {
  for (const int victim : {0, 1, 2}) {
    const std::string temp = Folder(absl::StrCat("tmp", victim));
    Subprocess program = StartEndless({"--nproc=3"}, temp);
    ExpectEndAfterDeath(program, victim, temp);
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("lockstep")));
    }
  }
}

// Sanitizers need more address space than any limit that could be set.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && \
    !defined(ABSL_HAVE_THREAD_SANITIZER)

// The trainer where there is too little memory.
class TrainMemoryTest : public TrainFixture {
 protected:
  TrainMemoryTest() : TrainFixture("train_memory_test") {}

  // One step in an address space of which the program and two images take half;
  // 200 images alone take more than all of it.
  SubprocessResult RunLimited(int batch_size) {
    constexpr int kKibibytes = 768 << 10;
    const std::string command = absl::StrCat(
        "ulimit -v ", kKibibytes, " && exec models/train/train",
        " --model=resnet18 --epochs=1 --test_samples=1 --data_dir=", data(),
        " --train_samples=", batch_size, " --batch_size=", batch_size);
    return RunSubprocess({"/bin/sh", "-c", command}, kDeadline);
  }
};

TEST_F(TrainMemoryTest, SaysThatABatchIsTooLarge) {
  // The control: what ends the run below is the batch.
  const SubprocessResult small = RunLimited(2);
  EXPECT_EQ(small.exit_status, 0) << small.err;
  const SubprocessResult large = RunLimited(200);
  EXPECT_EQ(large.exit_status, 1);
  EXPECT_THAT(large.err, StartsWith("train: rank 0: no memory for a batch of "
                                    "200: it needs "));
  EXPECT_THAT(large.err, EndsWith(" MiB of activations\n"));
}

#endif

}  // namespace
}  // namespace lockstep
