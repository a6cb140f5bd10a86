// The machine, lines of text, and paths of files.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/machine.h"
#include "report/output_files.h"
#include "report/terminal.h"

namespace lockstep {
namespace {

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

// A folder with an empty .git/refs/heads.
std::string MakeWorkTree(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  for (const char* part : {"", "/.git", "/.git/refs", "/.git/refs/heads"}) {
    mkdir(absl::StrCat(folder, part).c_str(), 0755);
  }
  return folder;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(CpuModelTest, IsTheFirstModelName) {
  EXPECT_EQ(CpuModel("processor\t: 0\nmodel\t\t: 17\n"
                     "model name\t: Example 9000: the fast one \n"
                     "model name\t: Another\n"),
            "Example 9000: the fast one");
}

TEST(CpuModelTest, IsUnknownWithoutOne) {
  EXPECT_EQ(CpuModel(""), "unknown CPU");
  EXPECT_EQ(CpuModel("processor : 0\nno colon here\n"), "unknown CPU");
}

TEST(DescribeMachineTest, KnowsThisMachine) {
  const Machine machine = DescribeMachine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_FALSE(machine.system.empty());
  EXPECT_GT(machine.memory_bytes, 1 << 20);
}

TEST(CheckedOutCommitTest, FollowsALooseRef) {
  const std::string folder = MakeWorkTree("loose");
  WriteText(folder + "/.git/HEAD", "ref: refs/heads/main\n");
  WriteText(folder + "/.git/refs/heads/main", absl::StrCat(kCommit, "\n"));
  EXPECT_EQ(CheckedOutCommit(folder), kCommit);
}

TEST(CheckedOutCommitTest, FollowsAPackedRef) {
  const std::string folder = MakeWorkTree("packed");
  WriteText(folder + "/.git/HEAD", "ref: refs/heads/main\n");
  WriteText(
      folder + "/.git/packed-refs",
      absl::StrCat("# pack-refs with: peeled\n", std::string(40, 'f'),
                   " refs/heads/mainline\n", kCommit, " refs/heads/main\n"));
  EXPECT_EQ(CheckedOutCommit(folder), kCommit);
}

TEST(CheckedOutCommitTest, ReadsADetachedHead) {
  const std::string folder = MakeWorkTree("detached");
  WriteText(folder + "/.git/HEAD", absl::StrCat(kCommit, "\n"));
  EXPECT_EQ(CheckedOutCommit(folder), kCommit);
}

TEST(CheckedOutCommitTest, IsEmptyWhenItCannotBeTold) {
  const std::string folder = MakeWorkTree("unborn");
  EXPECT_EQ(CheckedOutCommit(folder), "");
  WriteText(folder + "/.git/HEAD", "ref: refs/heads/unborn\n");
  EXPECT_EQ(CheckedOutCommit(folder), "");
  WriteText(folder + "/.git/HEAD", "something else\n");
  EXPECT_EQ(CheckedOutCommit(folder), "");
  EXPECT_EQ(CheckedOutCommit(folder + "/absent"), "");
}

// Lines of given lengths.

TEST(WrapTextTest, BreaksBetweenWordsOnly) {
  EXPECT_EQ(WrapText("", 5), "\n");
  EXPECT_EQ(WrapText("ab cd", 5), "ab cd\n");
  EXPECT_EQ(WrapText("ab cde", 5), "ab\ncde\n");
  EXPECT_EQ(WrapText("abcdefg hi  jk l", 5), "abcdefg\nhi jk\nl\n");
}

// Paths that a file can be written to, and others.

using ::testing::StartsWith;

// In a folder of this test's own.
std::string PathOf(const std::string& name) {
  const std::string folder = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::create_directories(folder);
  return absl::StrCat(folder, "/", name);
}

TEST(JsonFileTest, AcceptsWhatItCanWrite) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  // 247 letters and ".partial" are the longest name that there is.
  for (const std::string& name :
       {std::string("new.json"), std::string(247, 'x')}) {
    const std::string path = PathOf(name);
    for (const char* json : {"{}", "[1]"}) {  // The second replaces the first.
      ASSERT_THAT(CheckJsonPath(path), IsOk());
      ASSERT_THAT(WriteJsonFile(path, json), IsOk());
      EXPECT_THAT(ReadFile(path), IsOkAndHolds(json));
    }
  }
}

TEST(JsonFileTest, WritesNothingWithoutAPath) {
  EXPECT_THAT(CheckJsonPath(""), IsOk());
  EXPECT_THAT(WriteJsonFile("", "{}"), IsOk());
}

TEST(JsonFileTest, RejectsWhatItCannotWrite) {
  unsetenv("BUILD_WORKING_DIRECTORY");
  const std::string folder = PathOf("folder");
  std::filesystem::create_directory(folder);
  const std::string loop = PathOf("loop");
  std::filesystem::create_symlink(loop, loop);
  for (const std::string& path :
       {folder, loop, PathOf(std::string(300, 'x')),
        PathOf(std::string(248, 'x')), PathOf("absent/x.json"),
        PathOf("loop/x.json"), std::string("/")}) {
    EXPECT_THAT(CheckJsonPath(path),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("--json: cannot write to ")))
        << path;
  }
}

}  // namespace
}  // namespace lockstep
