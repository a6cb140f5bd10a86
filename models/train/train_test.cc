// Tests of the trainer as users run it: a binary, files, flags, and ranks that
// die.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/process.h"
#include "base/run_command.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "collectives/launch/launcher.h"
#include "collectives/rendezvous/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/data/idx_files.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

using Flags = std::vector<std::string>;

constexpr char kProgram[] = "models/train/train";
constexpr absl::Duration kDeadline = absl::Seconds(120);
constexpr int64_t kTrain = 200;  // Images of the data set.
constexpr int64_t kTest = 37;

std::string ReadText(const std::string& path) {
  return ReadFile(path).value_or("");
}

// Returns the weights file that a run left in its folder.
std::string WeightsText(const std::string& dir) {
  return ReadText(dir + "/weights.safetensors");
}

NamedTensors WeightsOf(const std::string& dir) {
  const absl::StatusOr<Safetensors> content =
      ReadSafetensors(dir + "/weights.safetensors");
  EXPECT_THAT(content, IsOk());
  return content.ok() ? content->tensors : NamedTensors();
}

nlohmann::json MetricsOf(const std::string& dir) {
  return nlohmann::json::parse(ReadText(dir + "/metrics.json"), nullptr,
                               /*allow_exceptions=*/false);
}

// Returns the names of the files with an optimizer's state in a folder.
std::set<std::string> StateFiles(const std::string& dir) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "optimizer.")) names.insert(name);
  }
  return names;
}

// Returns the process of the run's rank `rank`; -1 if there is none.
pid_t FindRank(const Subprocess& program, int rank) {
  for (const pid_t pid : ProcessesWithVariable(absl::StrCat("RANK=", rank))) {
    if (DescendsFrom(pid, program.pid())) return pid;
  }
  return -1;
}

// Expects that a failed run printed one line, which begins with `message`.
void ExpectError(const SubprocessResult& result, int exit_status,
                 const std::string& message) {
  EXPECT_EQ(result.exit_status, exit_status) << message;
  EXPECT_EQ(result.out, "") << message;
  EXPECT_THAT(result.err, StartsWith("train: " + message));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
}

// A data set in files, and runs of the train command.
class TrainTest : public testing::Test {
 protected:
  TrainTest() : root_(absl::StrCat(testing::TempDir(), "/train_test")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(data());
    WriteIdxFiles(data(), kTrain, kTest);
  }

  std::string data() const { return root_ + "/data"; }

  // Returns a new folder.
  std::string Folder(const std::string& name) const {
    const std::string path = absl::StrCat(root_, "/", name);
    std::filesystem::create_directories(path);
    return path;
  }

  Subprocess Start(Flags flags, const Environment& environment = {}) {
    flags.insert(flags.begin(), {kProgram, "--data_dir=" + data()});
    absl::StatusOr<Subprocess> program =
        Subprocess::Start(flags, {.environment = environment});
    EXPECT_THAT(program, IsOk());
    return *std::move(program);
  }

  SubprocessResult Run(Flags flags, const Environment& environment = {}) {
    flags.insert(flags.begin(), {kProgram, "--data_dir=" + data()});
    return RunSubprocess(flags, kDeadline, {.environment = environment});
  }

