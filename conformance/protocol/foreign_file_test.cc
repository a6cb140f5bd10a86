// What may stand where a file should: each gives an answer, and at once.
#include "conformance/protocol/foreign_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class ForeignFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/foreign_file");
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
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

  std::string folder_;
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
  // Of which almost none are on the disk.
  const std::string path = Write("sparse", "");
  std::filesystem::resize_file(path, uint64_t{1} << 40);
  EXPECT_THAT(ReadForeignFile(path, int64_t{2} << 30),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("at most")));
  // Whose size is said to be 0.
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
  // By a short name: the path of a socket has at most some hundred bytes.
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

}  // namespace
}  // namespace lockstep
