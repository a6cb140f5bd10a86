// Tests of Launch() and its parts as a caller in the same process sees them,
// and of forwarding the ranks' output. launch_test.cc tests the command
// `launch` from outside.
#include "collectives/launch/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/output_forwarder.h"
#include "collectives/launch/supervisor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int Exited(int status) { return status << 8; }

TEST(LaunchSummaryTest, FirstFailureDecidesThenTheTimeThenTheSignal) {
  const struct {
    LaunchSummary summary;
    int exit_status;
    int first_failure;  // -1: none.
    std::vector<std::string> lines;
  } kCases[] = {
      {{.ranks = {{.rank = 1, .pid = 11, .wait_status = Exited(0)},
                  {.rank = 0, .pid = 10, .wait_status = Exited(0)}}},
       0,
       -1,
       {}},
      {{.ranks = {{.rank = 1,
                   .pid = 4242,
                   .wait_status = SIGKILL,
                   .after = absl::Milliseconds(12345)},
                  {.rank = 0, .wait_status = SIGTERM, .stopped = true}}},
       137,
       1,
       {"rank 1 (pid 4242) was killed by signal 9 (SIGKILL) after 12.3 s; rank "
        "0 was stopped"}},
      {{.ranks = {{.rank = 2, .pid = 12, .wait_status = Exited(0)},
                  {.rank = 1, .pid = 11, .wait_status = Exited(3)},
                  {.rank = 4, .pid = 14, .wait_status = Exited(1)},
                  {.rank = 3, .wait_status = SIGKILL, .stopped = true},
                  {.rank = 0, .wait_status = SIGTERM, .stopped = true}}},
       3,
       1,
       {"rank 1 (pid 11) exited with status 3 after 0.0 s; rank 4 failed after "
        "it",
        "ranks 0, 3 were stopped; 1 rank ended well"}},
      {{.ranks = {{.rank = 1, .wait_status = 0},
                  {.rank = 2, .wait_status = SIGKILL, .stopped = true},
                  {.rank = 0, .wait_status = 0, .stopped = true}},
        .timed_out = absl::Seconds(90)},
       124,
       -1,
       {"the time limit of 90.0 s was over; ranks 0, 2 were stopped; 1 rank "
        "ended well"}},
      {{.ranks = {{.rank = 0, .wait_status = SIGTERM, .stopped = true},
                  {.rank = 1, .wait_status = Exited(0), .stopped = true}},
        .received_signal = SIGTERM},
       143,
       -1,
       {"the launcher received signal 15 (SIGTERM); ranks 0, 1 were stopped"}},
      {{.ranks = {{.rank = 0, .wait_status = Exited(0), .stopped = true}},
        .received_signal = SIGTERM},
       0,
       -1,
       {}},
  };
  for (const auto& test : kCases) {
    const std::optional<RankOutcome> first = FirstFailure(test.summary);
    EXPECT_EQ(first.has_value() ? first->rank : -1, test.first_failure);
    EXPECT_EQ(ExitStatus(test.summary), test.exit_status);
    EXPECT_EQ(DescribeFailure(test.summary), absl::StrJoin(test.lines, "; "));
    std::string printed = absl::StrJoin(test.lines, ";\nlockstep: ");
    if (!printed.empty()) printed = absl::StrCat("lockstep: ", printed, ".");
    EXPECT_EQ(FormatSummary(test.summary), printed);
  }
}

TEST(LaunchSummaryTest, StaysWithinHundredColumns) {
  // The longest text: gaps between all numbers, the longest numbers, every
  // part.
  constexpr int kRanks = 4000;
  LaunchSummary summary = {.received_signal = SIGVTALRM};
  for (int rank = 1000; rank < 1000 + kRanks; ++rank) {
    RankOutcome outcome = {
        .rank = rank, .pid = 4194304, .after = 1000 * absl::Hours(24)};
    outcome.wait_status = rank % 4 == 3 ? Exited(0) : SIGVTALRM;
    outcome.stopped = rank % 4 == 1;
    summary.ranks.push_back(outcome);
  }
  const std::vector<std::string> lines =
      absl::StrSplit(FormatSummary(summary), '\n');
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 100) << line;
    EXPECT_THAT(line, StartsWith("lockstep: "));
  }
  EXPECT_EQ(lines.size(), 4u);
}

TEST(LaunchSummaryTest, FormatsElapsedTime) {
  EXPECT_EQ(FormatElapsed(absl::ZeroDuration()), "0.0 s");
  EXPECT_EQ(FormatElapsed(absl::Milliseconds(119940)), "119.9 s");
  EXPECT_EQ(FormatElapsed(absl::Seconds(120.7)), "2m");
  EXPECT_EQ(FormatElapsed(absl::Seconds(2 * 3600 + 13 * 60 + 5)), "2h13m5s");
}

