#include "collectives/launch/output_forwarder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
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

TEST(LinePrefixerTest, HoldsPartialLineBack) {
  LinePrefixer prefixer("[0] ");
  EXPECT_EQ(prefixer.Add("one\ntwo\n"), "[0] one\n[0] two\n");
  EXPECT_EQ(prefixer.Finish(), "");
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
  EXPECT_THAT(ReadFile(file), IsOkAndHolds("here"));
}

std::string Contents(int fd) {
  std::string text(lseek(fd, 0, SEEK_END), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0),
            static_cast<ssize_t>(text.size()));
  return text;
}

OwnedFd NewFile() { return OwnedFd(memfd_create("output", MFD_CLOEXEC)); }

// A forwarder to two files, or to one.
class OutputForwarderTest : public testing::Test {
 protected:
  void Create(int world_size, OutputOptions options = {}) {
    CreateTo(world_size, out_, err_, std::move(options));
  }
  void CreateTo(int world_size, const OwnedFd& out, const OwnedFd& err,
                OutputOptions options = {}) {
    auto made = OutputForwarder::Create(world_size, out.get(), err.get(),
                                        std::move(options));
    ASSERT_THAT(made.status(), IsOk());
    forwarder_ = *std::move(made);
    ranks_ = forwarder_.TakeRankEnds();
  }

  // Moves what can be moved now.
  void Pump() {
    while (!forwarder_.Done()) {
      std::vector<pollfd> fds;
      forwarder_.AddPollFds(fds);
      if (poll(fds.data(), fds.size(), 0) == 0) return;
      forwarder_.HandleEvents(fds);
    }
  }
  // A rank's next output, and its way to the files.
  void Say(const OwnedFd& stream, absl::string_view text) {
    ASSERT_EQ(write(stream.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
    Pump();
  }
  void EndRanks() {
    ranks_.clear();
    Pump();
    EXPECT_TRUE(forwarder_.Done());
  }

  const OwnedFd out_ = NewFile();
  const OwnedFd err_ = NewFile();
  OutputForwarder forwarder_;
  std::vector<RankStreams> ranks_;
};

TEST_F(OutputForwarderTest, NeverMixesLines) {
  CreateTo(2, out_, out_);
  Say(ranks_[0].out, "zero ");
  Say(ranks_[1].out, "one ");
  Say(ranks_[1].err, "error\n");
  Say(ranks_[0].out, "a\nzero b");
  Say(ranks_[1].out, "c\n");
  EXPECT_FALSE(forwarder_.Done());
  EndRanks();
  EXPECT_EQ(Contents(out_.get()),
            "[1] error\n[0] zero a\n[1] one c\n[0] zero b\n");
}

TEST_F(OutputForwarderTest, KeepsTheEndAndWritesNothing) {
  Create(2, {.keep_bytes = 4});
  Say(ranks_[0].out, "12");
  for (const char* text : {"123", "4", "567890", "\n", "ab"}) {
    Say(ranks_[1].err, text);
  }
  EndRanks();
  EXPECT_EQ(Contents(out_.get()), "");
  EXPECT_EQ(forwarder_.TakeKept(), (std::vector<std::string>{"12", "0\nab"}));
}

// One line of `rank` that no pipe takes at once.
std::string LongLine(int rank) { return std::string(100'000, 'a' + rank); }

TEST_F(OutputForwarderTest, LongLinesOfManyRanksStayWhole) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const OwnedFd reader(ends[0]);
  const OwnedFd out(ends[1]);
  constexpr int kRanks = 3;
  CreateTo(kRanks, out, out);
  std::vector<std::string> unsent;
  for (int rank = 0; rank < kRanks; ++rank) {
    fcntl(ranks_[rank].out.get(), F_SETFL, O_NONBLOCK);
    unsent.push_back(LongLine(rank) + "\n");
  }
  std::string received;
  while (!forwarder_.Done()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (unsent[rank].empty()) {
        ranks_[rank].out.Close();
        ranks_[rank].err.Close();
        continue;
      }
      const ssize_t size =
          write(ranks_[rank].out.get(), unsent[rank].data(),
                std::min<size_t>(unsent[rank].size(), 1000 + rank));
      if (size > 0) unsent[rank].erase(0, size);
    }
    Pump();
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

TEST_F(OutputForwarderTest, HoldsRanksBackWhenNobodyReads) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const OwnedFd reader(ends[0]);
  const OwnedFd out(ends[1]);
  CreateTo(1, out, out);
  fcntl(ranks_[0].out.get(), F_SETFL, O_NONBLOCK);
  const std::string lines(4096, '\n');
  int64_t taken = 0;
  while (write(ranks_[0].out.get(), lines.data(), lines.size()) > 0) {
    taken += lines.size();
    ASSERT_LT(taken, 1 << 20);  // Else everything is kept in memory.
    Pump();
  }
  EXPECT_TRUE(forwarder_.HasPending());
  forwarder_.CloseSources();
  EXPECT_FALSE(forwarder_.Done());
}

TEST_F(OutputForwarderTest, LogsBothStreamsOfARankAsTheyCome) {
  OutputOptions options;
  std::vector<int> files;  // Of the same logs, to read after the forwarder.
  for (int rank = 0; rank < 2; ++rank) {
    options.logs.push_back({"log", NewFile()});
    files.push_back(dup(options.logs[rank].file.get()));
  }
  Create(2, std::move(options));
  for (const char* text : {"one ", "two\n", "three"}) {
    Say(ranks_[1].out, text);
    Say(ranks_[1].err, "E");
  }
  Say(ranks_[0].out, "\r\n");
  EndRanks();
  EXPECT_EQ(Contents(files[0]), "\r\n");
  EXPECT_EQ(Contents(files[1]), "one Etwo\nEthreeE");
  EXPECT_EQ(Contents(out_.get()), "[1] one two\n[0] \r\n[1] three\n");
  EXPECT_EQ(Contents(err_.get()), "[1] EEE\n");
  EXPECT_THAT(forwarder_.log_status(), IsOk());
  for (const int file : files) close(file);
}

TEST_F(OutputForwarderTest, PassesBytesOnWithoutPrefix) {
  Create(1, {.prefix = false});
  Say(ranks_[0].out, "10%\r");
  EXPECT_EQ(Contents(out_.get()), "10%\r");  // Before the line ends.
  Say(ranks_[0].out, "20%\r");
  EndRanks();
  EXPECT_EQ(Contents(out_.get()), "10%\r20%\r");
}

TEST_F(OutputForwarderTest, FullDiskEndsTheLogAndNothingElse) {
  OutputOptions options;
  options.logs.push_back(
      {"logs/rank-0.log", OwnedFd(open("/dev/full", O_WRONLY | O_CLOEXEC))});
  Create(1, std::move(options));
  for (int line = 0; line < 2; ++line) Say(ranks_[0].out, "line\n");
  EXPECT_EQ(Contents(out_.get()), "[0] line\n[0] line\n");
  EXPECT_THAT(
      forwarder_.log_status(),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("cannot write the log of rank 0 (logs/rank-0.log)")));
}

}  // namespace
}  // namespace lockstep
