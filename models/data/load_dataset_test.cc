// Tests data sets by name, from folders of valid and invalid files.
#include "models/data/load_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "models/data/image.h"
#include "models/data/jpeg.h"
#include "models/data/png.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

void Write(const std::string& path, absl::string_view bytes) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  WriteBytes(path, Bytes(bytes.begin(), bytes.end()));
}

// Returns a PNG of one pixel, whose value identifies it.
std::string Pixel(uint8_t value) {
  return *EncodePng({1, 1, 3, {value, 1, 2}});
}

// Returns the first value of every image, or -1 if the image cannot be read.
std::vector<int> Values(const Dataset& data) {
  std::vector<int> values;
  for (int64_t i = 0; i < data.size(); ++i) {
    const absl::StatusOr<Image> image = data.Read(i);
    values.push_back(image.ok() ? image->pixels[0] : -1);
  }
  return values;
}

std::vector<int> Labels(const Dataset& data) {
  std::vector<int> labels;
  for (int64_t i = 0; i < data.size(); ++i) labels.push_back(data.label(i));
  return labels;
}

// Creates classes B, a and b (in that order, as bytes). The files have
// torchvision's order: 10, 11, 12 (in a folder below), then 20, 21 and 30.
std::string MakeFolder() {
  const std::string dir = MakeTestDir();
  Write(dir + "/train/B/x10.PNG", Pixel(10));
  Write(dir + "/train/B/x9.png", Pixel(11));
  Write(dir + "/train/B/below/a.png", Pixel(12));
  Write(dir + "/train/B/readme.txt", "no image");
  Write(dir + "/train/a/1.jpg", *EncodeJpeg({1, 1, 1, {20}}, 100));
  Write(dir + "/train/a/2.png", Pixel(21));
  Write(dir + "/train/b/1.png", Pixel(30));
  Write(dir + "/train/a file beside.png", Pixel(99));
  Write(dir + "/val/b/1.png", Pixel(40));  // Classes may be missing in val/.
  return dir;
}

std::string MakeList() {
  const std::string dir = MakeTestDir();
  Write(dir + "/train/one.png", Pixel(10));
  Write(dir + "/train/number two.png", Pixel(11));
  Write(dir + "/val/1.png", Pixel(40));
  Write(dir + "/train_list.txt",
        "train/one.png 4\r\ntrain/number two.png\t0\n");
  Write(dir + "/val_list.txt", absl::StrCat(dir, "/val/1.png 3"));
  return dir;
}

// Creates 20 records: 3 in each file for training, 5 for testing.
std::string CifarRecords(int first, int count) {
  std::string bytes;
  for (int i = first; i < first + count; ++i) {
    bytes += static_cast<char>(i % 10);
    for (int plane = 0; plane < 3; ++plane) {
      bytes += std::string(1024, static_cast<char>(3 * i + plane));
    }
  }
  return bytes;
}

std::string MakeCifar() {
  const std::string dir = MakeTestDir();
  for (int file = 0; file < 5; ++file) {
    Write(absl::StrCat(dir, "/data_batch_", file + 1, ".bin"),
          CifarRecords(3 * file, 3));
  }
  Write(dir + "/test_batch.bin", CifarRecords(15, 5));
  return dir;
}

TEST(ImageFolderTest, HasTorchvisionsClassesAndOrder) {
  const auto data = LoadDataset("image_folder", MakeFolder());
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(Values(*data->train), ElementsAre(10, 11, 12, 20, 21, 30));
  EXPECT_THAT(Labels(*data->train), ElementsAre(0, 0, 0, 1, 1, 2));
  EXPECT_EQ(data->train->num_classes(), 3);
  EXPECT_EQ(data->train->class_name(0), "B");
  EXPECT_EQ(data->train->shape(), std::nullopt);
  EXPECT_THAT(Values(*data->test), ElementsAre(40));
  EXPECT_THAT(Labels(*data->test), ElementsAre(2));
  EXPECT_EQ(data->test->num_classes(), 3);
  EXPECT_EQ(data->train->Read(3)->channels, 3);  // The grey image.
}

