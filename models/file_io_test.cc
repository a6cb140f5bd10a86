// Files are read whole and replaced whole.
#include "models/file_io.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(FileIoTest, ReadsBackWhatItReplaced) {
  const std::string path = absl::StrCat(testing::TempDir(), "/file");
  for (const std::string& bytes :
       {std::string("old"), std::string(), std::string(200000, '\0')}) {
    ASSERT_THAT(ReplaceFile(path, bytes), IsOk());
    EXPECT_THAT(ReadFile(path), IsOkAndHolds(bytes));
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  }
}

TEST(FileIoTest, NamesThePathInErrors) {
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

TEST(FileIoTest, LeavesAFolderInTheWayAndNothingPartial) {
  const std::string path = absl::StrCat(testing::TempDir(), "/folder");
  std::filesystem::create_directory(path);
  EXPECT_THAT(ReplaceFile(path, "x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/folder: cannot replace")));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(FileIoTest, SaysBeforehandWhatCannotBeReplaced) {
  const std::string file = absl::StrCat(testing::TempDir(), "/kept");
  EXPECT_THAT(CheckReplaceable(file), IsOk());
  EXPECT_FALSE(std::filesystem::exists(file));
  ASSERT_THAT(ReplaceFile(file, "old"), IsOk());
  EXPECT_THAT(CheckReplaceable(file), IsOk());
  EXPECT_THAT(ReadFile(file), IsOkAndHolds(std::string("old")));
  EXPECT_FALSE(std::filesystem::exists(file + ".partial"));
  const std::string folder = absl::StrCat(testing::TempDir(), "/in_the_way");
  std::filesystem::create_directory(folder);
  for (const std::string& path : {std::string("/nonexistent/file"), folder}) {
    EXPECT_EQ(CheckReplaceable(path), ReplaceFile(path, "")) << path;
    EXPECT_FALSE(CheckReplaceable(path).ok()) << path;
  }
}

}  // namespace
}  // namespace lockstep
