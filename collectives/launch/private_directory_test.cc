#include "collectives/launch/private_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class PrivateDirectoryTest : public testing::Test {
 protected:
  PrivateDirectoryTest()
      : root_(absl::StrCat(testing::TempDir(), "/private_directory_test")),
        path_(root_ + "/run") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~PrivateDirectoryTest() override { std::filesystem::remove_all(root_); }

  void ExpectRefused() {
    EXPECT_THAT(PrivateDirectory::Open(path_),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr(path_ + " is not a folder")));
  }

  const std::string root_;
  const std::string path_;
};

TEST_F(PrivateDirectoryTest, LastToGoRemovesIt) {
  const mode_t before = umask(0);
  std::optional<PrivateDirectory> first;
  {
    auto opened = PrivateDirectory::Open(path_);
    ASSERT_THAT(opened, IsOk());
    first.emplace(*std::move(opened));
  }
  EXPECT_EQ(first->path(), path_);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  {
    const auto second = PrivateDirectory::Open(path_);
    ASSERT_THAT(second, IsOk());
    std::ofstream(path_ + "/file") << "text";
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + "/file"));  // Not empty.
  std::filesystem::remove(path_ + "/file");
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  umask(before);
}

TEST_F(PrivateDirectoryTest, RefusesWhatOthersCanOpen) {
  for (const mode_t mode : {0701, 0710, 0720, 0777}) {
    ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    ExpectRefused();
    ASSERT_EQ(rmdir(path_.c_str()), 0);
  }
}

TEST_F(PrivateDirectoryTest, RefusesWhatIsNoFolder) {
  std::ofstream(path_) << "text";
  ExpectRefused();
  std::filesystem::remove(path_);
  // A link, even to a folder that would do.
  ASSERT_EQ(mkdir((root_ + "/other").c_str(), 0700), 0);
  std::filesystem::create_symlink(root_ + "/other", path_);
  ExpectRefused();
  EXPECT_TRUE(std::filesystem::exists(root_ + "/other"));
}

TEST_F(PrivateDirectoryTest, RefusesAnotherUsersFolder) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  if (chown(path_.c_str(), 12345, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root can make another user's folder";
  }
  ExpectRefused();
}

// Whoever leaves removes the folder under the one that comes.
TEST_F(PrivateDirectoryTest, OpensWhileOthersLeave) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 2000; ++round) {
        ASSERT_THAT(PrivateDirectory::Open(path_), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(PrivateDirectoryTest, NamesTheFolderThatCannotBe) {
  const std::string path = root_ + "/none/run";
  EXPECT_THAT(PrivateDirectory::Open(path),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
}

}  // namespace
}  // namespace lockstep
