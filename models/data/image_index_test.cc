#include "models/data/image_index.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

std::vector<ImageFile> FilesOf(const ImageIndex& index) {
  std::vector<ImageFile> files;
  for (int64_t i = 0; i < index.size(); ++i) files.push_back(index[i]);
  return files;
}

// Folders alternate, as in a shuffled list.
TEST(ImageIndexTest, ReturnsThePathsThatItWasGiven) {
  ImageIndex index;
  index.Add("a/1.png", 0);
  index.Add("b/1.png", 1);
  index.Add("a/2.png", 2);
  index.Add("3.png", 3);
  index.Add("/4.png", 4);
  index.Add("b/c/", "5.png", 5);
  EXPECT_THAT(FilesOf(index),
              ElementsAre(ImageFile{"a/1.png", 0}, ImageFile{"b/1.png", 1},
                          ImageFile{"a/2.png", 2}, ImageFile{"3.png", 3},
                          ImageFile{"/4.png", 4}, ImageFile{"b/c/5.png", 5}));
}

TEST(ImageIndexTest, ChoosesFilesInTheOrderAskedFor) {
  ImageIndex index;
  for (const char* path : {"a/1", "b/22", "a/333", "c/4444"}) {
    index.Add(path, static_cast<int>(index.size()));
  }
  EXPECT_THAT(FilesOf(index.Choose({3, 1, 1, 0})),
              ElementsAre(ImageFile{"c/4444", 3}, ImageFile{"b/22", 1},
                          ImageFile{"b/22", 1}, ImageFile{"a/1", 0}));
  EXPECT_EQ(index.Choose({}).size(), 0);
}

}  // namespace
}  // namespace lockstep
