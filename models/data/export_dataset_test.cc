// Tests the command `export` and its parts: reading an export gives the same
// data set.
#include "models/data/export_dataset.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/data/idx_files.h"
#include "models/data/image.h"
#include "models/data/load_dataset.h"
#include "models/data/png.h"
#include "models/data/transform.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kExport[] = "models/data/export";

std::string Contents(const std::string& path) {
  const Bytes bytes = ReadBytes(path);
  return std::string(bytes.begin(), bytes.end());
}

void Write(const std::string& path, absl::string_view bytes) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  WriteBytes(path, Bytes(bytes.begin(), bytes.end()));
}

// Creates a folder with Fashion-MNIST's four files, of 40 and 20 images, in
// idx/.
std::string MakeIdx() {
  const std::string dir = MakeTestDir();
  std::filesystem::create_directories(dir + "/idx");
  WriteIdxFiles(dir + "/idx", /*train=*/40, /*test=*/20);
  return dir;
}

// Creates two images in train/a/, one in train/b/ and one in val/b/. Each image
// is larger than the one before by `growth`.
std::string MakeFolder(int64_t side, int64_t growth) {
  const std::string dir = MakeTestDir();
  for (const char* file :
       {"/train/a/1.png", "/train/a/2.png", "/train/b/1.png", "/val/b/1.png"}) {
    Write(dir + file, *EncodePng({side, side, 3, Ramp(side * side * 3)}));
    side += growth;
  }
  return dir;
}

void ExpectExported(const std::string& flags) {
  const CommandOutcome outcome = RunCommand(kExport + flags, 60);
  ASSERT_EQ(outcome.exit_status, 0) << flags << "\n" << outcome.output;
}

// Expects the same labels in order, and the same pixels if `pixels`.
void ExpectSame(const Dataset& want, const Dataset& got, bool pixels = true) {
  ASSERT_EQ(got.size(), want.size());
  for (int64_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got.label(i), want.label(i)) << i;
    if (pixels) {
      ASSERT_EQ(*got.Read(i), *want.Read(i)) << i;
    }
  }
}

// Expects that every image of `want` is in `got`, which is sorted by class,
// under the name of its class.
void ExpectSameByClass(const Dataset& want, const Dataset& got) {
  ASSERT_EQ(got.size(), want.size());
  for (int64_t i = 0; i < want.size(); ++i) {
    const std::string name =
        absl::StrReplaceAll(want.class_name(want.label(i)), {{"/", "_"}});
    bool found = false;
    for (int64_t j = 0; j < got.size() && !found; ++j) {
      found =
          got.class_name(got.label(j)) == name && *got.Read(j) == *want.Read(i);
    }
    EXPECT_TRUE(found) << i;
  }
}

TEST(ExportTest, WritesAFolderThatIsTheSameDataSet) {
  const std::string dir = MakeIdx();
  const std::string command =
      absl::StrCat(kExport, " --data_dir=", dir, "/idx --output_dir=", dir);
  const CommandOutcome outcome =
      RunCommand(command + "/new/png/ --encoding=png", 60);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_EQ(outcome.output,
            absl::StrCat("Wrote 40 images for training and 20 for testing to ",
                         dir, "/new/png\n"));
  const auto idx = LoadDataset("fashion_mnist", dir + "/idx");
  const auto folder =
      LoadDataset("image_folder", dir + "/new/png", {.channels = 1});
  ASSERT_THAT(idx, IsOk());
  ASSERT_THAT(folder, IsOk());
  ExpectSameByClass(*idx->train, *folder->train);
  ExpectSameByClass(*idx->test, *folder->test);

  const CommandOutcome jpeg = RunCommand(command + "/jpeg --limit=5", 60);
  ASSERT_EQ(jpeg.exit_status, 0) << jpeg.output;
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(dir + "/jpeg")) {
    files += entry.path().extension() == ".jpg" ? 1 : 0;
  }
  EXPECT_EQ(files, 10);
}

