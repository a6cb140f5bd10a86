#include "base/files.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using std::filesystem::perms;
using testing::HasSubstr;

TEST(FilesTest, ReadsBackWhatItReplaced) {
  const std::string path = absl::StrCat(testing::TempDir(), "/file");
  for (const std::string& bytes :
       {std::string("old"), std::string(), std::string(200000, '\0')}) {
    ASSERT_THAT(ReplaceFile(path, bytes), IsOk());
    EXPECT_THAT(ReadFile(path), IsOkAndHolds(bytes));
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  }
}

TEST(FilesTest, NamesThePathInErrors) {
  EXPECT_THAT(ReadFile("/nonexistent/file"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/file: cannot open")));
  EXPECT_THAT(ReplaceFile("/nonexistent/file", ""),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/file.partial: cannot create")));
  EXPECT_THAT(ReadFile(testing::TempDir()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot read")));
}

TEST(FilesTest, NamesAFileBeyondTheSizeLimitAndLeavesNothingPartial) {
  const std::string path = absl::StrCat(testing::TempDir(), "/limited");
  ASSERT_THAT(ReplaceFile(path, "old"), IsOk());
  sigset_t before;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit limit = {1000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = ReplaceFile(path, std::string(1001, 'x'));
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       absl::StrCat(path,
                                    ".partial: cannot write: beyond the "
                                    "file size limit (ulimit -f)")));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_THAT(ReadFile(path), IsOkAndHolds(std::string("old")));
  // Afterwards the signal is neither pending nor newly blocked.
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  sigset_t after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  EXPECT_EQ(sigismember(&after, SIGXFSZ), sigismember(&before, SIGXFSZ));
}

TEST(FilesTest, SaysBeforehandAndThenWhatCannotBeReplaced) {
  const std::string file = absl::StrCat(testing::TempDir(), "/kept");
  EXPECT_THAT(CheckReplaceable(file), IsOk());
  EXPECT_FALSE(std::filesystem::exists(file));
  ASSERT_THAT(ReplaceFile(file, "old"), IsOk());
  EXPECT_THAT(CheckReplaceable(file), IsOk());
  EXPECT_THAT(ReadFile(file), IsOkAndHolds(std::string("old")));
  EXPECT_FALSE(std::filesystem::exists(file + ".partial"));
  const std::string folder = absl::StrCat(testing::TempDir(), "/folder");
  std::filesystem::create_directory(folder);
  EXPECT_THAT(ReplaceFile(folder, "x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/folder: cannot replace")));
  EXPECT_FALSE(std::filesystem::exists(folder + ".partial"));
  for (const std::string& path : {std::string("/nonexistent/file"), folder}) {
    EXPECT_EQ(CheckReplaceable(path), ReplaceFile(path, "")) << path;
    EXPECT_FALSE(CheckReplaceable(path).ok()) << path;
  }
}

class ForeignFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }

  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  void ExpectNotRegular(const std::string& path) const {
    EXPECT_THAT(ReadForeignFile(path, 10),
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat(path, ": is not a regular file")));
  }

  const TemporaryFolder folder_ =
      TemporaryFolder::Create("foreign", testing::TempDir()).value();
};

TEST_F(ForeignFileTest, ReadsWhatIsThere) {
  const std::string bytes("a\0\xff\n", 4);
  const std::string path = Write("file", bytes);
  EXPECT_THAT(ReadForeignFile(path, 4), IsOkAndHolds(bytes));
  EXPECT_THAT(ReadForeignFile(Write("empty", ""), 0), IsOkAndHolds(""));
  std::filesystem::create_symlink(path, Path("link"));
  EXPECT_THAT(ReadForeignFile(Path("link"), 4), IsOkAndHolds(bytes));
  const std::string large((1 << 16) + 1, 'x');
  EXPECT_THAT(ReadForeignFile(Write("large", large), 1 << 20),
              IsOkAndHolds(large));
}

TEST_F(ForeignFileTest, RefusesAFileThatIsTooLarge) {
  EXPECT_THAT(ReadForeignFile(Write("file", "12345"), 4),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("file: has 5 bytes; at most 4")));
  // The file is sparse: few of its blocks are allocated.
  const std::string path = Write("sparse", "");
  std::filesystem::resize_file(path, uint64_t{1} << 40);
  EXPECT_THAT(ReadForeignFile(path, int64_t{2} << 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("at most")));
  // The system reports a size of 0 for this file.
  EXPECT_THAT(ReadForeignFile("/proc/self/status", 4),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("at most 4")));
}

TEST_F(ForeignFileTest, NamesWhatIsMissing) {
  EXPECT_THAT(ReadForeignFile(Path("none"), 4),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("none"))));
  std::filesystem::create_symlink(Path("none"), Path("dangling"));
  EXPECT_THAT(
      ReadForeignFile(Path("dangling"), 4),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("dangling"))));
  std::filesystem::create_symlink(Path("circle"), Path("circle"));
  EXPECT_FALSE(ReadForeignFile(Path("circle"), 4).ok());
  EXPECT_FALSE(ReadForeignFile(Write("file", "") + "/below", 4).ok());
}

