// Paths that a file can be written to, and others.
#include "benchmarks/json_file.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/file_io.h"

namespace lockstep {
namespace {

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