TEST(ExportTest, WritesAListThatIsTheSameDataSetInItsOrder) {
  const std::string dir = MakeIdx();
  const std::string flags = absl::StrCat(
      " --data_dir=", dir, "/idx --format=image_list --out=", dir, "/list");
  ExpectExported(flags + " --encoding=png");
  ExpectExported(flags + "-jpeg");
  const auto idx = LoadDataset("fashion_mnist", dir + "/idx");
  ASSERT_THAT(idx, IsOk());
  for (const bool png : {true, false}) {
    const auto list = LoadDataset(
        "image_list", dir + (png ? "/list" : "/list-jpeg"), {.channels = 1});
    ASSERT_THAT(list, IsOk());
    ExpectSame(*idx->train, *list->train, png);
    ExpectSame(*idx->test, *list->test, png);
    EXPECT_EQ(list->train->num_classes(), 10);
  }
  // PaddleViT splits a line into a path in the folder, one blank, and a label.
  const std::string train = Contents(dir + "/list-jpeg/train_list.txt");
  EXPECT_THAT(train, StartsWith(absl::StrCat("train/00000.jpg ",
                                             idx->train->label(0), "\n")));
  EXPECT_THAT(train, HasSubstr(absl::StrCat("\ntrain/00039.jpg ",
                                            idx->train->label(39), "\n")));
  EXPECT_THAT(Contents(dir + "/list/val_list.txt"),
              StartsWith("val/00000.png "));
}

TEST(ExportTest, WritesCifarFilesThatAreTheSameDataSet) {
  const std::string dir = MakeTestDir();
  ExpectExported(absl::StrCat(
      " --dataset=synthetic --image_size=32 --num_classes=7 --limit=13 "
      "--seed=3 --format=cifar10 --out=",
      dir, "/cifar"));
  const auto cifar = LoadDataset("cifar10", dir + "/cifar");
  const auto synthetic = LoadDataset(
      "synthetic", "", {.num_classes = 7, .shape = {32, 32, 3}, .seed = 3});
  ASSERT_THAT(cifar, IsOk());
  ASSERT_THAT(synthetic, IsOk());
  ASSERT_EQ(cifar->train->size(), 13);
  ASSERT_EQ(cifar->test->size(), 13);
  for (int64_t i = 0; i < 13; ++i) {
    // Samples are spread evenly over 10,000 and 1,000.
    const int64_t train = i * 10'000 / 13, test = i * 1'000 / 13;
    EXPECT_EQ(cifar->train->label(i), synthetic->train->label(train));
    EXPECT_EQ(*cifar->train->Read(i), *synthetic->train->Read(train)) << i;
    EXPECT_EQ(cifar->test->label(i), synthetic->test->label(test));
    EXPECT_EQ(*cifar->test->Read(i), *synthetic->test->Read(test)) << i;
  }
  // The five files hold 13 images.
  for (const auto& [file, records] :
       {std::pair(1, 2), {2, 3}, {3, 2}, {4, 3}, {5, 3}}) {
    EXPECT_EQ(std::filesystem::file_size(
                  absl::StrCat(dir, "/cifar/data_batch_", file, ".bin")),
              records * 3073);
  }
  // An export of those files has the same bytes.
  ExpectExported(absl::StrCat(" --dataset=cifar10 --data_dir=", dir,
                              "/cifar --format=cifar10 --out=", dir, "/again"));
  for (const char* file :
       {"/data_batch_1.bin", "/data_batch_5.bin", "/test_batch.bin"}) {
    EXPECT_EQ(Contents(absl::StrCat(dir, "/cifar", file)),
              Contents(absl::StrCat(dir, "/again", file)));
  }
  // Converts 28 x 28 images with one channel to 32 x 32 with three.
  std::filesystem::create_directories(dir + "/idx");
  WriteIdxFiles(dir + "/idx", /*train=*/40, /*test=*/20);
  ExpectExported(absl::StrCat(" --data_dir=", dir,
                              "/idx --format=cifar10 "
                              "--image_size=32 --in_channels=3 --out=",
                              dir, "/fashion"));
  const auto idx = LoadDataset("fashion_mnist", dir + "/idx");
  const auto fashion = LoadDataset("cifar10", dir + "/fashion");
  ASSERT_THAT(fashion, IsOk());
  ExpectSame(*idx->train, *fashion->train, /*pixels=*/false);
}

