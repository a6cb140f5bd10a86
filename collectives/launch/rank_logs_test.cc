#include "collectives/launch/rank_logs.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/launch/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class RankLogsTest : public testing::Test {
 protected:
  RankLogsTest() : root_(absl::StrCat(testing::TempDir(), "/rank_logs_test")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~RankLogsTest() override { std::filesystem::remove_all(root_); }

  const std::string root_;
};

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_F(RankLogsTest, CreatesFoldersAndOneEmptyFileForEachRank) {
  const std::string folder = root_ + "/a/b";
  for (int run = 0; run < 2; ++run) {  // The second finds the first's files.
    const auto logs = OpenRankLogs(folder, 3);
    ASSERT_THAT(logs, IsOkAndHolds(SizeIs(3)));
    for (int rank = 0; rank < 3; ++rank) {
      const std::string path = RankLogPath(folder, rank);
      EXPECT_EQ(path, absl::StrCat(folder, "/rank-", rank, ".log"));
      EXPECT_EQ(Contents(path), "");
      ASSERT_EQ(write((*logs)[rank].get(), "text", 4), 4);
      EXPECT_EQ(Contents(path), "text");
    }
  }
}

TEST_F(RankLogsTest, NamesWhatCannotBeWritten) {
  const std::string file = root_ + "/file";
  std::ofstream(file) << "here";
  std::filesystem::create_directories(root_ + "/taken/rank-1.log");
  ASSERT_EQ(mkdir((root_ + "/pipe").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo((root_ + "/pipe/rank-0.log").c_str(), 0600), 0);
  const struct {
    std::string folder;
    std::string named;
  } kCases[] = {{file, file},
                {file + "/below", file + "/below"},
                {"/proc/no-such-folder", "/proc/no-such-folder"},
                {root_ + "/taken", root_ + "/taken/rank-1.log"},
                {root_ + "/pipe", root_ + "/pipe/rank-0.log"}};
  for (const auto& test : kCases) {
    EXPECT_THAT(OpenRankLogs(test.folder, 2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(test.named), Not(HasSubstr("\n")))));
  }
  EXPECT_EQ(Contents(file), "here");
}

}  // namespace
}  // namespace lockstep
