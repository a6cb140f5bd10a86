// Tests of the train command on image files: every format, workers, bad images,
// files that vanish, and ranks that see different files.
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/export_dataset.h"
#include "models/data/idx_files.h"
#include "models/data/image.h"
#include "models/data/jpeg.h"
#include "models/data/load_dataset.h"
#include "models/data/png.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Flags = std::vector<std::string>;

// The deadline of a run that hangs, within the 60 seconds of the whole test.
constexpr absl::Duration kDeadline = absl::Seconds(40);
constexpr int64_t kTrain = 40;  // The images of the data sets.
constexpr int64_t kTest = 10;
constexpr int64_t kSide = 16;

// The longest time that a run may continue after a rank has met an error. Ranks
// wait 60 seconds for each other (--timeout_s), so a run that ends within this
// time has not waited for a timeout.
constexpr absl::Duration kMaxTimeAfterError = absl::Seconds(15);

std::string WeightsText(const std::string& dir) {
  const absl::StatusOr<std::string> text =
      ReadFile(dir + "/weights.safetensors");
  EXPECT_THAT(text, IsOk());
  return text.value_or("");
}

nlohmann::json MetricsOf(const std::string& dir) {
  return nlohmann::json::parse(ReadFile(dir + "/metrics.json").value_or(""),
                               nullptr, /*allow_exceptions=*/false);
}

void WriteText(const std::string& path, absl::string_view text) {
  WriteBytes(path, Bytes(text.begin(), text.end()));
}

// Returns the bytes of a bad image file. fault: "text" or "truncated".
std::string BadImage(const std::string& fault) {
  if (fault == "text") return "This is no image.\n";
  const std::string jpeg =
      *EncodeJpeg({kSide, kSide, 3, Ramp(kSide * kSide * 3)}, 95);
  return jpeg.substr(0, jpeg.size() / 2);
}

// Expects that this process has no child, so that a run has left none.
void ExpectNoProcessLeft() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

// Runs of the train command, and their data sets.
class TrainDataTest : public testing::Test {
 protected:
  TrainDataTest() : root_(MakeTestDir()) {
    // Processes that a run leaves behind become children of this one.
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    absl::StatusOr<DatasetParts> made =
        LoadDataset("synthetic", "",
                    {.train_samples = kTrain,
                     .test_samples = kTest,
                     .num_classes = 4,
                     .shape = {kSide, kSide, 3}});
    EXPECT_THAT(made, IsOk());
    made_ = *std::move(made);
  }

  // Writes the data set as files into a new folder, which it returns.
  std::string Export(const std::string& name, const DatasetParts& data,
                     const ExportOptions& options) const {
    std::string dir = absl::StrCat(root_, "/", name);
    EXPECT_THAT(ExportDataset(data, options, dir,
                              [](absl::string_view, int64_t, int64_t) {
                                return absl::OkStatus();
                              }),
                IsOk());
    return dir;
  }

  // Writes an image folder: train/0 to train/3, and test/.
  std::string MakeFolder(const std::string& name, bool jpeg) const {
    return Export(name, made_,
                  {.format = ExportFormat::kImageFolder, .jpeg = jpeg});
  }

  // Returns the command that trains on a data set in files, with the additional
  // flags `more`, separated by spaces.
  static Flags Command(const std::string& dataset, const std::string& dir,
                       const std::string& more) {
    Flags flags = {"models/train/train", "--dataset=" + dataset,
                   "--data_dir=" + dir,  "--image_size=32",
                   "--batch_size=16",    "--lr=0.5",
                   "--epochs=2"};
    const Flags rest = absl::StrSplit(more, ' ', absl::SkipEmpty());
    flags.insert(flags.end(), rest.begin(), rest.end());
    return flags;
  }