// Returns the image that training at that size reads (value / 255), as bytes.
Image Transformed(const Dataset& data, int64_t index, int64_t height,
                  int64_t width) {
  const Transform transform =
      *Transform::Create({.height = height, .width = width}, data);
  std::vector<float> values(transform.shape().size());
  TransformScratch scratch;
  EXPECT_THAT(transform.Load(data, {.index = index}, scratch, values), IsOk());
  Image image = {height, width, transform.shape().channels, {}};
  for (const float value : values) {
    image.pixels.push_back(static_cast<uint8_t>(std::lround(value * 255)));
  }
  return image;
}

TEST(ExportTest, ResizesAsTrainingDoes) {
  const std::string dir = MakeIdx();
  const std::string idx_flags =
      absl::StrCat(" --data_dir=", dir, "/idx --encoding=png",
                   " --format=image_list --out=", dir);
  ExpectExported(idx_flags + "/square --image_size=112");
  ExpectExported(idx_flags + "/wide --image_size=19x48");
  const auto idx = LoadDataset("fashion_mnist", dir + "/idx");
  const auto square =
      LoadDataset("image_list", dir + "/square", {.channels = 1});
  const auto wide = LoadDataset("image_list", dir + "/wide", {.channels = 1});
  ASSERT_THAT(square, IsOk());
  ASSERT_THAT(wide, IsOk());
  for (const int64_t i : {0, 1, 19}) {
    EXPECT_EQ(*square->train->Read(i), Transformed(*idx->train, i, 112, 112));
    EXPECT_EQ(*wide->test->Read(i), Transformed(*idx->test, i, 19, 48));
  }
}

TEST(ExportTest, ResizesFilesOfManySizes) {
  const std::string dir = MakeFolder(/*side=*/40, /*growth=*/9);
  ExpectExported(absl::StrCat(" --dataset=image_folder --encoding=png ",
                              "--image_size=33x21 --data_dir=", dir,
                              " --out=", dir, "/out"));
  const auto from = LoadDataset("image_folder", dir);
  const auto to = LoadDataset("image_folder", dir + "/out");
  ASSERT_THAT(to, IsOk());
  ASSERT_EQ(to->train->size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(*to->train->Read(i), Transformed(*from->train, i, 33, 21));
  }
}

// Exports Fashion-MNIST as a folder of photos.
TEST(ExportTest, WritesPhotos) {
  const std::string dir = MakeIdx();
  ExpectExported(absl::StrCat(
      " --dataset=fashion_mnist --format=image_folder --image_size=112",
      " --data_dir=", dir, "/idx --out=", dir, "/photos"));
  const auto photos = LoadDataset("image_folder", dir + "/photos");
  ASSERT_THAT(photos, IsOk());
  EXPECT_EQ(photos->train->size(), 40);
  EXPECT_EQ(photos->train->Read(0)->shape(), (ImageShape{112, 112, 3}));
}

TEST(ExportTest, NotesClassesThatTrainLacks) {
  const std::string dir = MakeTestDir();
  const std::string flags = absl::StrCat(
      " --dataset=synthetic --image_size=4 --num_classes=900 --limit=3 --out=",
      dir);
  const CommandOutcome list =
      RunCommand(kExport + flags + "/list --format=image_list", 60);
  EXPECT_THAT(list.output, HasSubstr("with --num_classes=900\n"));
  EXPECT_THAT(LoadDataset("image_list", dir + "/list", {.num_classes = 900}),
              IsOk());
  const CommandOutcome folder = RunCommand(kExport + flags + "/folder", 60);
  EXPECT_THAT(folder.output, HasSubstr("images only for testing"));
  // Exports classes without any image.
  const std::string two = absl::StrCat(
      kExport, " --dataset=synthetic --image_size=4 --num_classes=2 --limit=40",
      " --format=image_list --out=", dir, "/two");
  EXPECT_EQ(RunCommand(two, 60).exit_status, 0);
  const CommandOutcome five = RunCommand(
      absl::StrCat(kExport, " --dataset=image_list --num_classes=5 --data_dir=",
                   dir, "/two --out=", dir, "/five"),
      60);
  EXPECT_THAT(five.output, HasSubstr("3 of 5 classes have no image"));
}