  // Trains into a folder, which it returns; expects success.
  std::string Train(const std::string& name, Flags flags) {
    const std::string dir = absl::StrCat(root_, "/", name);
    flags.insert(flags.begin(),
                 {"--batch_size=64", "--lr=0.5", "--output_dir=" + dir});
    const SubprocessResult result = Run(std::move(flags));
    EXPECT_EQ(result.exit_status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return dir;
  }

  // Trains for `epochs` epochs without interruption; then for `part` epochs,
  // and from there for all others. Returns the folders of all three runs.
  // Expects the same weights and losses of the first and the last run.
  std::vector<std::string> ExpectToResume(const std::string& name, Flags flags,
                                          int part, int epochs) {
    const auto train = [&](const char* run, int last) {
      flags.push_back(absl::StrCat("--epochs=", last));
      return Train(name + run, flags);
    };
    std::vector<std::string> dirs = {train("_whole", epochs),
                                     train("_part", part)};
    EXPECT_NE(WeightsText(dirs[1]), WeightsText(dirs[0]));
    flags.push_back("--resume=" + dirs[1] + "/weights.safetensors");
    dirs.push_back(train("_rest", epochs));
    EXPECT_TRUE(WeightsText(dirs[2]) == WeightsText(dirs[0])) << name;
    const nlohmann::json rest = MetricsOf(dirs[2]);
    const nlohmann::json whole = MetricsOf(dirs[0]);
    EXPECT_EQ(rest["epochs"].size(), epochs - part);
    for (const char* loss : {"train_loss", "test_loss"}) {
      EXPECT_EQ(rest["epochs"][0][loss], whole["epochs"][part][loss]) << name;
    }
    return dirs;
  }

  // Starts a run of more epochs than the test will wait for, and waits for the
  // end of its first epoch. `temp` is the folder for temporary files. Processes
  // that the run leaves behind become children of this process.
  Subprocess StartEndless(Flags flags, const std::string& temp) {
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    flags.push_back("--epochs=1000000");
    Subprocess program = Start(std::move(flags), {{"TMPDIR", temp}});
    EXPECT_TRUE(program.AwaitOutput("test accuracy", kDeadline))
        << program.err();
    return program;
  }

  // Kills rank `victim` of an endless run. Expects that the run then ends
  // within two seconds, and that the launcher and another rank name the victim.
  // No process and no file in `temp` may be left.
  void ExpectEndAfterDeath(Subprocess& program, int victim,
                           const std::string& temp) {
    const pid_t pid = FindRank(program, victim);
    ASSERT_GT(pid, 0);
    const absl::Time killed = absl::Now();
    ASSERT_TRUE(SendSignal(pid, SIGKILL));
    EXPECT_EQ(program.Wait(kDeadline), 128 + SIGKILL);
    EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
    EXPECT_THAT(program.err(),
                HasSubstr(absl::StrCat("rank ", victim, " (pid ", pid,
                                       ") was killed by signal 9")));
    const int other = victim == 0 ? 1 : 0;
    EXPECT_THAT(program.err(),
                testing::ContainsRegex(absl::StrCat(
                    "train: rank ", other, ": .*rank ", victim, "[^0-9]")));
    // Only the program itself waits to be reaped.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), program.pid());
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_TRUE(std::filesystem::is_empty(temp));
  }

  const std::string root_;
};

// Returns the largest difference of two values in the tensors of two runs whose
// names contain `part`; infinity if a value is NaN. If `relative`, differences
// are relative to the largest value of their tensor.
double Distance(const NamedTensors& a, const NamedTensors& b,
                const std::string& part = "", bool relative = false) {
  double distance = 0;
  for (const auto& [name, tensor] : a) {
    if (!absl::StrContains(name, part)) continue;
    const std::vector<float> x = tensor.Values<float>();
    const std::vector<float> y = b.at(name).Values<float>();
    double largest = 0, difference = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double apart = std::abs(x[i] - y.at(i));
      largest = std::max<double>(largest, std::abs(x[i]));
      difference = std::max(
          difference,
          std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
    }
    distance = std::max(distance, relative ? difference / largest : difference);
  }
  return distance;
}

// Returns the relative distance of the running statistics.
double StatisticsDistance(const NamedTensors& a, const NamedTensors& b) {
  return Distance(a, b, "running_", /*relative=*/true);
}

TEST_F(TrainTest, EveryParallelismTrainsTheSameModel) {
  const std::string single = Train("single", {"--epochs=4"});
  const NamedTensors want = WeightsOf(single);
  const nlohmann::json want_metrics = MetricsOf(single);
  // The runs differ by rounding. The two limits below are chosen, not derived:
  // weights differ by at most a hundredth of the distance that they moved, and
  // losses by at most 1e-4.
  // //conformance:training_equivalence_test compares with measured rounding.
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
  ExpectToResume("single", {}, 2, 3);
  ExpectToResume("ddp", {"--nproc=2", "--seed=5"}, 2, 3);
  ExpectToResume("dp", {"--nproc=2", "--parallelism=dp"}, 2, 3);
}

TEST_F(TrainTest, ResumesTheOptimizersState) {
  const Flags adamw = {"--optimizer=adamw", "--weight_decay=0.01",
                       "--adam_epsilon=0.5", "--nproc=2"};
  const Flags momentum = {"--momentum=0.5", "--weight_decay=0.001", "--nproc=2",
                          "--parallelism=dp"};
  for (const auto& [name, flags] :
       {std::pair("adamw", adamw), {"momentum", momentum}}) {
    const std::vector<std::string> dirs = ExpectToResume(name, flags, 2, 3);
    for (const std::string& dir : dirs) EXPECT_EQ(StateFiles(dir).size(), 1u);
    EXPECT_EQ(StateFiles(dirs[2]), StateFiles(dirs[0])) << name;
    EXPECT_NE(StateFiles(dirs[1]), StateFiles(dirs[0])) << name;
  }
  const nlohmann::json metrics = MetricsOf(root_ + "/adamw_rest");
  EXPECT_EQ(metrics["optimizer"], "adamw");
  EXPECT_EQ(metrics["weight_decay"], 0.01);
  EXPECT_EQ(metrics["adam_beta1"], 0.9);
  EXPECT_EQ(MetricsOf(root_ + "/momentum_rest")["momentum"], 0.5);
}

// A checkpoint of plain SGD has no state; others have one beside them.
TEST_F(TrainTest, RefusesToResumeWithAnotherOptimizerOrWithoutState) {
  const std::string plain =
      Train("plain", {"--epochs=1"}) + "/weights.safetensors";
  const std::string dir =
      Train("adamw", {"--epochs=1", "--optimizer=adamw", "--weight_decay=0.5"});
  const std::string adamw = dir + "/weights.safetensors";
  const std::string state = dir + "/" + *StateFiles(dir).begin();
  const auto expect = [&](const std::string& path, Flags flags, int exit_status,
                          const std::string& message) {
    flags.insert(flags.end(), {"--epochs=2", "--resume=" + path});
    for (const char* const ranks : {"--nproc=1", "--nproc=2"}) {
      flags.push_back(ranks);
      ExpectError(Run(flags), exit_status, message);
      flags.pop_back();
    }
  };
  const Flags same = {"--optimizer=adamw", "--weight_decay=0.5"};
  expect(plain, {"--momentum=0.9"}, 2,
         "--momentum=0.9: " + plain + " comes from a run with --momentum=0\n");
  expect(adamw, {}, 2,
         "--optimizer=sgd: " + adamw +
             " comes from a run with --optimizer=adamw\n");
  expect(adamw, {"--optimizer=adamw"}, 2, "--weight_decay=0: " + adamw);
  std::filesystem::resize_file(state, 1000);
  expect(adamw, same, 1,
         state + ": is not the optimizer's state that " + adamw);
  std::filesystem::remove(state);
  expect(adamw, same, 1, state + ": ");
}

TEST_F(TrainTest, ResumingKeepsTheEarlierEpochsOfItsFolder) {
  const std::string dir = Train("run", {"--epochs=2"});
  const nlohmann::json first = MetricsOf(dir)["epochs"];
  ASSERT_EQ(first.size(), 2u);
  const std::string second = dir + "/second.safetensors";
  std::filesystem::copy_file(dir + "/weights.safetensors", second);
  Train("run", {"--epochs=4", "--nproc=2",
                "--resume=" + dir + "/weights.safetensors"});
  // The run resumes from the second epoch again, so the old third and fourth
  // are dropped.
  Train("run", {"--epochs=3", "--resume=" + second});
  const nlohmann::json metrics = MetricsOf(dir);
  EXPECT_EQ(metrics["world_size"], 1);
  ASSERT_EQ(metrics["epochs"].size(), 3u);
  EXPECT_EQ(metrics["epochs"][0], first[0]);
  EXPECT_EQ(metrics["epochs"][1], first[1]);
  EXPECT_EQ(metrics["epochs"][2]["epoch"], 3);
  // The epochs of another run, which began anew with another seed, are dropped
  // too.
  Train("run", {"--epochs=1", "--seed=1"});
  Train("run", {"--epochs=3", "--resume=" + second});
  ASSERT_EQ(MetricsOf(dir)["epochs"].size(), 1u);
  EXPECT_EQ(MetricsOf(dir)["epochs"][0]["epoch"], 3);
}

TEST_F(TrainTest, TrainsOnTheFirstSamplesAlone) {
  const std::string all = Train("all", {"--epochs=2"});
  const std::string same =
      Train("same", {"--epochs=2", "--train_samples=200", "--test_samples=37"});
  EXPECT_EQ(WeightsText(same), WeightsText(all));
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
      WeightsText(Train("small_data", {"--epochs=2", "--data_dir=" + small})),
      WeightsText(first));
  EXPECT_NE(WeightsText(first), WeightsText(all));
}