  // Trains, expects success, and returns the folder of the run's files.
  std::string Train(const std::string& name, Flags command) {
    std::string dir = absl::StrCat(root_, "/run_", name);
    command.push_back("--output_dir=" + dir);
    const SubprocessResult result = RunSubprocess(command, kDeadline);
    EXPECT_EQ(result.exit_status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    output_ = result.out;
    return dir;
  }

  // Runs a command that fails by itself. Expects exit status 1 long before the
  // ranks' timeout, and that no process is left.
  static SubprocessResult RunToFailure(const Flags& command) {
    const absl::Time start = absl::Now();
    SubprocessResult result = RunSubprocess(command, kDeadline);
    EXPECT_EQ(result.exit_status, 1);
    EXPECT_LT(absl::Now() - start, kMaxTimeAfterError);
    ExpectNoProcessLeft();
    return result;
  }

  const std::string root_;
  DatasetParts made_;   // The data set in memory.
  std::string output_;  // The standard output of Train's last run.
};

// An error line of a rank: "train: rank 0: what".
struct ErrorLine {
  int rank = -1;
  std::string what;
};

// Returns the ranks' error lines of a failed run. Expects at most one line from
// each of `nproc` ranks, and otherwise only the launcher's lines.
std::vector<ErrorLine> ErrorLines(const std::string& err, int nproc) {
  std::vector<ErrorLine> lines;
  std::set<int> ranks;
  for (const absl::string_view line :
       absl::StrSplit(err, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "lockstep: ")) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::MaxSplits(": ", 2));
    ErrorLine found;
    EXPECT_TRUE(words.size() == 3 && words[0] == "train" &&
                absl::StartsWith(words[1], "rank ") &&
                absl::SimpleAtoi(words[1].substr(5), &found.rank) &&
                found.rank < nproc && ranks.insert(found.rank).second)
        << err;
    found.what = words.back();
    lines.push_back(found);
  }
  return lines;
}

// Returns the rank of the first error line that begins with `begin` and
// contains `part`. If there is none, fails the test and returns -1.
int RankThatNames(const std::string& err, int nproc, const std::string& begin,
                  const std::string& part) {
  for (const ErrorLine& line : ErrorLines(err, nproc)) {
    if (absl::StartsWith(line.what, begin) &&
        absl::StrContains(line.what, part)) {
      return line.rank;
    }
  }
  ADD_FAILURE() << err;
  return -1;
}

// Returns the path of some image in the folder.
std::string FirstImage(const std::string& dir) {
  return std::filesystem::directory_iterator(dir)->path().string();
}

TEST_F(TrainDataTest, EveryFormatOfTheSameImagesTrainsTheSameModel) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/false);
  const absl::StatusOr<DatasetParts> sorted =
      LoadDataset("image_folder", folder);
  ASSERT_THAT(sorted, IsOk());
  const ExportOptions list_of_png = {.format = ExportFormat::kImageList,
                                     .jpeg = false};
  const std::string list = Export("list", *sorted, list_of_png);
  const std::string unsorted = Export("unsorted", made_, list_of_png);
  const std::string cifar =
      Export("cifar", *sorted,
             {.format = ExportFormat::kCifar10, .height = 32, .width = 32});
  for (const std::string nproc : {"1", "2"}) {
    const auto weights = [&](const std::string& name,
                             const std::string& dataset, const std::string& dir,
                             const std::string& more) {
      const std::string run =
          Train(name + nproc,
                Command(dataset, dir, absl::StrCat("--nproc=", nproc, more)));
      const nlohmann::json metrics = MetricsOf(run);
      EXPECT_EQ(metrics["dataset"], dataset);
      EXPECT_EQ(metrics["epochs"][1]["train_samples"], kTrain);
      EXPECT_EQ(metrics["epochs"][1]["test_samples"], kTest);
      return WeightsText(run);
    };
    const std::string want = weights("folder", "image_folder", folder, "");
    EXPECT_TRUE(weights("list", "image_list", list, "") == want) << nproc;
    // The control: another order of the same images.
    EXPECT_FALSE(weights("unsorted", "image_list", unsorted, "") == want);
    // CIFAR-10 has ten classes, and so does a list with --num_classes=10.
    EXPECT_TRUE(weights("cifar", "cifar10", cifar, "") ==
                weights("list10_", "image_list", list, " --num_classes=10"))
        << nproc;
  }
}

TEST_F(TrainDataTest, FlagsOfResizingChangeTheRun) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/false);
  std::set<std::string> weights;
  for (const std::string flags :
       {"", "--resize=48", "--interpolation=bicubic"}) {
    weights.insert(
        WeightsText(Train("resized", Command("image_folder", folder, flags))));
  }
  EXPECT_EQ(weights.size(), 3u);
}

