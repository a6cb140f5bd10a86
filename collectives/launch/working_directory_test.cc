#include "collectives/launch/working_directory.h"

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

TEST(WorkingDirectoryTest, TakesRelativePathsFromWhereBazelWasRun) {
  setenv(kVariable, "/home/user", 1);
  EXPECT_EQ(UserPath("out"), "/home/user/out");
  EXPECT_EQ(UserPath("../out"), "/home/user/../out");
  EXPECT_EQ(UserPath("/out"), "/out");
  EXPECT_EQ(UserPath(""), "");
  unsetenv(kVariable);
}

TEST(WorkingDirectoryTest, LeavesPathsAloneWithoutBazel) {
  unsetenv(kVariable);
  for (const char* path : {"out", "/out", ""}) EXPECT_EQ(UserPath(path), path);
}

TEST(WorkingDirectoryTest, EntersOnce) {
  const std::filesystem::path before = std::filesystem::current_path();
  unsetenv(kVariable);
  EXPECT_THAT(EnterUserDirectory(), IsOk());
  EXPECT_EQ(std::filesystem::current_path(), before);
  setenv(kVariable, "/proc", 1);
  EXPECT_THAT(EnterUserDirectory(), IsOk());
  EXPECT_EQ(std::filesystem::current_path(), "/proc");
  EXPECT_EQ(getenv(kVariable), nullptr);
  std::filesystem::current_path(before);
}

TEST(WorkingDirectoryTest, NamesFolderThatIsNotThere) {
  setenv(kVariable, "/proc/no-such-folder", 1);
  EXPECT_THAT(
      EnterUserDirectory(),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("BUILD_WORKING_DIRECTORY=/proc/no-such-folder")));
  unsetenv(kVariable);
}

}  // namespace
}  // namespace lockstep