// With one rank the files are larger than the limit; with two, the ranks'
// shared memory already is.
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

// The memory of all ranks' gradients together exceeds a limit. The group's own
// memory and the checkpoint do not.
TEST_F(TrainTest, WarnsOnceThatTheGroupHasNoMemoryForGradients) {
  constexpr int64_t kLimit = 18 << 20;
  const Flags flags = {"--model=mlp:width=4096,depth=1", "--nproc=2",
                       "--epochs=2"};
  const std::string shared = Train("shared", flags);  // Without a warning.
  const auto bytes = static_cast<int64_t>(WeightsText(shared).size());
  ASSERT_LT(bytes, kLimit);
  ASSERT_GT(2 * bytes, kLimit);

  const std::string dir = Folder("ordinary");
  const std::string command =
      absl::StrCat("ulimit -f ", kLimit / 512, " && exec ", kProgram,
                   " --batch_size=64", " --lr=0.5 --data_dir=", data(),
                   " --output_dir=", dir, " ", absl::StrJoin(flags, " "));
  const SubprocessResult result =
      RunSubprocess({"/bin/sh", "-c", command}, kDeadline);
  EXPECT_EQ(result.exit_status, 0) << result.err;
  const int64_t gradients = (784 * 4096 + 4096 + 4096 * 10 + 10) * 4;
  EXPECT_THAT(result.err,
              StartsWith(absl::StrCat(
                  "train: warning: the group has no memory for ", gradients,
                  " bytes of gradients on each rank (rank 0: ftruncate of ")));
  EXPECT_THAT(result.err, EndsWith("): they stay in ordinary memory, where "
                                   "all-reduce is slower\n"));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  EXPECT_TRUE(WeightsText(dir) == WeightsText(shared));
}

