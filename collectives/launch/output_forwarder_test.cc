#include "collectives/launch/output_forwarder.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST(LinePrefixerTest, PrefixesCompleteLines) {
  LinePrefixer prefixer("[3] ");
  EXPECT_EQ(prefixer.Add("one\ntwo\n"), "[3] one\n[3] two\n");
  EXPECT_EQ(prefixer.Add("\n"), "[3] \n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixerTest, HoldsPartialLineBack) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(prefixer.Add("par"), "");
  EXPECT_EQ(prefixer.Add("tial"), "");
  EXPECT_EQ(prefixer.Add("\nnext"), "[0] partial\n");
  EXPECT_EQ(prefixer.Finish(), "[0] next\n");
  EXPECT_EQ(prefixer.Finish(), "");
}

TEST(LinePrefixerTest, IsIndependentOfSplits) {
  const std::string text = "a\n\nbc\nd";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      LinePrefixer prefixer("> ");
      std::string out = prefixer.Add(text.substr(0, first));
      out += prefixer.Add(text.substr(first, second - first));
      out += prefixer.Add(text.substr(second));
      out += prefixer.Finish();
      EXPECT_EQ(out, "> a\n> \n> bc\n> d\n") << first << " " << second;
    }
  }
}

TEST(LinePrefixerTest, BreaksEndlessLine) {
  constexpr size_t kMax = LinePrefixer::kMaxLineBytes;
  LinePrefixer prefixer("> ");
  EXPECT_EQ(prefixer.Add(std::string(kMax, 'x')), "");
  EXPECT_EQ(prefixer.Add("\n"), "> " + std::string(kMax, 'x') + "\n");
  EXPECT_EQ(
      prefixer.Add(std::string(2 * kMax + 1, 'y')),
      "> " + std::string(kMax, 'y') + "\n> " + std::string(kMax, 'y') + "\n");
  EXPECT_EQ(prefixer.Finish(), "> y\n");
}

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

void WriteText(const OwnedFd& fd, absl::string_view text) {
  ASSERT_EQ(write(fd.get(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
}

// Moves what can be moved now.
void Pump(OutputForwarder& forwarder) {
  while (true) {
    std::vector<pollfd> fds;
    forwarder.AddPollFds(fds);
    if (poll(fds.data(), fds.size(), 0) == 0) return;
    forwarder.HandleEvents(fds);
    if (forwarder.Done()) return;
  }
}

std::string Contents(int fd) {
  std::string text(lseek(fd, 0, SEEK_END), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0),
            static_cast<ssize_t>(text.size()));
  return text;
}

OwnedFd NewFile() { return OwnedFd(memfd_create("output", MFD_CLOEXEC)); }

TEST(OutputForwarderTest, NeverMixesLines) {
  const OwnedFd out = NewFile();
  auto forwarder = OutputForwarder::Create(2, out.get(), out.get());
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  WriteText(ranks[0].out, "zero ");
  Pump(*forwarder);
  WriteText(ranks[1].out, "one ");
  Pump(*forwarder);
  WriteText(ranks[1].err, "error\n");
  Pump(*forwarder);
  WriteText(ranks[0].out, "a\nzero b");
  Pump(*forwarder);
  WriteText(ranks[1].out, "c\n");
  Pump(*forwarder);
  EXPECT_FALSE(forwarder->Done());
  ranks.clear();
  Pump(*forwarder);
  EXPECT_TRUE(forwarder->Done());
  EXPECT_EQ(Contents(out.get()),
            "[1] error\n[0] zero a\n[1] one c\n[0] zero b\n");
}

TEST(OutputForwarderTest, KeepsStreamsApart) {
  const OwnedFd out = NewFile();
  const OwnedFd err = NewFile();
  auto forwarder = OutputForwarder::Create(1, out.get(), err.get());
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  WriteText(ranks[0].out, "to out\n");
  WriteText(ranks[0].err, "to err\n");
  ranks.clear();
  Pump(*forwarder);
  EXPECT_TRUE(forwarder->Done());
  EXPECT_EQ(Contents(out.get()), "[0] to out\n");
  EXPECT_EQ(Contents(err.get()), "[0] to err\n");
}

TEST(OutputForwarderTest, KeepsTheEndAndWritesNothing) {
  const OwnedFd out = NewFile();
  auto forwarder =
      OutputForwarder::Create(2, out.get(), out.get(), {.keep_bytes = 4});
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  WriteText(ranks[0].out, "12");
  for (const char* text : {"123", "4", "567890", "\n", "ab"}) {
    WriteText(ranks[1].err, text);
    Pump(*forwarder);
  }
  ranks.clear();
  Pump(*forwarder);
  EXPECT_TRUE(forwarder->Done());
  EXPECT_EQ(Contents(out.get()), "");
  EXPECT_EQ(forwarder->TakeKept(), (std::vector<std::string>{"12", "0\nab"}));
}

// One line of `rank` that no pipe takes at once.
std::string LongLine(int rank) { return std::string(100'000, 'a' + rank); }

TEST(OutputForwarderTest, LongLinesOfManyRanksStayWhole) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const OwnedFd reader(ends[0]);
  const OwnedFd out(ends[1]);
  constexpr int kRanks = 3;
  auto forwarder = OutputForwarder::Create(kRanks, out.get(), out.get());
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  std::vector<std::string> unsent;
  for (int rank = 0; rank < kRanks; ++rank) {
    fcntl(ranks[rank].out.get(), F_SETFL, O_NONBLOCK);
    unsent.push_back(LongLine(rank) + "\n");
  }
  std::string received;
  while (!forwarder->Done()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (unsent[rank].empty()) {
        ranks[rank].out.Close();
        ranks[rank].err.Close();
        continue;
      }
      const ssize_t size =
          write(ranks[rank].out.get(), unsent[rank].data(),
                std::min<size_t>(unsent[rank].size(), 1000 + rank));
      if (size > 0) unsent[rank].erase(0, size);
    }
    Pump(*forwarder);
    char buffer[5000];
    const ssize_t size = read(reader.get(), buffer, sizeof(buffer));
    if (size > 0) received.append(buffer, size);
  }
  std::string rest(1 << 20, '\0');
  const ssize_t size = read(reader.get(), rest.data(), rest.size());
  if (size > 0) received.append(rest, 0, size);
  size_t length = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string line =
        absl::StrCat("[", rank, "] ", LongLine(rank), "\n");
    EXPECT_NE(received.find(line), std::string::npos) << rank;
    length += line.size();
  }
  EXPECT_EQ(received.size(), length);
}

TEST(OutputForwarderTest, HoldsRanksBackWhenNobodyReads) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const OwnedFd reader(ends[0]);
  const OwnedFd out(ends[1]);
  auto forwarder = OutputForwarder::Create(1, out.get(), out.get());
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  fcntl(ranks[0].out.get(), F_SETFL, O_NONBLOCK);
  const std::string lines(4096, '\n');
  int64_t taken = 0;
  while (write(ranks[0].out.get(), lines.data(), lines.size()) > 0) {
    taken += lines.size();
    ASSERT_LT(taken, 1 << 20);  // Else everything is kept in memory.
    Pump(*forwarder);
  }
  EXPECT_TRUE(forwarder->HasPending());
  forwarder->CloseSources();
  EXPECT_FALSE(forwarder->Done());
}

