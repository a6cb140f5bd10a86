// Parsing of what the system says about itself.
#include "report/machine.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

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

}  // namespace
}  // namespace lockstep