TEST_F(TrainTest, RefusesACheckpointThatDoesNotFit) {
  const std::string checkpoint =
      Train("run", {"--epochs=1"}) + "/weights.safetensors";
  const std::string text = root_ + "/text";
  std::ofstream(text) << "this is no checkpoint";
  const std::string transposed = root_ + "/transposed.safetensors";
  absl::StatusOr<Safetensors> content = ReadSafetensors(checkpoint);
  ASSERT_THAT(content, IsOk());
  content->tensors["W3"].shape = {128, 800};
  ASSERT_THAT(WriteSafetensors(transposed, *content), IsOk());
  struct Case {
    Flags flags;
    std::string message;
    int exit_status;  // 2 for flags that do not fit, 1 for files.
  };
  const std::vector<Case> cases = {
      {{"--resume=" + checkpoint, "--epochs=1"}, "--epochs=1: ", 2},
      {{"--resume=" + checkpoint, "--seed=3"}, "--seed=3: ", 2},
      {{"--resume=" + checkpoint, "--model=resnet18_d2l"},
       "--model=resnet18_d2l: " + checkpoint + " holds a lenet\n",
       2},
      {{"--output_dir=" + text}, "--output_dir=" + text + ": ", 2},
      {{"--resume=" + text}, text + ": ", 1},
      {{"--resume=" + root_ + "/missing"}, root_ + "/missing: ", 1},
      {{"--resume=" + transposed, "--epochs=2"},
       transposed +
           ": tensor 'W3' is float32 [128, 800], but the model's is float32 "
           "[800, 128]\n",
       1},
      {{"--data_dir=" + root_ + "/nothing"},
       "data folder '" + root_ + "/nothing' does not exist",
       1}};
  for (auto [flags, message, exit_status] : cases) {
    flags.push_back("--nproc=1");
    ExpectError(Run(flags), exit_status, message);
    flags.back() = "--nproc=2";
    ExpectError(Run(flags), exit_status, message);
  }
}

// Each network trains on synthetic images, with its own shape and number of
// classes.
TEST_F(TrainTest, TrainsEveryKindOfNetworkOnSyntheticImages) {
  const std::vector<Flags> networks = {
      {"--model=resnet34:width=4", "--image_size=33", "--in_channels=3",
       "--sync_bn"},
      {"--model=vit:patch=4,depth=2,width=16,heads=2,dropout=0.1",
       "--image_size=12x20", "--channels=1"},
      {"--model=resnet18_d2l:width=4", "--image_size=11x8", "--in_channels=5",
       "--augment=crop,flip"},
      {"--model=mlp:width=16", "--image_size=9x7"}};
  for (Flags flags : networks) {
    flags.insert(flags.end(),
                 {"--dataset=synthetic", "--num_classes=7", "--nproc=2",
                  "--train_samples=24", "--test_samples=9", "--epochs=1"});
    const std::string dir = Train("synthetic", flags);
    EXPECT_EQ(MetricsOf(dir)["epochs"].size(), 1u) << flags[0];
    const NamedTensors weights = WeightsOf(dir);
    const bool has_head = std::ranges::any_of(weights, [](const auto& tensor) {
      return tensor.second.shape == std::vector<int64_t>{7};
    });
    EXPECT_TRUE(has_head) << flags[0];
  }
}

