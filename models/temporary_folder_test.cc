// A temporary folder is its own, this user's alone, and gone in the end.
#include "models/temporary_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/file_io.h"

namespace lockstep {
namespace {

using std::filesystem::perms;
using testing::HasSubstr;

class TemporaryFolderTest : public testing::Test {
 protected:
  void SetUp() override { SetTmpdir(testing::TempDir()); }

  static void SetTmpdir(const std::string& path) {
    ASSERT_EQ(setenv("TMPDIR", path.c_str(), /*replace=*/1), 0);
  }
};

TEST_F(TemporaryFolderTest, IsBelowTmpdirForThisUserAlone) {
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("lockstep-test");
  ASSERT_THAT(folder, IsOk());
  const std::filesystem::path path = folder->path();
  EXPECT_TRUE(
      std::filesystem::equivalent(path.parent_path(), testing::TempDir()));
  EXPECT_THAT(path.filename().string(), testing::StartsWith("lockstep-test-"));
  EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_all);
}

TEST_F(TemporaryFolderTest, IsAnotherEachTime) {
  const absl::StatusOr<TemporaryFolder> first = TemporaryFolder::Create("same");
  const absl::StatusOr<TemporaryFolder> next = TemporaryFolder::Create("same");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(next, IsOk());
  EXPECT_NE(first->path(), next->path());
}

TEST_F(TemporaryFolderTest, GoesWithAllThatIsInIt) {
  absl::StatusOr<TemporaryFolder> made = TemporaryFolder::Create("gone");
  ASSERT_THAT(made, IsOk());
  const std::string path = made->path();
  std::optional<TemporaryFolder> folder(*std::move(made));
  ASSERT_TRUE(std::filesystem::create_directory(path + "/sub"));
  ASSERT_THAT(ReplaceFile(path + "/sub/file", "bytes"), IsOk());
  ASSERT_TRUE(std::filesystem::exists(path));
  folder.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(TemporaryFolderTest, AnEmptyTmpdirIsAsNone) {
  SetTmpdir("");
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create("any");
  ASSERT_THAT(folder, IsOk());
  EXPECT_THAT(folder->path(), testing::StartsWith("/tmp/any-"));
}

TEST_F(TemporaryFolderTest, AnUnusableTmpdirIsNamed) {
  SetTmpdir("/nonexistent");
  EXPECT_THAT(TemporaryFolder::Create("any"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("TMPDIR")));
  EXPECT_THAT(
      TemporaryFolder::Create("any"),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nonexistent")));
}

}  // namespace
}  // namespace lockstep