TEST(LaunchSummaryTest, ShortensListsOfRanks) {
  EXPECT_EQ(FormatRanks({3}), "rank 3");
  EXPECT_EQ(FormatRanks({1, 0}), "ranks 0, 1");
  EXPECT_EQ(FormatRanks({2, 0, 1}), "ranks 0-2");
  EXPECT_EQ(FormatRanks({0, 2, 3, 4, 5, 9}), "ranks 0, 2-5, 9");
  EXPECT_EQ(FormatRanks({0, 2, 4, 6, 8, 10}), "ranks 0, 2, 4, 6, 8, 10");
  EXPECT_EQ(FormatRanks({0, 2, 4, 6, 8, 10, 12, 13}),
            "ranks 0, 2, 4, 6, 8, 10 and 2 more");
}

// Binds to the port and listens there. Returns the errno; 0 for success.
int Listen(int port, bool reuse) {
  const OwnedFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<in_port_t>(port));
  setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  errno = 0;
  if (bind(server.get(), reinterpret_cast<sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(server.get(), 1) != 0) {
    return errno;
  }
  return 0;
}

TEST(ReservedPortTest, IsForWhoAsksForItByNumber) {
  ReservedPort port = ReservePort();
  ASSERT_GT(port.port, 0);
  EXPECT_EQ(Listen(port.port, /*reuse=*/true), 0);
  EXPECT_EQ(Listen(port.port, /*reuse=*/false), EADDRINUSE);
  port.socket.Close();
  EXPECT_EQ(Listen(port.port, /*reuse=*/false), 0);
}

std::vector<std::string> Shell(const std::string& script) {
  return {"sh", "-c", script};
}

void HandleNothing(int) {}

TEST(LauncherTest, ReportsEveryRankInItsEnvironment) {
  const LaunchSummary summary =
      Launch(
          {.nproc = 8,
           .argv = Shell("[ \"$COLOUR\" = 'dark red' ] && [ $WORLD_SIZE = 8 ]"),
           .environment = {{"COLOUR", "dark red"}, {"WORLD_SIZE", "7"}}})
          .value();
  std::set<int> ranks;
  for (const RankOutcome& outcome : summary.ranks) {
    ranks.insert(outcome.rank);
    EXPECT_GT(outcome.pid, 0);
    EXPECT_EQ(outcome.wait_status, 0);
    EXPECT_FALSE(outcome.stopped);
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(summary.ranks.size(), 8);
  EXPECT_EQ(summary.received_signal, 0);
}

TEST(LauncherTest, ListsOutcomesInOrderOfEnd) {
  // Rank 0 ends after rank 1 has failed, since its SIGTERM comes after the
  // failure. The failure before the timeout must be reported as a failure.
  const LaunchSummary summary =
      Launch({.nproc = 2,
              .argv = Shell(
                  "[ $RANK = 1 ] && exit 4; while :; do sleep 1000; done"),
              .grace = {.report = absl::ZeroDuration()},
              .timeout = absl::Hours(1)})
          .value();
  ASSERT_EQ(summary.ranks.size(), 2);
  EXPECT_EQ(summary.ranks[0].rank, 1);
  EXPECT_FALSE(summary.ranks[0].stopped);
  EXPECT_TRUE(summary.ranks[1].stopped);
  EXPECT_FALSE(summary.timed_out.has_value());
  EXPECT_EQ(ExitStatus(summary), 4);
}

TEST(LauncherTest, RejectsBadOptions) {
  const std::pair<LaunchOptions, const char*> kCases[] = {
      {{.nproc = 0, .argv = Shell("true")}, "nproc is 0"},
      {{.nproc = 4097, .argv = Shell("true")},
       "nproc is 4097; it must be at most 4096"},
      {{.argv = Shell("true"), .timeout = absl::ZeroDuration()},
       "the timeout is 0"},
      {{.nproc = 1}, "no command"}};
  for (const auto& [options, named] : kCases) {
    EXPECT_THAT(Launch(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(named)));
  }
}

TEST(LauncherTest, GraceAfterSignalEndsInKill) {
  const LaunchSummary summary =
      Launch({.nproc = 1,
              .argv = Shell(absl::StrCat("trap '' TERM; kill -TERM ", getpid(),
                                         "; while :; do sleep 1000; done")),
              .grace = {.after_signal = absl::Milliseconds(100)}})
          .value();
  EXPECT_EQ(summary.received_signal, SIGTERM);
  EXPECT_EQ(ExitStatus(summary), 128 + SIGTERM);
  ASSERT_EQ(summary.ranks.size(), 1);
  EXPECT_TRUE(summary.ranks[0].stopped);
  EXPECT_EQ(summary.ranks[0].wait_status, SIGKILL);
}

TEST(LauncherTest, EndsRanksWhoseTimeIsUp) {
  // The ranks inherit this and ignore SIGTERM from the start.
  ::signal(SIGTERM, SIG_IGN);
  const LaunchSummary summary =
      Launch({.nproc = 2,
              .argv = Shell("setsid sleep 1000 & while :; do sleep 1000; done"),
              .grace = {.terminate = absl::Milliseconds(100)},
              .timeout = absl::Milliseconds(200)})
          .value();
  ::signal(SIGTERM, SIG_DFL);
  EXPECT_EQ(summary.timed_out, absl::Milliseconds(200));
  EXPECT_EQ(ExitStatus(summary), 124);
  ASSERT_EQ(summary.ranks.size(), 2);
  for (const RankOutcome& outcome : summary.ranks) {
    EXPECT_TRUE(outcome.stopped);
    EXPECT_EQ(outcome.wait_status, SIGKILL);
    EXPECT_GE(outcome.after, absl::Milliseconds(300));
  }
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);  // Nothing is left.
}