// Two ranks train a network whose channels fill blocks of 16.
TEST_F(TrainTest, ConvolvesAsRankZeroAndTheCheckpointDecide) {
  const bool has_winograd =
      CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok();
  const Flags flags = {"--model=resnet18_d2l:width=16",
                       "--dataset=synthetic",
                       "--image_size=12",
                       "--nproc=2",
                       "--train_samples=64",
                       "--test_samples=9"};
  const auto train = [&](const std::string& name, Flags more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return Train(name, more);
  };
  const std::string direct = train(
      "direct", {"--epochs=2", "--deterministic_across_machines", "--lr=0.01"});
  EXPECT_EQ(MetricsOf(direct)["convolution"], "direct");
  EXPECT_EQ(WeightsText(train("direct_again", {"--epochs=2", "--lr=0.01",
                                               "--convolution=direct"})),
            WeightsText(direct));
  Flags wanted = flags;
  wanted.insert(wanted.end(), {"--epochs=1", "--convolution=winograd",
                               "--deterministic_across_machines"});
  if (!has_winograd) {
    ExpectError(Run(wanted), 2, "--convolution=winograd: oneDNN ");
    return;
  }
  ExpectError(Run(wanted), 2, "--deterministic_across_machines=true: ");
  const std::string winograd =
      train("winograd", {"--epochs=2", "--convolution=winograd", "--lr=0.01"});
  EXPECT_EQ(MetricsOf(winograd)["convolution"], "winograd");
  EXPECT_NE(WeightsText(winograd), WeightsText(direct));
  // A resumed run convolves as its checkpoint's run did.
  const std::string half =
      train("half", {"--epochs=1", "--convolution=winograd", "--lr=0.01"});
  const std::string rest = train(
      "rest",
      {"--epochs=2", "--lr=0.01", "--resume=" + half + "/weights.safetensors"});
  EXPECT_EQ(WeightsText(rest), WeightsText(winograd));
  wanted = flags;
  wanted.insert(wanted.end(), {"--epochs=1", "--convolution=winograd",
                               "--batch_size=64", "--verbose"});
  const SubprocessResult verbose = Run(wanted);
  EXPECT_EQ(verbose.exit_status, 0) << verbose.err;
  EXPECT_THAT(verbose.out, HasSubstr("the layout of activations is nchw16c"));
  EXPECT_THAT(verbose.out, ContainsRegex("resnet_block1.0.conv1 +winograd"));
}