TEST_F(TrainDataTest, TheNumberOfWorkersDoesNotChangeABit) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  for (const std::string nproc : {"1", "2"}) {
    const auto weights = [&](const std::string& name, const std::string& more) {
      return WeightsText(Train(
          name + nproc, Command("image_folder", folder,
                                absl::StrCat("--nproc=", nproc, " ", more))));
    };
    // At this size a worker takes one image at a time.
    const std::string drawn =
        "--image_size=64 --augment=standard,mixup --workers=";
    const std::string want = weights("none", drawn + "0");
    EXPECT_TRUE(weights("one", drawn + "1") == want) << nproc;
    EXPECT_TRUE(weights("eight", drawn + "8") == want) << nproc;
    // The control: a run without augmentation.
    EXPECT_FALSE(weights("plain", "--image_size=64 --workers=8") == want)
        << nproc;
  }
}

TEST_F(TrainDataTest, ABadImageEndsEveryRankAtOnceAndIsNamed) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  const std::string path = folder + "/train/1/bad.jpg";
  // Returns the rank that met the image and named it in its error line.
  const auto rank_that_names = [&](const std::string& more,
                                   const std::string& message) {
    const SubprocessResult result =
        RunToFailure(Command("image_folder", folder, "--workers=2 " + more));
    EXPECT_THAT(result.out, Not(HasSubstr("test accuracy")));
    return RankThatNames(result.err, 2, path + ": ", message);
  };
  for (const auto& [fault, message] : std::map<std::string, std::string>{
           {"text", "neither JPEG nor PNG"}, {"truncated", "damaged JPEG"}}) {
    WriteText(path, BadImage(fault));
    EXPECT_EQ(rank_that_names("--nproc=1", message), 0);
    for (const std::string ranks : {"ddp", "dp"}) {
      std::set<int> met;
      for (const int seed : {0, 1, 2, 3}) {
        met.insert(rank_that_names(
            absl::StrCat("--nproc=2 --parallelism=", ranks, " --seed=", seed),
            message));
      }
      EXPECT_THAT(met, ElementsAre(0, 1)) << ranks;
    }
  }
}

// Only the evaluation meets the image.
TEST_F(TrainDataTest, ABadImageToTestWithEndsEveryRankAtOnceAndIsNamed) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  const std::string path = folder + "/test/1/bad.jpg";
  WriteText(path, BadImage("truncated"));
  const SubprocessResult result =
      RunToFailure(Command("image_folder", folder, "--workers=2 --nproc=2"));
  RankThatNames(result.err, 2, path + ": ", "damaged JPEG");
  EXPECT_THAT(result.out, HasSubstr("step 1/3"));
}

TEST_F(TrainDataTest, SkippedImagesAreCountedAndTheSameOnEveryRank) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  // An image of one pixel is small, not bad.
  WriteText(folder + "/train/3/pixel.png", *EncodePng({1, 1, 3, {1, 2, 3}}));
  const std::string text = folder + "/train/1/0.jpg";
  WriteText(text, BadImage("text"));
  const auto train = [&](const std::string& name) {
    for (const std::string nproc : {"1", "2"}) {
      const nlohmann::json metrics = MetricsOf(
          Train(name + nproc,
                Command("image_folder", folder,
                        "--workers=2 --skip_bad_images --nproc=" + nproc)));
      EXPECT_EQ(metrics["train_samples"], kTrain + 1) << nproc;
      EXPECT_EQ(metrics["epochs"][1]["train_samples"], kTrain + 1) << nproc;
      EXPECT_EQ(metrics["epochs"][1]["test_samples"], kTest) << nproc;
      EXPECT_THAT(output_, HasSubstr(absl::StrCat(kTrain + 1, " images, ")));
    }
  };
  train("one");
  EXPECT_THAT(output_, HasSubstr(absl::StrCat(
                           "\n1 bad image is left out: ", text, ": neither")));
  WriteText(folder + "/test/1/bad.jpg", BadImage("truncated"));
  train("two");
  EXPECT_THAT(output_,
              HasSubstr(absl::StrCat("\n2 bad images are left out, such as ",
                                     text, ": neither")));
}