TEST_F(ForeignFileTest, RefusesWhatIsNoFile) {
  std::filesystem::create_directory(Path("folder"));
  ExpectNotRegular(Path("folder"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectNotRegular(Path("pipe"));
  ExpectNotRegular("/dev/zero");
  std::filesystem::create_symlink("/dev/zero", Path("device"));
  ExpectNotRegular(Path("device"));
  // The name is short, since the path of a socket has at most about a hundred
  // bytes.
  const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat("/tmp/lockstep-foreign-", getpid());
  std::strncpy(address.sun_path, name.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(
      bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
      0);
  ExpectNotRegular(name);
  close(descriptor);
  unlink(name.c_str());
}

void SetTmpdir(const std::string& path) {
  ASSERT_EQ(setenv("TMPDIR", path.c_str(), /*replace=*/1), 0);
}

TEST(TemporaryFolderTest, IsBelowTmpdirForThisUserAlone) {
  SetTmpdir(testing::TempDir());
  const auto folder = TemporaryFolder::Create("lockstep-test");
  ASSERT_THAT(folder, IsOk());
  const std::filesystem::path path = folder->path();
  EXPECT_TRUE(
      std::filesystem::equivalent(path.parent_path(), testing::TempDir()));
  EXPECT_THAT(path.filename().string(), testing::StartsWith("lockstep-test-"));
  EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_all);
}

TEST(TemporaryFolderTest, IsAnotherEachTime) {
  const TemporaryFolder first = TemporaryFolder::Create("same").value();
  EXPECT_NE(TemporaryFolder::Create("same")->path(), first.path());
  EXPECT_THAT(TemporaryFolder::Create("same", first.path())->path(),
              testing::StartsWith(first.path() + "/same-"));
}

TEST(TemporaryFolderTest, GoesWithAllThatIsInIt) {
  std::optional<TemporaryFolder> folder =
      TemporaryFolder::Create("gone").value();
  const std::string path = folder->path();
  ASSERT_TRUE(std::filesystem::create_directory(path + "/sub"));
  ASSERT_THAT(ReplaceFile(path + "/sub/file", "bytes"), IsOk());
  ASSERT_TRUE(std::filesystem::exists(path));
  folder.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolderTest, AnEmptyTmpdirIsAsNoneAndAnUnusableOneIsNamed) {
  SetTmpdir("");
  EXPECT_THAT(TemporaryFolder::Create("any").value().path(),
              testing::StartsWith("/tmp/any-"));
  const std::string before = testing::TempDir();  // May be TMPDIR's.
  SetTmpdir("/nonexistent");
  EXPECT_THAT(TemporaryFolder::Create("any"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("(TMPDIR): /nonexistent")));
  SetTmpdir(before);
}

class SharedFolderTest : public testing::Test {
 protected:
  void ExpectRefused() {
    EXPECT_THAT(TemporaryFolder::OpenShared(path_),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr(path_ + " is not a folder")));
  }

  const TemporaryFolder folder_ =
      TemporaryFolder::Create("shared", testing::TempDir()).value();
  const std::string& root_ = folder_.path();
  const std::string path_ = root_ + "/run";
};

TEST_F(SharedFolderTest, LastToGoRemovesIt) {
  const mode_t before = umask(0);
  std::optional<TemporaryFolder> first =
      TemporaryFolder::OpenShared(path_).value();
  EXPECT_EQ(first->path(), path_);
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  {
    const auto second = TemporaryFolder::OpenShared(path_);
    ASSERT_THAT(second, IsOk());
    std::ofstream(path_ + "/file") << "text";
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + "/file"));  // Not empty.
  std::filesystem::remove(path_ + "/file");
  first.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  umask(before);
}

TEST_F(SharedFolderTest, RefusesWhatOthersCanOpen) {
  for (const mode_t mode : {0701, 0710, 0720, 0777}) {
    ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    ExpectRefused();
    ASSERT_EQ(rmdir(path_.c_str()), 0);
  }
}

TEST_F(SharedFolderTest, RefusesWhatIsNoFolder) {
  std::ofstream(path_) << "text";
  ExpectRefused();
  std::filesystem::remove(path_);
  // A link is refused even if it leads to an acceptable folder.
  ASSERT_EQ(mkdir((root_ + "/other").c_str(), 0700), 0);
  std::filesystem::create_symlink(root_ + "/other", path_);
  ExpectRefused();
  EXPECT_TRUE(std::filesystem::exists(root_ + "/other"));
}

TEST_F(SharedFolderTest, RefusesAnotherUsersFolder) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  if (chown(path_.c_str(), 12345, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root can make another user's folder";
  }
  ExpectRefused();
}

// A leaving thread can remove the folder while another opens it.
TEST_F(SharedFolderTest, OpensWhileOthersLeave) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this] {
      for (int round = 0; round < 2000; ++round) {
        ASSERT_THAT(TemporaryFolder::OpenShared(path_), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedFolderTest, NamesTheFolderThatCannotBe) {
  const std::string path = root_ + "/none/run";
  EXPECT_THAT(TemporaryFolder::OpenShared(path),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
}

}  // namespace
}  // namespace lockstep
