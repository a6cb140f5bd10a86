#include "collectives/launch/launcher_process.h"

#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/rendezvous/process_identity.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr char kProgram[] = "collectives/launch/testing/print_launcher_process";

std::string ThisProcessText() {
  const ProcessIdentity self = ThisProcess();
  return absl::StrCat(self.pid, " ", self.start_ticks, "\n");
}

TEST(LauncherProcessTest, IsTheParentOfAPlainRank) {
  ChildProcess rank({kProgram}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsAboveShellsOfTheRank) {
  const std::string shells = absl::StrCat("sh -c '", kProgram, "; true'; true");
  ChildProcess rank({"sh", "-c", shells}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsTheInnerOfTwo) {
  // The shell is rank 0 of run a, and starts rank 0 of run b.
  ChildProcess outer(
      {"sh", "-c", absl::StrCat("echo $$; RUN=b ", kProgram, "; true")},
      {"RANK=0", "RUN=a"});
  EXPECT_EQ(outer.Wait(), 0);
  const std::string shell = absl::StrCat(outer.pid(), "\n", outer.pid(), " ");
  EXPECT_EQ(outer.out().substr(0, shell.size()), shell);
}

TEST(LauncherProcessTest, IsTheParentIfNothingMarksARank) {
  unsetenv("RANK");
  unsetenv("RUN");
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  EXPECT_EQ(FindLauncherProcess(names).pid, getppid());
  EXPECT_EQ(FindLauncherProcess({}).pid, getppid());
}

}  // namespace
}  // namespace lockstep