// Returns the names of the folder's files and folders.
std::vector<std::string> Entries(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(ExportTest, LeavesNothingBehindAnError) {
  const std::string dir = MakeFolder(/*side=*/32, /*growth=*/0);
  const std::string flags =
      absl::StrCat(" --dataset=image_folder --data_dir=", dir,
                   " --output_dir=", dir, "/out");
  Write(dir + "/train/b/2.png", "bad");
  for (const char* format : {"image_folder", "image_list"}) {
    const CommandOutcome bad =
        RunCommand(absl::StrCat(kExport, flags, " --format=", format), 60);
    EXPECT_EQ(bad.exit_status, 1);
    EXPECT_THAT(bad.output,
                StartsWith(absl::StrCat("export: ", dir, "/train/b/2.png: ")));
    EXPECT_THAT(Entries(dir), testing::Each(AnyOf("train", "val")));
  }
  const CommandOutcome skips =
      RunCommand(kExport + flags + " --skip_bad_images", 60);
  EXPECT_EQ(skips.exit_status, 0) << skips.output;
  EXPECT_THAT(skips.output, HasSubstr(absl::StrCat("1 bad image is left out: ",
                                                   dir, "/train/b/2.png: ")));
  ExpectUsageError(RunCommand(kExport + flags, 60), "export", flags,
                   "--output_dir: ");
}

TEST(ExportTest, LeavesNothingBehindWhenInterrupted) {
  const std::string dir = MakeTestDir();
  // The export has far more images than it can write in a second.
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("timeout -s INT 1 ", kExport,
                   " --dataset=synthetic --image_size=1000 --encoding=png "
                   "--out=",
                   dir, "/out"),
      60);
  EXPECT_EQ(outcome.exit_status, 124) << outcome.output;
  EXPECT_THAT(Entries(dir), testing::IsEmpty());

  // The step's error ends the export at once.
  const auto data = LoadDataset("synthetic", "", {.shape = {8, 8, 3}});
  int64_t steps = 0;
  EXPECT_THAT(ExportDataset(*data, {}, dir + "/out",
                            [&](absl::string_view, int64_t done, int64_t) {
                              steps = done;
                              return done < 3 ? absl::OkStatus()
                                              : absl::CancelledError("stop");
                            }),
              StatusIs(absl::StatusCode::kCancelled, testing::Eq("stop")));
  EXPECT_EQ(steps, 3);
}