// The folders are in, in-1 and in/folder.png: a slash sorts after a hyphen.
TEST(ImageFolderTest, FollowsLinksAndSortsFoldersByPath) {
  const std::string dir = MakeFolder();
  const std::string elsewhere = dir + "/elsewhere";
  Write(elsewhere + "/2.PNG", Pixel(63));
  Write(elsewhere + "/in/1.png", Pixel(61));
  Write(elsewhere + "/in-1/1.jpeg", Pixel(62));
  Write(elsewhere + "/in/notes.txt", "");
  std::filesystem::create_directory_symlink(elsewhere, dir + "/train/linked");
  std::filesystem::create_symlink(elsewhere + "/2.PNG",
                                  dir + "/train/linked/3.png");
  Write(dir + "/other/1.png", Pixel(64));
  std::filesystem::create_directory_symlink(dir + "/other",
                                            elsewhere + "/in/folder.png");
  const auto data = LoadDataset("image_folder", dir);
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->train->class_name(3), "linked");
  std::vector<int> values = Values(*data->train);
  values.erase(values.begin(), values.begin() + 6);
  EXPECT_THAT(values, ElementsAre(63, 63, 61, 62, 64));
}

TEST(ImageFolderTest, NamesALinkToAFolderAboveIt) {
  const std::string dir = MakeFolder();
  std::filesystem::create_directory_symlink(dir + "/train",
                                            dir + "/train/B/again");
  EXPECT_THAT(
      LoadDataset("image_folder", dir),
      StatusIs(absl::StatusCode::kInvalidArgument,
               StartsWith(dir + "/train/B/again: is a link to a folder")));
}

TEST(ImageFolderTest, GivesSamplesSpreadOverThePartAndTheChannelsAskedFor) {
  const std::string dir = MakeFolder();
  Write(dir + "/test/B/1.png", Pixel(50));  // Preferred to val/.
  const auto data =
      LoadDataset("image_folder", dir, {.train_samples = 3, .channels = 1});
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(Labels(*data->train), ElementsAre(0, 0, 1));
  EXPECT_THAT(Labels(*data->test), ElementsAre(0));
  EXPECT_EQ(data->train->Read(0)->shape(), (ImageShape{1, 1, 1}));
}