TEST(OutputForwarderTest, LogsBothStreamsOfARankAsTheyCome) {
  const OwnedFd out = NewFile();
  const OwnedFd err = NewFile();
  OutputOptions options;
  std::vector<int> files;  // Of the same logs, to read after the forwarder.
  for (int rank = 0; rank < 2; ++rank) {
    options.logs.push_back(NewFile());
    files.push_back(dup(options.logs[rank].get()));
  }
  auto forwarder =
      OutputForwarder::Create(2, out.get(), err.get(), std::move(options));
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  for (const char* text : {"one ", "two\n", "three"}) {
    WriteText(ranks[1].out, text);
    Pump(*forwarder);
    WriteText(ranks[1].err, "E");
    Pump(*forwarder);
  }
  WriteText(ranks[0].out, "\r\n");
  ranks.clear();
  Pump(*forwarder);
  EXPECT_TRUE(forwarder->Done());
  EXPECT_EQ(Contents(files[0]), "\r\n");
  EXPECT_EQ(Contents(files[1]), "one Etwo\nEthreeE");
  EXPECT_EQ(Contents(out.get()), "[1] one two\n[0] \r\n[1] three\n");
  EXPECT_EQ(Contents(err.get()), "[1] EEE\n");
  EXPECT_TRUE(forwarder->log_status().ok());
  for (const int file : files) close(file);
}

TEST(OutputForwarderTest, PassesBytesOnWithoutPrefix) {
  const OwnedFd out = NewFile();
  auto forwarder =
      OutputForwarder::Create(1, out.get(), out.get(), {.prefix = false});
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  WriteText(ranks[0].out, "10%\r");
  Pump(*forwarder);
  EXPECT_EQ(Contents(out.get()), "10%\r");  // Before the line ends.
  WriteText(ranks[0].out, "20%\r");
  ranks.clear();
  Pump(*forwarder);
  EXPECT_EQ(Contents(out.get()), "10%\r20%\r");
}

TEST(OutputForwarderTest, FullDiskEndsTheLogAndNothingElse) {
  const OwnedFd out = NewFile();
  OwnedFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.open());
  OutputOptions options;
  options.logs.push_back(std::move(full));
  auto forwarder =
      OutputForwarder::Create(1, out.get(), out.get(), std::move(options));
  ASSERT_TRUE(forwarder.ok());
  std::vector<RankStreams> ranks = forwarder->TakeRankEnds();
  for (int line = 0; line < 2; ++line) {
    WriteText(ranks[0].out, "line\n");
    Pump(*forwarder);
  }
  EXPECT_EQ(Contents(out.get()), "[0] line\n[0] line\n");
  EXPECT_THAT(forwarder->log_status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("the log of rank 0")));
}

}  // namespace
}  // namespace lockstep