TEST(ExportTest, NamesTheFlagAtFault) {
  const std::string dir = MakeFolder(/*side=*/32, /*growth=*/1);
  Write(dir + "/file", "");
  const std::string synthetic =
      absl::StrCat(" --out=", dir, "/out --format=cifar10 --dataset=synthetic");
  const std::string folder =
      absl::StrCat(" --out=", dir, "/out --format=cifar10 ",
                   "--dataset=image_folder --data_dir=", dir);
  const struct {
    std::string flags, message;
  } cases[] = {
      {" --format=image_list", "--output_dir: must name a folder"},
      {" --out=" + dir, "--output_dir: " + dir + " is not empty"},
      {" --out=" + dir + "/file", "/file is not a folder"},
      {" --out=x --format=png",
       "--format: 'png' is not one of image_folder, image_list, cifar10"},
      {" --out=x --encoding=gif", "--encoding: 'gif' is not one of jpeg, png"},
      {" --out=x --quality=101", "--quality: 101"},
      {" --out=x --limit=0", "--limit: 0"},
      {" --out=x --dataset=x", "--dataset: 'x'"},
      {" --out=x --in_channels=2", "--in_channels=2: must be 0, 1 or 3"},
      {" --out=x --image_size=big", "--image_size=big: "},
      {" --out=x --image_size=0x5", "--image_size=0x5: "},
      {" --out=x --image_size=16384", "--image_size=16384: has over"},
      {synthetic,
       "--format=cifar10: holds images of 32 x 32 with 3 channels, "
       "but the data set's are 224 x 224 with 3; --image_size=32"},
      {synthetic + " --image_size=32 --in_channels=1",
       "the data set's are 32 x 32 with 1; "},
      {synthetic + " --image_size=32 --num_classes=11",
       "--format=cifar10: holds at most 10 classes, but the data set has 11"},
      {synthetic + " --image_size=32 --limit=4",
       "--limit=4: --format=cifar10 needs at least 5 images"},
      {folder,
       "--format=cifar10: needs at least 5 images for training, one for "
       "each file, not 3"}};
  for (const auto& [wrong, message] : cases) {
    ExpectUsageError(RunCommand(kExport + wrong, 60), "export", wrong, message);
  }
  // Files of different sizes are rejected when they are read.
  for (int i = 2; i < 5; ++i) {
    Write(absl::StrCat(dir, "/train/b/", i, ".png"),
          *EncodePng({40, 32, 3, Ramp(40 * 32 * 3)}));
  }
  ExpectUsageError(RunCommand(kExport + folder, 60), "export", folder,
                   "--format=cifar10: holds images of 32 x 32 with 3 channels, "
                   "but image 1 of train is 33 x 33 with 3; ");
  EXPECT_THAT(Entries(dir), testing::Each(AnyOf("train", "val", "file")));
  ExpectUsage(RunCommand(absl::StrCat(kExport, " --help"), 60), "export");
}

// Returns the printed text if each of `total` images takes that long.
std::string Progress(bool rewrite, absl::Duration each, int64_t total) {
  std::ostringstream out;
  ImageProgress progress(out, rewrite);
  for (int64_t i = 0; i < total; ++i) {
    progress.Show("train", i, total, absl::UnixEpoch() + i * each);
  }
  progress.Clear();
  return out.str();
}

TEST(ImageProgressTest, SaysCountRateAndSecondsLeft) {
  std::ostringstream out;
  ImageProgress progress(out, /*rewrite=*/false);
  const absl::Time begin = absl::UnixEpoch();
  progress.Show("train", 0, 60'000, begin);
  progress.Show("train", 399, 60'000, begin + absl::Milliseconds(999));
  progress.Show("train", 1200, 60'000, begin + absl::Seconds(3));
  progress.Show("train", 1201, 60'000, begin + absl::Milliseconds(3999));
  // Another part has its own rate, but still prints at most one line a second.
  progress.Show("test", 0, 10, begin + absl::Seconds(4));
  progress.Show("test", 1, 10, begin + absl::Milliseconds(4900));
  progress.Show("test", 3, 10, begin + absl::Seconds(6));
  // The same part of another data set begins a new task.
  progress.Show("test", 2, 10, begin + absl::Seconds(8));
  progress.Show("test", 6, 10, begin + absl::Seconds(9));
  EXPECT_EQ(out.str(),
            "train: 1200 of 60000 images, 400 images/s, 147 s left\n"
            "test: 3 of 10 images, 1.5 images/s, 5 s left\n"
            "test: 6 of 10 images, 4.0 images/s, 1 s left\n");
}

TEST(ImageProgressTest, RewritesTheLineOnATerminal) {
  EXPECT_EQ(Progress(/*rewrite=*/true, absl::Milliseconds(100), 6),
            "\x1b[2Ktrain: 2 of 6 images, 10 images/s, 1 s left\r"
            "\x1b[2Ktrain: 4 of 6 images, 10 images/s, 1 s left\r"
            "\x1b[2K");
}

TEST(ImageProgressTest, SaysNothingOfShortTasks) {
  EXPECT_EQ(Progress(/*rewrite=*/false, absl::Milliseconds(1), 900), "");
  EXPECT_EQ(Progress(/*rewrite=*/true, absl::ZeroDuration(), 900), "");
}

}  // namespace
}  // namespace lockstep