// Files of first weights: those of the network, and weights that do not fit it.
TEST_F(TrainTest, BeginsWithWeightsOfAFileOrNamesTheTensor) {
  const Flags flags = {"--model=mlp:width=8", "--dataset=synthetic",
                       "--image_size=6",      "--in_channels=1",
                       "--train_samples=64",  "--test_samples=8",
                       "--batch_size=64",     "--epochs=1",
                       "--lr=1e-30"};  // The weights do not change.
  const auto with = [&](Flags more) {
    Flags all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  absl::StatusOr<Safetensors> content = ReadSafetensors(
      Train("first", with({"--seed=5"})) + "/weights.safetensors");
  ASSERT_THAT(content, IsOk());
  const std::string path = root_ + "/weights";
  const auto refused = [&](const Safetensors& weights, const Flags& more,
                           const std::string& message) {
    ASSERT_THAT(WriteSafetensors(path, weights), IsOk());
    Flags all = with(more);
    all.push_back("--weights=" + path);
    ExpectError(Run(all), 1, path + message);
  };
  ASSERT_THAT(WriteSafetensors(path, {{}, content->tensors}), IsOk());
  const std::string again = Train("again", with({"--weights=" + path}));
  EXPECT_TRUE(WeightsOf(again) == content->tensors);
  refused(
      *content, {"--num_classes=1000"},
      ": tensor '5.bias' is float32 [10], but the model's is float32 [1000]\n");
  refused(*content, {"--model=lenet", "--image_size=28"},
          ": has no tensor 'W1'\n");
  Safetensors bad = *content;
  const float nan = NAN;
  std::memcpy(&bad.tensors["3.weight"].data[4 * sizeof(float)], &nan,
              sizeof(nan));
  refused(bad, {}, ": tensor '3.weight' has nan at element 4\n");
  bad = *content;
  bad.tensors["3.bias"].type = DataType::kInt32;
  refused(bad, {},
          ": tensor '3.bias' is int32 [8], but the model's is float32 [8]\n");
}

TEST_F(TrainTest, NamesTheModelThatDoesNotFitTheImages) {
  for (const std::string nproc : {"--nproc=1", "--nproc=2"}) {
    ExpectError(Run({"--model=vit_tiny_patch16_224", nproc}), 2,
                "--model=vit_tiny_patch16_224: vit_tiny_patch16_224: "
                "patch_embed: patches of 16x16 do not divide images of 28x28");
  }
}

TEST_F(TrainTest, ExplainsItselfAndNamesAWrongFlagInOneLine) {
  const SubprocessResult help = Run({"--nproc=2", "--help"});
  ExpectUsage({help.exit_status, help.out}, "train");
  EXPECT_EQ(help.err, "");
  constexpr char kFlags[] =
      "--epochs=ten --epochs=0 --batch_size=0 --batch_size=-5 --lr=0 --lr=nan "
      "--lr=fast --nproc=0 --nproc=65 --nproc=two --parallelism=mpi "
      "--model=resnet --dataset=cifar --sync_bn --train_samples=0 "
      "--train_samples=201 --train_samples=few --test_samples=-1 "
      "--test_samples=38 --seed=-1 --bucket_kb=-1 --timeout_s=0 "
      "--optimizer=lamb --momentum=-1 --weight_decay=nan --adam_beta1=0.5 "
      "--threads_per_rank=0 --convolution=fft --resize=-1 --resize=30 "
      "--interpolation=nearest --no_such_flag "
      "--parallelism=single stray";
  const Flags flags = absl::StrSplit(kFlags, ' ');
  for (const std::string& flag : flags) {
    const SubprocessResult result = Run({"--nproc=2", flag});
    ExpectError(result, 2, "");
    EXPECT_THAT(result.err, HasSubstr(flag.substr(0, flag.find('='))));
  }
}

TEST_F(TrainTest, RefusesFlagsThatContradictTheLauncherOrTheData) {
  for (const std::string flag :
       {"--nproc=3", "--nproc=1", "--parallelism=dp", "--parallelism=single"}) {
    ExpectError(Run({flag}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), 2, flag);
  }
  ExpectError(Run({"--world_size=3"}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), 2,
              "--nproc=3: a launcher has started 2 ranks\n");
  // A launched rank reads the data by itself.
  ExpectError(
      Run({"--test_samples=38"}, {{"RANK", "0"},
                                  {"WORLD_SIZE", "1"},
                                  {"LOCKSTEP_RENDEZVOUS", root_ + "/meet"}}),
      2, "rank 0: --test_samples=38: must be in [1, 37]\n");
}

TEST_F(TrainTest, TakesPathsRelativeToWhereBazelWasRun) {
  const SubprocessResult result =
      Run({"--data_dir=data", "--output_dir=relative/out", "--epochs=1"},
          {{"BUILD_WORKING_DIRECTORY", root_}});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_TRUE(
      std::filesystem::exists(root_ + "/relative/out/weights.safetensors"));
}

// Ranks are started as torchrun --no-python does: on one host, and on two
// hosts, which meet over TCP.
TEST_F(TrainTest, JoinsTheRanksOfAnotherLauncher) {
  const std::string ours =
      WeightsText(Train("ours", {"--nproc=2", "--epochs=2"}));
  for (const int local : {2, 1}) {
    const std::string temp = Folder(absl::StrCat("tmp", local));
    const std::string dir = Folder(absl::StrCat("out", local));
    if (local == 1 && !CanProve()) GTEST_SKIP() << "built without OpenSSL";
    const ReservedPort port = ReservePort();
    std::vector<Subprocess> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(Start(
          {"--batch_size=64", "--lr=0.5", "--epochs=2", "--output_dir=" + dir},
          {{"RANK", absl::StrCat(rank)},
           {"WORLD_SIZE", "2"},
           {"LOCAL_RANK", absl::StrCat(rank % local)},
           {"LOCAL_WORLD_SIZE", absl::StrCat(local)},
           {"MASTER_ADDR", "127.0.0.1"},
           {"MASTER_PORT", absl::StrCat(port.port)},
           {"TMPDIR", temp}}));
    }
    for (Subprocess& rank : ranks) {
      EXPECT_EQ(rank.Wait(kDeadline), 0) << rank.err();
    }
    EXPECT_EQ(ranks[1].out(), "");
    EXPECT_TRUE(std::filesystem::is_empty(temp));
    EXPECT_EQ(WeightsText(dir), ours) << local << " ranks on a host";
  }
}