TEST(ImageFolderTest, LeavesOutBadImagesWhenAskedToAndOthersNever) {
  const std::string dir = MakeFolder();
  const std::string bad = dir + "/train/B/x9.png";
  Write(bad, Pixel(11).substr(0, 50));
  Write(dir + "/train/b/0.jpg", "");
  const auto plain = LoadDataset("image_folder", dir);
  ASSERT_THAT(plain, IsOk());
  EXPECT_THAT(Values(*plain->train), ElementsAre(10, -1, 12, 20, 21, -1, 30));
  EXPECT_THAT(plain->train->Read(1),
              StatusIs(absl::StatusCode::kDataLoss, StartsWith(bad + ": ")));
  for (const int threads : {1, 3}) {
    int64_t done = 0;
    const auto kept = LoadDataset(
        "image_folder", dir,
        {.skip_bad_images = true,
         .threads = threads,
         .progress = [&](int64_t count, int64_t) { done += count; }});
    ASSERT_THAT(kept, IsOk());
    EXPECT_THAT(Values(*kept->train), ElementsAre(10, 12, 20, 21, 30));
    EXPECT_THAT(Labels(*kept->train), ElementsAre(0, 0, 1, 1, 2));
    EXPECT_THAT(kept->skipped,
                ElementsAre(StartsWith(bad), HasSubstr("/b/0.jpg: neither")));
    EXPECT_EQ(
        SkippedText(kept->skipped),
        absl::StrCat("2 bad images are left out, such as ", kept->skipped[0]));
    EXPECT_EQ(SkippedText({kept->skipped[1]}),
              absl::StrCat("1 bad image is left out: ", kept->skipped[1]));
    EXPECT_EQ(SkippedText({}), "");
    EXPECT_GE(done, 7);
  }
  // Another rank may be able to read a file that cannot be read here, so the
  // file is not skipped.
  std::filesystem::create_symlink("/nowhere", dir + "/train/b/9.png");
  EXPECT_THAT(LoadDataset("image_folder", dir, {.skip_bad_images = true}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/b/9.png")));
}

TEST(ImageListTest, ReadsPathsAndLabels) {
  const std::string dir = MakeList();
  const auto data = LoadDataset("image_list", dir);
  ASSERT_THAT(data, IsOk());
  EXPECT_THAT(Values(*data->train), ElementsAre(10, 11));
  EXPECT_THAT(Labels(*data->train), ElementsAre(4, 0));
  EXPECT_EQ(data->train->num_classes(), 5);
  EXPECT_EQ(data->train->class_name(4), "4");
  EXPECT_THAT(Values(*data->test), ElementsAre(40));
  const auto wide = LoadDataset("image_list", dir, {.num_classes = 1000});
  ASSERT_THAT(wide, IsOk());
  EXPECT_EQ(wide->test->num_classes(), 1000);
}

TEST(Cifar10Test, ReadsPlanesInOrder) {
  const auto data = LoadDataset("cifar10", MakeCifar(), {.test_samples = 2});
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->train->size(), 15);
  EXPECT_EQ(data->train->shape(), (ImageShape{32, 32, 3}));
  EXPECT_EQ(data->train->label(14), 4);
  EXPECT_EQ(data->train->class_name(9), "truck");
  const absl::StatusOr<Image> image = data->train->Read(14);
  ASSERT_THAT(image, IsOk());
  for (int64_t i = 0; i < image->shape().size(); ++i) {
    ASSERT_EQ(image->pixels[i], 3 * 14 + i % 3) << i;
  }
  EXPECT_THAT(Labels(*data->test), ElementsAre(5, 6));
}

TEST(SyntheticTest, HasAnyNumberOfChannels) {
  DatasetOptions options = {
      .train_samples = 4, .test_samples = 1, .shape = {9, 14, 5}};
  const auto data = LoadDataset("synthetic", "", options);
  ASSERT_THAT(data, IsOk());
  const auto image = data->train->Read(2);
  ASSERT_THAT(image, IsOk());
  EXPECT_EQ(image->shape(), (ImageShape{9, 14, 5}));
  EXPECT_EQ(image->pixels.size(), size_t{9 * 14 * 5});
  for (const int64_t channels : {0, 65}) {
    options.shape.channels = channels;
    EXPECT_THAT(LoadDataset("synthetic", "", options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::StartsWith("--in_channels: ")));
  }
}

TEST(SyntheticTest, DependsOnTheSeedAndTheIndexAlone) {
  const DatasetOptions options = {.train_samples = 300,
                                  .test_samples = 100,
                                  .num_classes = 7,
                                  .shape = {9, 14, 3}};
  const auto data = LoadDataset("synthetic", "", options);
  DatasetOptions other = options;
  other.train_samples = 4;
  const auto again = LoadDataset("synthetic", "", other);
  other.seed = 1;
  const auto reseeded = LoadDataset("synthetic", "", other);
  ASSERT_THAT(data, IsOk());
  ASSERT_THAT(again, IsOk());
  ASSERT_THAT(reseeded, IsOk());
  EXPECT_EQ(*data->train->Read(3), *again->train->Read(3));
  EXPECT_NE(*data->train->Read(3), *reseeded->train->Read(3));
  EXPECT_NE(*data->train->Read(3), *data->test->Read(3));
  EXPECT_EQ(data->train->shape(), (ImageShape{9, 14, 3}));

  // Synthetic images must be learnable: the mean training image of each class
  // is nearest to the test images of that class.
  std::map<int, std::vector<double>> sums;
  std::map<int, int> counts;
  for (int64_t i = 0; i < data->train->size(); ++i) {
    const Image image = *data->train->Read(i);
    std::vector<double>& sum = sums[data->train->label(i)];
    sum.resize(image.pixels.size());
    for (size_t p = 0; p < sum.size(); ++p) sum[p] += image.pixels[p];
    ++counts[data->train->label(i)];
  }
  ASSERT_THAT(sums, SizeIs(7));
  int right = 0;
  for (int64_t i = 0; i < data->test->size(); ++i) {
    const Image image = *data->test->Read(i);
    int best = -1;
    double least = 0;
    for (const auto& [label, sum] : sums) {
      double distance = 0;
      for (size_t p = 0; p < sum.size(); ++p) {
        const double d = image.pixels[p] - sum[p] / counts[label];
        distance += d * d;
      }
      if (best < 0 || distance < least) best = label, least = distance;
    }
    right += best == data->test->label(i) ? 1 : 0;
  }
  EXPECT_GE(right, 95);
}

// Expects each image in exactly one part, and the same parts again.
void ExpectSplit(const char* name, const std::string& dir,
                 const std::vector<int>& whole) {
  const auto data = LoadDataset(name, dir, {.test_fraction = 0.3});
  ASSERT_THAT(data, IsOk());
  const auto size = static_cast<double>(whole.size());
  EXPECT_EQ(data->test->size(), std::llround(0.3 * size));
  std::vector<int> values = Values(*data->train);
  EXPECT_TRUE(std::ranges::is_sorted(values));
  std::ranges::copy(Values(*data->test), std::back_inserter(values));
  EXPECT_THAT(values, testing::UnorderedElementsAreArray(whole));
  const auto again = LoadDataset(name, dir, {.test_fraction = 0.3});
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(Values(*again->test), Values(*data->test));
}

TEST(TestFractionTest, DrawsThePartToTestWith) {
  std::string dir = MakeList();
  ExpectSplit("image_list", dir, {10, 11});
  dir = MakeCifar();
  const auto cifar = LoadDataset("cifar10", dir);
  ASSERT_THAT(cifar, IsOk());
  ExpectSplit("cifar10", dir, Values(*cifar->train));
  dir = MakeFolder();
  ExpectSplit("image_folder", dir, {10, 11, 12, 20, 21, 30});
  // The classes may be in the folder itself.
  ExpectSplit("image_folder", dir + "/train", {10, 11, 12, 20, 21, 30});
  std::set<std::vector<int>> tests;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto data = LoadDataset("image_folder", dir + "/train",
                                  {.test_fraction = 0.5, .seed = seed});
    ASSERT_THAT(data, IsOk());
    tests.insert(Values(*data->test));
  }
  EXPECT_GT(tests.size(), 3);
}

