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

}  // namespace
}  // namespace lockstep