// Reaps the children of this process until none is left; returns false at the
// deadline.
bool AwaitNoChildren(absl::Duration deadline) {
  const absl::Time end = absl::Now() + deadline;
  while (absl::Now() < end) {
    const pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0) return errno == ECHILD;
    if (pid == 0) poll(nullptr, 0, 2);  // Leaves the core to the children.
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
    ASSERT_TRUE(ReadProcessStat(pids.back()).has_value());  // While it lives.
  }
  const absl::Time killed = absl::Now();
  ASSERT_TRUE(SendSignal(program.pid(), SIGKILL));
  EXPECT_EQ(program.Wait(kDeadline), 128 + SIGKILL);
  EXPECT_TRUE(AwaitNoChildren(absl::Seconds(2) - (absl::Now() - killed)));
  for (const pid_t pid : pids) {
    EXPECT_FALSE(ReadProcessStat(pid).has_value()) << pid;
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

TEST(StatisticsDistanceTest, DoesNotLoseANan) {
  const auto statistics = [](const std::vector<float>& values) {
    return NamedTensors{
        {"running_mean", NamedTensor::Of({static_cast<int64_t>(values.size())},
                                         std::span(values))}};
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(StatisticsDistance(statistics({1, 2, 4}), statistics({1, nan, 4})),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(StatisticsDistance(statistics({1, 2, 4}), statistics({1, 3, 4})),
            0.25);
}

// Tests of networks with batch norm: statistics of a rank's own part of the
// batch or of all ranks' parts, in files, resumed, and with dead ranks.
class TrainBatchNormTest : public TrainTest,
                           public testing::WithParamInterface<const char*> {
 protected:
  // Returns the flags for two steps an epoch, with the additional flags `more`,
  // separated by spaces.
  Flags WithFlags(const std::string& more) const {
    Flags flags = {absl::StrCat("--model=", GetParam()), "--train_samples=12",
                   "--test_samples=5", "--batch_size=8", "--lr=0.05"};
    const Flags rest = absl::StrSplit(more, ' ');
    flags.insert(flags.end(), rest.begin(), rest.end());
    return flags;
  }

  // A slice takes a few runs of resnet18_d2l.
  bool RunsOnlyExhaustively() const {
    return !IsExhaustive() && std::string(GetParam()) == "resnet18_d2l";
  }

  // Returns the number of batches that the first batch norm has seen.
  int64_t BatchesOf(const NamedTensors& weights) {
    const bool lenet = std::string(GetParam()) == "lenet_bn";
    const NamedTensor& tensor =
        weights.at(lenet ? "bn1.num_batches_tracked" : "1.num_batches_tracked");
    EXPECT_EQ(tensor.type, DataType::kInt64);
    EXPECT_TRUE(tensor.shape.empty());
    return tensor.Values<int64_t>().at(0);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, TrainBatchNormTest,
                         testing::Values("lenet_bn", "resnet18_d2l"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// The statistics are compared after one step from the same weights.
TEST_P(TrainBatchNormTest, SynchronisedRanksHaveTheStatisticsOfOne) {
  const auto train = [this](const std::string& name, const std::string& more) {
    return WeightsOf(
        Train(name, WithFlags(more + " --train_samples=8 --epochs=1")));
  };
  const NamedTensors one = train("one", "--sync_bn");
  EXPECT_EQ(BatchesOf(one), 1);
  const double local = StatisticsDistance(one, train("local", "--nproc=2"));
  ASSERT_GT(local, 0.01);
  // The distance is rounding alone, of at most 17 layers, each within a few
  // 2^-24.
  EXPECT_LT(StatisticsDistance(one, train("ddp", "--nproc=2 --sync_bn=true")),
            1e-5);
  if (RunsOnlyExhaustively()) return;
  EXPECT_LT(StatisticsDistance(
                one, train("dp", "--nproc=3 --parallelism=dp --sync_bn")),
            1e-5);
  // Local batch norm gives the same bits as a group of one.
  EXPECT_TRUE(train("alone", "--nproc=1") == one);
}

TEST_P(TrainBatchNormTest, ResumesBitForBitAsIfItHadNotStopped) {
  if (RunsOnlyExhaustively()) GTEST_SKIP() << "of resnet18_d2l";
  const std::map<std::string, std::string> runs = {
      {"local", "--nproc=2"},
      {"sync", "--nproc=2 --sync_bn"},
      {"dp", "--nproc=2 --parallelism=dp --sync_bn"}};
  for (const auto& [name, flags] : runs) {
    const std::vector<std::string> dirs =
        ExpectToResume(name, WithFlags(flags), 1, 2);
    EXPECT_EQ(BatchesOf(WeightsOf(dirs[1])), 2);
    EXPECT_EQ(BatchesOf(WeightsOf(dirs[2])), 4);
    const nlohmann::json metrics = MetricsOf(dirs[2]);
    EXPECT_EQ(metrics["model"], GetParam());
    EXPECT_EQ(metrics["sync_bn"], name != "local");
    EXPECT_EQ(metrics["train_samples"], 12);
    EXPECT_EQ(metrics["test_samples"], 5);
    EXPECT_EQ(metrics["epochs"][0]["train_samples"], 12);
  }
  // A checkpoint does not store whether batch norm is synchronised.
  const std::string other = Train(
      "other",
      WithFlags(absl::StrCat("--nproc=2 --sync_bn --epochs=2 --resume=", root_,
                             "/local_part/weights.safetensors")));
  EXPECT_FALSE(WeightsText(other) == WeightsText(root_ + "/local_whole"));
}

TEST_P(TrainBatchNormTest, EndsWithinTwoSecondsOfTheDeathOfARank) {
  if (RunsOnlyExhaustively()) GTEST_SKIP() << "of resnet18_d2l";
  for (const int victim : {0, 1}) {
    const std::string temp = Folder(absl::StrCat("tmp", victim));
    Subprocess program = StartEndless(WithFlags("--nproc=2 --sync_bn"), temp);
    ExpectEndAfterDeath(program, victim, temp);
    EXPECT_THAT(program.out(),
                HasSubstr("2 ranks (ddp), SyncBN, global batch 8"));
  }
}

// Sanitizers need more address space than any limit that could be set.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && \
    !defined(ABSL_HAVE_THREAD_SANITIZER)

class TrainMemoryTest : public TrainTest {
 protected:
  // Runs one step of resnet18_d2l in an address space of `mebibytes` MiB.
  SubprocessResult RunLimited(int mebibytes, int batch_size) {
    const std::string command = absl::StrCat(
        "ulimit -v ", mebibytes << 10, " && exec ", kProgram,
        " --model=resnet18_d2l --epochs=1 --test_samples=1 --data_dir=", data(),
        " --train_samples=", batch_size, " --batch_size=", batch_size);
    return RunSubprocess({"/bin/sh", "-c", command}, kDeadline);
  }
};

// The program and two images take half of the limit. 200 images alone exceed
// it.
TEST_F(TrainMemoryTest, SaysThatABatchIsTooLarge) {
  // The control: the batch is what ends the run below.
  const SubprocessResult small = RunLimited(768, 2);
  EXPECT_EQ(small.exit_status, 0) << small.err;
  const SubprocessResult large = RunLimited(768, 200);
  EXPECT_EQ(large.exit_status, 1);
  EXPECT_THAT(large.err, StartsWith("train: rank 0: no memory for a batch of "
                                    "200: it needs "));
  EXPECT_THAT(large.err, EndsWith(" MiB of activations\n"));
}

// At these limits neither the weights nor oneDNN's code for them fit in memory.
TEST_F(TrainMemoryTest, SaysThatThereIsNotEnough) {
  for (const int mebibytes : {100, 150, 200, 250}) {
    const SubprocessResult result = RunLimited(mebibytes, 2);
    EXPECT_EQ(result.exit_status, 1) << mebibytes;
    EXPECT_THAT(result.err, StartsWith("train: "));
    EXPECT_THAT(result.err, HasSubstr("memory"));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  }
}

#endif

}  // namespace
}  // namespace lockstep