TEST(LauncherTest, KeepsTheEndOfTheOutput) {
  const LaunchSummary summary =
      Launch({.nproc = 2,
              .argv = Shell("head -c 300000 /dev/zero; echo; echo rank $RANK; "
                            "printf end >&2"),
              .keep_output_bytes = 11})
          .value();
  ASSERT_EQ(summary.kept_output.size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    // The two streams arrive in either order.
    EXPECT_THAT(
        summary.kept_output[rank],
        testing::AnyOf(absl::StrCat("\nrank ", rank, "\nend"),
                       testing::EndsWith(absl::StrCat("\nrank ", rank, "\n"))));
    EXPECT_EQ(summary.kept_output[rank].size(), 11);
  }
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(LauncherTest, LeavesCallerAsItWas) {
  struct sigaction handler = {};
  handler.sa_handler = HandleNothing;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  const std::initializer_list<int> kSignals = {
      SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD};
  for (const int signal : kSignals) sigaction(signal, &handler, nullptr);
  sigaction(SIGUSR2, &ignore, nullptr);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  const int descriptors = OpenDescriptors();

  ASSERT_THAT(Launch({.nproc = 2, .argv = Shell("exit 1")}), IsOk());

  EXPECT_EQ(OpenDescriptors(), descriptors);
  for (const int signal : kSignals) {
    struct sigaction now;
    sigaction(signal, nullptr, &now);
    EXPECT_EQ(now.sa_handler, signal == SIGUSR2 ? SIG_IGN : HandleNothing)
        << signal;
    sigset_t mask_now;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_now);
    EXPECT_EQ(sigismember(&mask_now, signal), signal == SIGUSR1) << signal;
  }
  int subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0);
  for (const int signal : kSignals) ::signal(signal, SIG_DFL);
  sigemptyset(&mask);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

TEST(LauncherTest, SurvivesSupervisorAndSparesEarlierChildren) {
  const pid_t earlier = fork();
  if (earlier == 0) {
    while (true) pause();
  }
  EXPECT_THAT(
      Launch({.nproc = 2, .argv = Shell("setsid sleep 1000 & kill -9 $PPID")}),
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("supervisor"), HasSubstr("9 (SIGKILL)"))));
  EXPECT_EQ(waitpid(earlier, nullptr, WNOHANG), 0);  // It is alive.
  ASSERT_TRUE(SendSignal(earlier, SIGKILL));
  EXPECT_EQ(waitpid(earlier, nullptr, 0), earlier);
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);  // Nothing else is left.
}

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

TEST(RankLogsTest, NamesWhatCannotBeWritten) {
  const TemporaryFolder temporary =
      TemporaryFolder::Create("logs", testing::TempDir()).value();
  const std::string& root = temporary.path();
  const std::string file = root + "/file";
  std::ofstream(file) << "here";
  std::filesystem::create_directories(root + "/taken/rank-1.log");
  ASSERT_EQ(mkdir((root + "/pipe").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo((root + "/pipe/rank-0.log").c_str(), 0600), 0);
  const std::pair<std::string, std::string> kCases[] = {
      {file, ""},
      {file + "/below", ""},
      {"/proc/no-such-folder", ""},
      {root + "/taken", "/rank-1.log"},
      {root + "/pipe", "/rank-0.log"}};
  for (const auto& [folder, named] : kCases) {
    EXPECT_THAT(
        OpenRankLogs(folder, 2),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(folder + named), Not(HasSubstr("\n")))));
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

// A forwarder that writes to two files, or to one.
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

  // Moves all bytes that can be moved now.
  void Pump() {
    while (!forwarder_.Done()) {
      std::vector<pollfd> fds;
      forwarder_.AddPollFds(fds);
      if (poll(fds.data(), fds.size(), 0) == 0) return;
      forwarder_.HandleEvents(fds);
    }
  }
  // Writes a rank's next output and moves it to the files.
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

// Returns one line of `rank` that is too long for a pipe to take at once.
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
    ASSERT_LT(taken, 1 << 20);  // Otherwise everything is kept in memory.
    Pump();
  }
  EXPECT_TRUE(forwarder_.HasPending());
  forwarder_.CloseSources();
  EXPECT_FALSE(forwarder_.Done());
}

TEST_F(OutputForwarderTest, LogsBothStreamsOfARankAsTheyCome) {
  OutputOptions options;
  std::vector<int> files;  // The same logs, for reading after the forwarder.
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
  EXPECT_EQ(Contents(out_.get()), "10%\r");  // Passed on before the line ends.
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