TEST(TestFractionTest, GivesAsManySamplesOfEachPartAsAsked) {
  const auto data = LoadDataset(
      "image_folder", MakeFolder() + "/train",
      {.train_samples = 2, .test_samples = 1, .test_fraction = 0.5});
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->train->size(), 2);
  EXPECT_EQ(data->test->size(), 1);
  EXPECT_EQ(data->train->num_classes(), 3);
  EXPECT_EQ(data->test->class_name(0), "B");
}

std::string ErrorOf(const absl::StatusOr<DatasetParts>& data) {
  return std::string(data.status().message());
}

TEST(LoadDatasetTest, NamesTheFlagTheFileOrTheLineAndTheFault) {
  using Change = std::function<void(const std::string& dir)>;
  const Change nothing = [](const std::string&) {};
  const auto replace = [](const std::string& file, const std::string& bytes) {
    return [=](const std::string& dir) { Write(dir + file, bytes); };
  };
  const auto remove = [](const std::string& what) {
    return [=](const std::string& dir) {
      std::filesystem::remove_all(dir + what);
    };
  };
  const auto folder = [](const std::string& what) {
    return [=](const std::string& dir) {
      std::filesystem::create_directories(dir + what);
    };
  };
  const struct {
    const char* name;
    Change change;
    std::string start;  // The message's start; "DIR" is the folder.
    std::string message;
    DatasetOptions options = {};
  } cases[] = {
      {"imagenet", nothing, "--dataset: 'imagenet' is not one of", "cifar10"},
      {"image_folder", remove("/train"), "DIR/train", "No such file"},
      {"image_folder", remove("/val"), "DIR: ", "neither a folder test nor"},
      {"image_folder",
       remove("/train"),
       "DIR: ",
       "but none named train",
       {.test_fraction = 0.5}},
      {"image_folder", folder("/train/empty"),
       "DIR/train/empty: ", "has no .jpg, .jpeg or .png file"},
      {"image_folder", replace("/val/c/1.png", Pixel(1)),
       "DIR/val/c: ", "is not a class of the folder train"},
      {"image_folder",
       [](const std::string& dir) {
         std::filesystem::remove_all(dir + "/train");
         std::filesystem::create_directories(dir + "/train");
       },
       "DIR/train: ", "has no folder"},
      {"image_folder",
       nothing,
       "--train_samples=7: ",
       "in [1, 6]",
       {.train_samples = 7}},
      {"image_folder", nothing, "--in_channels: ", "4", {.channels = 4}},
      {"image_folder",
       nothing,
       "--num_classes=2: ",
       "image_folder in DIR has 3",
       {.num_classes = 2}},
      {"image_folder",
       replace("/val/b/1.png", "no image"),
       "DIR/val: ",
       "all of the 1 images",
       {.skip_bad_images = true}},
      {"image_list", remove("/train_list.txt"), "DIR/train_list.txt",
       "No such file"},
      {"image_list", remove("/train/number two.png"),
       "DIR/train_list.txt: line 2: ", "there is no DIR/train/number two.png"},
      {"image_list", replace("/train_list.txt", ""),
       "DIR/train_list.txt: ", "line 1 is not a path and a label: ''"},
      {"image_list", replace("/train_list.txt", "a.png 0\nb.png\n"),
       "DIR/train_list.txt: ", "line 2 is not a path and a label: 'b.png'"},
      {"image_list", replace("/train_list.txt", "a.png zero\n"),
       "DIR/train_list.txt: ", "line 1 has a label that is not a number"},
      {"image_list", replace("/train_list.txt", "a.png -1\n"),
       "DIR/train_list.txt: ", "not a number in [0, 999999]: 'a.png -1'"},
      {"image_list", replace("/val_list.txt", "val/1.png 5\n"),
       "DIR/val_list.txt: ",
       "line 1 has a label that is not a number in [0, 4]"},
      {"image_list",
       nothing,
       "DIR/train_list.txt: ",
       "in [0, 3]",
       {.num_classes = 4}},
      {"cifar10", remove("/data_batch_4.bin"), "DIR/data_batch_4.bin",
       "No such file"},
      {"cifar10", replace("/test_batch.bin", std::string(3072, '\0')),
       "DIR/test_batch.bin: ", "has 3072 bytes"},
      {"cifar10", replace("/test_batch.bin", ""),
       "DIR/test_batch.bin: ", "has 0 bytes"},
      {"cifar10", replace("/data_batch_2.bin", std::string(3073, '\x0a')),
       "DIR/data_batch_2.bin: ", "label 0 is 10"},
      {"synthetic",
       nothing,
       "--image_size: ",
       "0 x 224",
       {.shape = {0, 224, 3}}},
      {"synthetic",
       nothing,
       "--test_samples=0: ",
       "in [1, ",
       {.test_samples = 0}},
      {"synthetic", nothing, "--num_classes: ", "-3", {.num_classes = -3}},
      {"cifar10",
       nothing,
       "--test_fraction=1: ",
       "above 0 and below 1",
       {.test_fraction = 1}},
      {"cifar10",
       nothing,
       "--test_fraction=-0.1: ",
       "above 0 and below 1",
       {.test_fraction = -0.1}},
      {"synthetic",
       nothing,
       "--test_fraction=0.5: ",
       "--test_samples",
       {.test_fraction = 0.5}},
      {"image_folder",
       nothing,
       "--test_samples=4: ",
       "in [1, 3]",
       {.test_samples = 4, .test_fraction = 0.5}}};
  for (const auto& [name, change, start, message, options] : cases) {
    const std::string dir = absl::StartsWith(name, "image_l") ? MakeList()
                            : name[0] == 'c'                  ? MakeCifar()
                                                              : MakeFolder();
    change(dir);
    const auto in_dir = [&](const std::string& text) {
      return absl::StrReplaceAll(text, {{"DIR", dir}});
    };
    EXPECT_THAT(ErrorOf(LoadDataset(name, dir, options)),
                AllOf(StartsWith(in_dir(start)), HasSubstr(in_dir(message)),
                      testing::Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(ErrorOf(LoadDataset("cifar10", "")),
              StartsWith("--data_dir: cifar10 needs"));
}

}  // namespace
}  // namespace lockstep