// The test renames the folder during a run that would train for very many
// epochs.
TEST_F(TrainDataTest, AFolderThatVanishesEndsTheRunAndAFileIsNamed) {
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  absl::StatusOr<Subprocess> program = Subprocess::Start(Command(
      "image_folder", folder, "--nproc=2 --workers=2 --epochs=1000000"));
  ASSERT_THAT(program, IsOk());
  ASSERT_TRUE(program->AwaitOutput("test accuracy", kDeadline))
      << program->err();
  const absl::Time renamed = absl::Now();
  std::filesystem::rename(folder, root_ + "/gone");
  EXPECT_EQ(program->Wait(kDeadline), 1);
  EXPECT_LT(absl::Now() - renamed, kMaxTimeAfterError);
  RankThatNames(program->err(), 2, folder + "/", ".jpg: cannot open: No such");
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), program->pid());
  ExpectNoProcessLeft();
}

// Starts ranks as another launcher does, each with its own command. Expects
// that every rank refuses to train, with this message.
void ExpectRefusal(const std::string& meeting, const std::vector<Flags>& ranks,
                   const std::string& message) {
  const std::string world_size = absl::StrCat(ranks.size());
  std::vector<Subprocess> programs;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    absl::StatusOr<Subprocess> program = Subprocess::Start(
        ranks[rank], {.environment = {{"RANK", absl::StrCat(rank)},
                                      {"WORLD_SIZE", world_size},
                                      {"LOCAL_RANK", absl::StrCat(rank)},
                                      {"LOCAL_WORLD_SIZE", world_size},
                                      {"LOCKSTEP_RENDEZVOUS", meeting}}});
    ASSERT_THAT(program, IsOk());
    programs.push_back(*std::move(program));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(programs[rank].Wait(kDeadline), 1) << message;
    EXPECT_EQ(programs[rank].out(), "");
    EXPECT_EQ(programs[rank].err(),
              absl::StrCat("train: rank ", rank, ": ", message,
                           ": every rank must see the same files\n"));
  }
}

TEST_F(TrainDataTest, RanksThatSeeDifferentFilesDoNotTrain) {
  // Rank 2 sees another folder than ranks 0 and 1.
  const auto refused = [&](const std::string& dataset, const std::string& dir,
                           const std::string& other,
                           const std::string& message) {
    const Flags command = Command(dataset, dir, "--skip_bad_images");
    ExpectRefusal(
        other + "/meeting",
        {command, command, Command(dataset, other, "--skip_bad_images")},
        message);
  };
  const std::string folder = MakeFolder("folder", /*jpeg=*/true);
  const std::string bad = MakeFolder("bad", /*jpeg=*/true);
  WriteText(FirstImage(bad + "/train/2"), BadImage("truncated"));
  refused("image_folder", folder, bad,
          "rank 2 has 39 images to train on, rank 0 has 40");
  const std::string fewer = MakeFolder("fewer", /*jpeg=*/true);
  std::filesystem::remove(FirstImage(fewer + "/test/2"));
  refused("image_folder", folder, fewer,
          "rank 2 has 9 images to test with, rank 0 has 10");
  // The same images in another order.
  const absl::StatusOr<DatasetParts> sorted =
      LoadDataset("image_folder", folder);
  ASSERT_THAT(sorted, IsOk());
  const ExportOptions options = {.format = ExportFormat::kImageList};
  refused("image_list", Export("list", made_, options),
          Export("sorted", *sorted, options),
          "rank 2 has other files or labels than rank 0");
  // Rank 2 has as many images of each class, but leaves out another one.
  const std::string first = MakeFolder("first", /*jpeg=*/true);
  const std::string last = MakeFolder("last", /*jpeg=*/true);
  const std::string image = FirstImage(first + "/train/1");
  WriteText(image, BadImage("truncated"));
  const std::string added = "/train/1/~.jpg";  // Sorted last.
  std::filesystem::copy_file(FirstImage(last + "/train/1"), first + added);
  WriteText(last + added, BadImage("truncated"));
  refused("image_folder", first, last,
          "rank 2 has other files or labels than rank 0");
}

}  // namespace
}  // namespace lockstep
