// Tests the command `launch` from outside: real processes, ended in every way,
// and the effects of its flags as the ranks see them. Also runs one program as
// the ranks of `launch`, of torchrun and of mpirun, and with the environment
// that srun would set. If this machine lacks a launcher, its test is skipped
// with a message.
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rendezvous_location.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/supervisor.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/tcp/testing/hosts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::MatchesRegex;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kLaunch[] = "collectives/launch/launch";

// Within this time after a SIGKILL, every process of the run must be gone.
constexpr absl::Duration kEndDeadline = absl::Seconds(2);

// The script of a rank that prints its process number and ignores signals that
// ask it to end. The two programs that it starts ignore them too: one in its
// own session, one an orphan in its own session. With the shell's own sleep,
// the rank has four processes.
constexpr char kStubborn[] =
    "trap '' TERM INT HUP; setsid sleep 1000 & (setsid sleep 1000 &) ; "
    "echo $$; while :; do sleep 1000; done";
constexpr int kProcessesPerStubbornRank = 4;

std::vector<std::string> Command(std::vector<std::string> flags,
                                 std::vector<std::string> command) {
  flags.insert(flags.begin(), kLaunch);
  flags.push_back("--");
  flags.insert(flags.end(), command.begin(), command.end());
  return flags;
}

std::vector<std::string> ShellCommand(std::vector<std::string> flags,
                                      const std::string& script) {
  return Command(std::move(flags), {"sh", "-c", script});
}

std::vector<std::string> Script(int nproc, const std::string& script) {
  return ShellCommand({absl::StrCat("--nproc=", nproc)}, script);
}

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Runs a command to its end, and expects that no process of it is left.
SubprocessResult RunToEnd(const std::vector<std::string>& argv,
                          const Environment& environment = {}) {
  ChildProcess process(argv, environment);
  const int status = process.Wait();
  EXPECT_THAT(process.Marked(), IsEmpty());
  return {status, process.out(), process.err()};
}

// Runs a script on ranks that all succeed. lines: their output, sorted.
void ExpectLines(std::vector<std::string> flags, const std::string& script,
                 const std::vector<std::string>& lines,
                 const Environment& environment = {}) {
  const SubprocessResult run =
      RunToEnd(ShellCommand(std::move(flags), script), environment);
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(SortedLines(run.out), lines);
}

// Reads one "[rank] pid" line per rank, ignoring other lines. Returns the pids
// by rank, -1 for a rank that printed none.
std::vector<pid_t> ReadPids(ChildProcess& launch, int nproc) {
  std::vector<pid_t> pids(nproc, -1);
  while (std::count(pids.begin(), pids.end(), -1) > 0) {
    const std::optional<std::string> line = launch.ReadLine();
    EXPECT_TRUE(line.has_value());
    if (!line.has_value()) break;
    int rank = -1;
    int pid = -1;
    if (std::sscanf(line->c_str(), "[%d] %d", &rank, &pid) == 2 && rank >= 0 &&
        rank < nproc) {
      pids[rank] = pid;
    }
  }
  EXPECT_THAT(pids, Each(Gt(0)));
  return pids;
}

// Waits until Marked() reports all processes: those of `nproc` stubborn ranks,
// the launcher and its supervisor. This proves that Marked() sees them while
// they live. Returns the ranks' pids.
std::vector<pid_t> AwaitStubborn(ChildProcess& launch, int nproc) {
  std::vector<pid_t> pids = ReadPids(launch, nproc);
  const int expected = nproc * kProcessesPerStubbornRank + 2;
  EXPECT_TRUE(launch.AwaitMarked([=](int count) { return count == expected; }))
      << launch.Marked().size() << " of " << expected;
  return pids;
}

// Returns the pid of the supervisor; -1 if the launcher has none.
pid_t SupervisorOf(const ChildProcess& launch) {
  const auto children = ListChildren(launch.pid());
  EXPECT_THAT(children, IsOkAndHolds(SizeIs(1)));
  return children.ok() && children->size() == 1 ? children->front() : -1;
}

TEST(LaunchTest, ExitsLikeFirstRankToFail) {
  for (const int status : {1, 3, 255}) {
    const SubprocessResult run =
        RunToEnd(Script(3, absl::StrCat("[ $RANK = 1 ] && exit ", status,
                                        "; while :; do sleep 1000; done")));
    EXPECT_EQ(run.exit_status, status);
    EXPECT_THAT(
        run.err,
        MatchesRegex(absl::StrCat(
            "lockstep: rank 1 \\(pid [0-9]+\\) exited with status ", status,
            " after [0-9]\\.[0-9] s; ranks 0, 2 were stopped\\.\n")));
  }
}

TEST(LaunchTest, KilledRankEndsAll) {
  constexpr int kRanks = 3;
  for (int victim = 0; victim < kRanks; ++victim) {
    ChildProcess launch(Script(kRanks, kStubborn));
    const std::vector<pid_t> pids = AwaitStubborn(launch, kRanks);
    const absl::Time killed = absl::Now();
    ASSERT_TRUE(SendSignal(pids[victim], SIGKILL));
    EXPECT_EQ(launch.Wait(), 128 + SIGKILL);
    EXPECT_LT(absl::Now() - killed, kEndDeadline);
    EXPECT_THAT(launch.Marked(), IsEmpty());
    EXPECT_THAT(launch.err(),
                AllOf(HasSubstr(absl::StrCat(
                          "rank ", victim, " (pid ", pids[victim],
                          ") was killed by signal 9 (SIGKILL) after ")),
                      HasSubstr("were stopped")));
  }
}

TEST(LaunchTest, NamesFirstOfFailuresSeenTogether) {
  for (const auto& [first, second] : {std::pair(2, 0), std::pair(0, 2)}) {
    ChildProcess launch(Script(3, "echo $$; while :; do sleep 1000; done"));
    const std::vector<pid_t> pids = ReadPids(launch, 3);
    const pid_t supervisor = SupervisorOf(launch);
    // The supervisor is stopped so that it later finds both ranks ended.
    ASSERT_TRUE(SendSignal(supervisor, SIGSTOP));
    for (const int rank : {first, second}) {
      ASSERT_TRUE(SendSignal(pids[rank], SIGKILL));
      ASSERT_TRUE(AwaitProcessEnd(pids[rank], kTestDeadline));
    }
    ASSERT_TRUE(SendSignal(supervisor, SIGCONT));
    EXPECT_EQ(launch.Wait(), 128 + SIGKILL);
    EXPECT_THAT(launch.err(),
                StartsWith(absl::StrCat("lockstep: rank ", first)));
  }
}

TEST(LaunchTest, KilledLauncherOrSupervisorLeavesNothing) {
  // The launcher leads the group.
  enum Victim { kLauncher, kItsGroup, kSupervisor };
  for (const Victim victim : {kLauncher, kItsGroup, kSupervisor}) {
    ChildProcess launch(Script(2, kStubborn));
    AwaitStubborn(launch, 2);
    const pid_t supervisor = SupervisorOf(launch);
    ASSERT_TRUE(
        victim == kItsGroup
            ? SendSignalToGroup(launch.pid(), SIGKILL)
            : SendSignal(victim == kLauncher ? launch.pid() : supervisor,
                         SIGKILL));
    EXPECT_TRUE(
        launch.AwaitMarked([](int count) { return count == 0; }, kEndDeadline));
    EXPECT_EQ(launch.Wait(), victim == kSupervisor ? 1 : 128 + SIGKILL);
    if (victim != kSupervisor) continue;
    EXPECT_THAT(launch.err(),
                HasSubstr(absl::StrCat("supervisor process (pid ", supervisor,
                                       ") was killed")));
  }
}

TEST(LaunchTest, PassesSignalsOnAndNormalEndLeavesNothing) {
  const std::pair<int, std::string> kSignals[] = {
      {SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"},
      {SIGTERM, "TERM"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}};
  for (const auto& [signal, name] : kSignals) {
    ChildProcess launch(Script(
        2,
        absl::StrCat("setsid sleep 1000 & trap 'echo got ", name, "; exit 0' ",
                     name, "; echo $$; while :; do wait; done")));
    ReadPids(launch, 2);
    ASSERT_TRUE(launch.AwaitMarked([](int count) { return count == 6; }));
    ASSERT_TRUE(SendSignal(launch.pid(), signal));
    EXPECT_EQ(launch.Wait(), 0) << name;
    EXPECT_THAT(SortedLines(launch.out()),
                ElementsAre("[0] got " + name, "[1] got " + name));
    EXPECT_EQ(launch.err(), "");
    EXPECT_THAT(launch.Marked(), IsEmpty());
  }
}

TEST(LaunchTest, ReportsSignalThatEndedRun) {
  ChildProcess launch(Script(2, "echo $$; while :; do sleep 1000; done"));
  ReadPids(launch, 2);
  ASSERT_TRUE(SendSignal(launch.pid(), SIGTERM));
  EXPECT_EQ(launch.Wait(), 128 + SIGTERM);
  EXPECT_EQ(launch.err(),
            "lockstep: the launcher received signal 15 (SIGTERM); ranks 0, 1 "
            "were stopped.\n");
}

TEST(LaunchTest, SecondInterruptKillsAtOnce) {
  ChildProcess launch(Script(
      1, "trap 'echo no' INT; echo $$; while :; do sleep 1000 & wait; done"));
  ReadPids(launch, 1);
  ASSERT_TRUE(SendSignal(launch.pid(), SIGINT));
  ASSERT_EQ(launch.ReadLine(), "[0] no");
  const absl::Time second = absl::Now();
  ASSERT_TRUE(SendSignal(launch.pid(), SIGINT));
  EXPECT_EQ(launch.Wait(), 128 + SIGINT);
  EXPECT_LT(absl::Now() - second, kEndDeadline);
}

TEST(LaunchTest, LeavesIgnoredSignalsIgnored) {
  // A parent that ignores SIGHUP, as nohup does. SIGHUP would end the rank if
  // it reached it; USR1 ends it later.
  ChildProcess launch(
      {"sh", "-c",
       absl::StrCat("trap '' HUP; exec ", kLaunch, " --nproc=1 -- sh -c '",
                    "trap \"exit 0\" USR1; echo $$; ",
                    "while :; do sleep 1000 & wait; done'")});
  ReadPids(launch, 1);
  ASSERT_TRUE(SendSignal(launch.pid(), SIGHUP));
  ASSERT_TRUE(SendSignal(launch.pid(), SIGUSR1));
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_EQ(launch.err(), "");
}

TEST(LaunchTest, UnreadOutputDoesNotDelayTheEnd) {
  ChildProcess launch(Script(
      2, "echo $$; [ $RANK = 0 ] && exec yes; while :; do sleep 1000; done"));
  // Rank 0 may write a lot before rank 1 writes its one line.
  const std::vector<pid_t> pids = ReadPids(launch, 2);
  ASSERT_TRUE(SendSignal(pids[1], SIGKILL));
  // Only the launcher is left; it still has to write the ranks' output.
  EXPECT_TRUE(
      launch.AwaitMarked([](int count) { return count == 1; }, kEndDeadline));
  // A reader that starts late still gets all output.
  std::optional<std::string> line;
  while ((line = launch.ReadLine()).has_value()) EXPECT_EQ(*line, "[0] y");
  EXPECT_EQ(launch.Wait(), 128 + SIGKILL);
}

TEST(LaunchTest, ReaderThatGoesAwayEndsRanks) {
  ChildProcess launch(Script(2, "exec yes"));
  ASSERT_TRUE(launch.ReadLine().has_value());
  launch.CloseOutput();
  EXPECT_EQ(launch.Wait(), 128 + SIGPIPE);
  EXPECT_THAT(launch.err(), HasSubstr("13 (SIGPIPE)"));
}

TEST(LaunchTest, RankInheritsNoDescriptors) {
  const int inherited = dup2(STDERR_FILENO, 77);  // Not closed on exec.
  ASSERT_EQ(inherited, 77);
  const std::string list = "ls /proc/$$/fd; true";
  ChildProcess control({"sh", "-c", list});
  ChildProcess launch(Script(1, list));
  close(inherited);
  EXPECT_EQ(control.Wait(), 0);
  EXPECT_THAT(SortedLines(control.out()), IsSupersetOf({"0", "1", "2", "77"}));
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(SortedLines(launch.out()),
              ElementsAre("[0] 0", "[0] 1", "[0] 2"));
}

TEST(LaunchTest, RanksFindWhatTheFlagsSay) {
  ExpectLines({"--nproc=3"},
              "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE",
              {"[0] 0/3 0/3", "[1] 1/3 1/3", "[2] 2/3 2/3"});
  ExpectLines({"--nproc=2"}, "cat; readlink /proc/self/fd/0",
              {"[0] /dev/null", "[1] /dev/null"});
  unsetenv("OMP_NUM_THREADS");
  ExpectLines({"--nproc=1"}, "echo $OMP_NUM_THREADS", {"[0] 1"});
  ExpectLines({"--nproc=1"}, "echo $OMP_NUM_THREADS", {"[0] 3"},
              {{"OMP_NUM_THREADS", "3"}});
  const std::string gpus = "echo ${CUDA_VISIBLE_DEVICES-unset}";
  ExpectLines({"--nproc=2", "--gpus_per_rank=2"}, gpus,
              {"[0] 3,GPU-1a", "[1] 5,6"},
              {{"CUDA_VISIBLE_DEVICES", "3,GPU-1a,5,6"}});
  ExpectLines({"--nproc=2", "--gpus_per_rank=1", "--share_gpus"}, gpus,
              {"[0] 7", "[1] 7"}, {{"CUDA_VISIBLE_DEVICES", "7"}});
  ExpectLines({"--nproc=1"}, gpus, {"[0] 3,4"},
              {{"CUDA_VISIBLE_DEVICES", "3,4"}});
}

TEST(LaunchTest, EndsTheLastLineOnlyWithAPrefix) {
  const SubprocessResult run =
      RunToEnd(Script(1, "echo e >&2; printf 'no end'"));
  EXPECT_EQ(run.out, "[0] no end\n");
  EXPECT_EQ(run.err, "[0] e\n");
  EXPECT_EQ(RunToEnd(Command({"--nproc=1", "--noprefix_output"},
                             {"printf", "as it is"}))
                .out,
            "as it is");
}

TEST(LaunchTest, RanksShareRendezvousFileThatVanishes) {
  ChildProcess launch(Script(4,
                             "f=$LOCKSTEP_RENDEZVOUS; echo $RANK >> $f; while "
                             "[ $(wc -l < $f) -lt 4 ]; do :; done; exec 5<>$f; "
                             "flock 5 true && echo $f $(sort $f)"));
  const std::string first = launch.ReadLine().value_or("");
  EXPECT_EQ(launch.Wait(), 0) << launch.err();
  const std::vector<std::string> words = absl::StrSplit(first, ' ');
  ASSERT_EQ(words.size(), 6) << first;
  EXPECT_EQ(first, absl::StrCat(words[0], " ", words[1], " 0 1 2 3"));
  EXPECT_THAT(words[1], HasSubstr(absl::StrCat("/proc/", launch.pid())));
  EXPECT_NE(access(words[1].c_str(), F_OK), 0);
}

// Returns an empty folder, in which the launcher creates log folders.
std::string LogRoot() {
  const std::string root = absl::StrCat(testing::TempDir(), "/launch_test");
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  return root;
}

TEST(LaunchTest, LogsWhatEachRankPrints) {
  const std::string folder = LogRoot() + "/new/folder";
  const std::string script = "echo $RANK; printf end >&2; exit 0";
  for (const bool prefix : {true, false}) {
    std::vector<std::string> flags = {"--nproc=2", "--log_dir=" + folder};
    if (!prefix) flags.push_back("--noprefix_output");
    ExpectLines(flags, script,
                prefix ? std::vector<std::string>{"[0] 0", "[1] 1"}
                       : std::vector<std::string>{"0", "1"});
    for (int rank = 0; rank < 2; ++rank) {
      // The two streams arrive in either order.
      EXPECT_THAT(ReadFile(absl::StrCat(folder, "/rank-", rank, ".log")),
                  IsOkAndHolds(AnyOf(absl::StrCat(rank, "\nend"),
                                     absl::StrCat("end", rank, "\n"))));
    }
  }
}

TEST(LaunchTest, SaysWhichLogIsBeyondTheFileSizeLimit) {
  const std::string root = LogRoot();
  const SubprocessResult run =
      RunToEnd({"sh", "-c",
                absl::StrCat("ulimit -f 1; exec ", kLaunch,
                             " --nproc=1 --log_dir=", root,
                             " -- sh -c 'printf %05000d 7; echo; echo on'")});
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.out,
            absl::StrCat("[0] ", std::string(4999, '0'), "7\n[0] on\n"));
  EXPECT_EQ(run.err,
            absl::StrCat("launch: cannot write the log of rank 0 (", root,
                         "/rank-0.log): beyond the file size limit (ulimit "
                         "-f); the log is not complete\n"));
}

TEST(LaunchTest, WorksWhereTheUserIs) {
  const std::string root = LogRoot();
  ExpectLines({"--nproc=1", "--log_dir=logs"},
              "[ . -ef " + root + " ] && echo here", {"[0] here"},
              {{"BUILD_WORKING_DIRECTORY", root}});
  EXPECT_TRUE(std::filesystem::exists(root + "/logs/rank-0.log"));
}

TEST(LaunchTest, BindsRanksToCoresAndSaysSo) {
  const std::vector<int> cpus = AffinityCpus();
  const int ranks = static_cast<int>(cpus.size()) + 1;  // Ranks take turns.
  const SubprocessResult run = RunToEnd(
      ShellCommand({absl::StrCat("--nproc=", ranks), "--bind_cores"},
                   "grep Cpus_allowed_list /proc/self/status; exit 0"));
  EXPECT_EQ(run.exit_status, 0);
  std::vector<int> bound(cpus.back() + 1);
  for (const std::string& line : SortedLines(run.out)) {
    int rank = -1;
    int cpu = -1;
    ASSERT_EQ(
        std::sscanf(line.c_str(), "[%d] Cpus_allowed_list: %d", &rank, &cpu), 2)
        << line;
    ASSERT_EQ(std::count(cpus.begin(), cpus.end(), cpu), 1);
    ++bound[cpu];
  }
  for (const int cpu : cpus) EXPECT_GE(bound[cpu], 1);
  EXPECT_THAT(run.err, MatchesRegex("lockstep: bound to cores: rank 0: "
                                    "[0-9]+; rank 1: [0-9]+.*\n"));
}

TEST(LaunchTest, LaunchesItselfAndGivesAllRanksOnePortAndEachLaunchAnother) {
  // The inner launch runs while the outer launch holds its own port.
  const SubprocessResult run = RunToEnd(ShellCommand(
      {"--nproc=2"},
      absl::StrCat(
          "echo $MASTER_ADDR:$MASTER_PORT; [ $RANK = 0 ] || ", kLaunch,
          " --nproc=2 -- sh -c 'echo $RANK of $WORLD_SIZE $MASTER_PORT'",
          "; echo $GROUP_RANK/$GROUP_WORLD_SIZE")));
  EXPECT_EQ(run.exit_status, 0);
  const std::vector<std::string> lines = SortedLines(run.out);
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_EQ(lines[0], "[0] 0/1");
  EXPECT_THAT(lines[1], MatchesRegex("\\[0\\] 127\\.0\\.0\\.1:[0-9]+"));
  EXPECT_EQ(lines[2], "[1] 0/1");
  EXPECT_EQ(lines[3].substr(4), lines[1].substr(4));
  EXPECT_THAT(lines[4], MatchesRegex("\\[1\\] \\[0\\] 0 of 2 [0-9]+"));
  EXPECT_EQ(lines[5], "[1] [1] 1 of 2 " + lines[4].substr(15));
  EXPECT_NE(lines[1].substr(14), lines[4].substr(15));
}

TEST(LaunchTest, SaysWhatIsWrong) {
  const struct {
    std::vector<std::string> argv;
    int exit_status;
    std::string named;
    Environment environment = {};
  } kCases[] = {
      {{kLaunch}, 2, "no command"},
      {{kLaunch, "--nproc=2", "--"}, 2, "no command"},
      {Script(0, "true"), 2, "--nproc=0"},
      {{kLaunch, "--nproc=two", "true"}, 2, "--nproc=two"},
      {{kLaunch, "--ranks=2", "true"}, 2, "--ranks"},
      {{kLaunch, "lockstep-no-such-command"}, 127, "lockstep-no-such-command"},
      {{kLaunch, "/"}, 126, "\"/\""},
      {Command({"--log_dir=/proc/none"}, {"true"}), 2, "/proc/none"},
      {Command({"--gpus_per_rank=-1"}, {"true"}), 2, "--gpus_per_rank=-1"},
      {Command({"--share_gpus"}, {"true"}), 2, "--share_gpus"},
      {{"env", "CUDA_VISIBLE_DEVICES=7", kLaunch, "--nproc=2",
        "--gpus_per_rank=1", "true"},
       2,
       "launch: --gpus_per_rank=1: 2 ranks with 1 GPU each: "
       "CUDA_VISIBLE_DEVICES=\"7\" has 1 (see --share_gpus)"},
      {ShellCommand({"--nproc=3", "--timeout=100ms"},
                    "while :; do sleep 1000; done"),
       124,
       "lockstep: the time limit of 0.1 s was over; ranks 0-2 were stopped."},
      {Script(4097, "true"), 2, "--nproc=4097 is more than 4096"},
      {{kLaunch, "--nproc-per-node=gpu", "true"},
       2,
       "--nproc=gpu: there is no GPU; write cpu or a number",
       {{"CUDA_VISIBLE_DEVICES", ""}}},
      {{kLaunch, "--nproc=gpu", "true"},
       2,
       "--nproc=gpu: CUDA_VISIBLE_DEVICES=\"x\" has an entry",
       {{"CUDA_VISIBLE_DEVICES", "x"}}},
      {Command({"--standalone", "--nnodes=2"}, {"true"}), 2,
       "--standalone is one node, but --nnodes is 2"},
      {Command({"--rdzv-backend=etcd-v2"}, {"true"}), 2,
       "--rdzv_backend=etcd-v2: not supported; write c10d"},
      {Command({"--max-restarts", "3"}, {"true"}), 2,
       "--max_restarts=3: not supported; write 0"},
      {Command({"--timeout=1"}, {"true"}), 2,
       "launch: --timeout=1 has no unit; write 1s or 5m"},
      {{kLaunch, "--nprocs=2", "true"}, 2, "did you mean --nproc?"},
      {Command({"--nproc=2", "--world-size=2"}, {"true"}), 2,
       "--nproc and --world_size are one flag"},
      {Command({"--world-size", "4", "--nnodes=2"}, {"true"}), 2,
       "--world_size is the number of ranks on all nodes, but --nnodes is 2; "
       "use --nproc, per node"},
      {Command({"--timeout=0"}, {"true"}), 2, "--timeout=0 is not more than 0"},
      {Command({"--nnodes=0"}, {"true"}), 2, "--nnodes: 0"},
      {Command({"--nnodes=2", "--node-rank=2"}, {"true"}), 2, "--node_rank: 2"},
      {Command({"--nnodes=2"}, {"true"}), 2, "--rdzv_endpoint=HOST:PORT"},
      {Command({"--nnodes=2", "--rdzv-endpoint", "host"}, {"true"}), 2,
       "--rdzv_endpoint=host is not HOST:PORT"},
      {Command({"--nnodes=2", "--master-addr=h", "--master_port=0"}, {"true"}),
       2, "--master_port: 0"},
      // Nobody listens at this address; without a token the launcher does not
      // connect.
      {Command({"--nnodes=2", "--master_addr=192.0.2.1"}, {"true"}), 1,
       CanProve() ? "export LOCKSTEP_TOKEN=$(openssl rand -hex 32)"
                  : "OpenSSL"},
  };
  for (const auto& test : kCases) {
    const SubprocessResult run = RunToEnd(test.argv, test.environment);
    EXPECT_EQ(run.exit_status, test.exit_status) << test.named;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(SortedLines(run.err), ElementsAre(HasSubstr(test.named)));
  }
}

TEST(LaunchTest, TakesTorchrunsFlags) {
  const auto lines = [](int ranks) {
    return std::vector<std::string>(ranks, absl::StrCat(ranks, " ranks"));
  };
  const std::string script = "echo $WORLD_SIZE ranks";
  const Environment no_gpu = {{"CUDA_VISIBLE_DEVICES", ""}};
  const Environment gpus = {{"CUDA_VISIBLE_DEVICES", "0,3,5"}};
  const int cores = UsableCores();
  const struct {
    std::vector<std::string> flags;
    int ranks;
    Environment environment;
  } kCases[] = {
      {{"--standalone", "--nproc-per-node=2"}, 2, {}},
      {{"--no-python", "--nproc-per-node=2"}, 2, {}},
      {{"--no_python", "--nnodes=1", "--world-size", "2"}, 2, {}},
      {{"-world_size=1"}, 1, {}},
      {{"--rdzv-backend", "c10d", "--rdzv-id=7", "--nproc_per_node=1"}, 1, {}},
      {{"--rdzv_backend=static", "--rdzv_id", "7", "--max-restarts=0",
        "--max_restarts", "0", "--nproc=1"},
       1,
       {}},
      {{"--nproc-per-node=cpu"}, cores, gpus},
      {{"--nproc_per_node", "auto"}, cores, no_gpu},
      {{"--nproc-per-node=auto"}, 3, gpus},
      {{"--nproc-per-node=gpu"}, 3, gpus},
  };
  for (const auto& test : kCases) {
    std::vector<std::string> flags = test.flags;
    flags.push_back("--noprefix_output");
    ExpectLines(flags, script, lines(test.ranks), test.environment);
  }
}

TEST(LaunchTest, HelpExplains) {
  const SubprocessResult run = RunToEnd({kLaunch, "--help"});
  ExpectUsage({run.exit_status, run.out}, "launch");
  EXPECT_THAT(run.out, AllOf(HasSubstr("--help"), HasSubstr("OMP_NUM_THREADS"),
                             HasSubstr("LOCKSTEP_RENDEZVOUS")));
}

constexpr char kRank[] = "collectives/launch/testing/rank";
constexpr char kPrintLauncher[] = "collectives/launch/testing/rank launcher";

std::string ThisProcessText() {
  const ProcessIdentity self = ThisProcess();
  return absl::StrCat(self.pid, " ", self.start_ticks, "\n");
}

TEST(LauncherProcessTest, IsTheParentOfARankAndAboveItsShells) {
  const std::vector<std::string> shells = {
      "sh", "-c", absl::StrCat("sh -c '", kPrintLauncher, "; true'; true")};
  for (const auto& command : {{kRank, "launcher"}, shells}) {
    ChildProcess rank(command, {{"RANK", "1"}, {"RUN", "a"}});
    EXPECT_EQ(rank.Wait(), 0);
    EXPECT_EQ(rank.out(), ThisProcessText());
  }
}

TEST(LauncherProcessTest, IsTheInnerOfTwo) {
  // The shell is rank 0 of run a, and starts rank 0 of run b.
  ChildProcess outer(
      {"sh", "-c", absl::StrCat("echo $$; RUN=b ", kPrintLauncher, "; true")},
      {{"RANK", "0"}, {"RUN", "a"}});
  EXPECT_EQ(outer.Wait(), 0);
  const std::string shell = absl::StrCat(outer.pid(), "\n", outer.pid(), " ");
  EXPECT_EQ(outer.out().substr(0, shell.size()), shell);
}

TEST(LauncherProcessTest, IsTheParentIfNothingMarksARank) {
  unsetenv("RANK");
  unsetenv("RUN");
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  EXPECT_EQ(FindLauncherProcess(names).pid, getppid());
  EXPECT_EQ(FindLauncherProcess({}).pid, getppid());
}

// Launchers of two nodes, both on this host, that run a script. Node 1's
// launcher starts first.
class Nodes {
 public:
  Nodes(const std::vector<std::string>& flags_of_0,
        const std::vector<std::string>& flags_of_1, const std::string& script,
        const Environment& environment_of_1 = {}) {
    const std::string endpoint = absl::StrCat("127.0.0.1:", port_.port);
    for (const int node : {1, 0}) {
      std::vector<std::string> flags = node == 0 ? flags_of_0 : flags_of_1;
      flags.insert(flags.begin(),
                   {"--nnodes=2", absl::StrCat("--node-rank=", node),
                    absl::StrCat("--rdzv_endpoint=", endpoint)});
      nodes_[node] = std::make_unique<ChildProcess>(
          ShellCommand(flags, script),
          node == 1 ? environment_of_1 : Environment());
    }
  }
  ChildProcess& operator[](int node) { return *nodes_[node]; }

 private:
  const ReservedPort port_ = ReservePort();
  std::unique_ptr<ChildProcess> nodes_[2];
};

class NodesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanProve()) GTEST_SKIP() << "built without OpenSSL";
  }
};

TEST_F(NodesTest, RanksOfAllNodesFindTheirPlacesAndFormGroups) {
  Nodes nodes({"--nproc-per-node=2"}, {"--nproc_per_node", "1"},
              absl::StrCat("echo $RANK/$WORLD_SIZE "
                           "$LOCAL_RANK/$LOCAL_WORLD_SIZE "
                           "$GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR "
                           "${LOCKSTEP_RENDEZVOUS-none}; ",
                           kRank, " sum"));
  for (const int node : {0, 1}) {
    EXPECT_EQ(nodes[node].Wait(), 0) << nodes[node].err();
  }
  EXPECT_THAT(SortedLines(nodes[0].out()),
              ElementsAre("[0] 0/3 0/2 0/2 127.0.0.1 none", "[0] sum 6",
                          "[1] 1/3 1/2 0/2 127.0.0.1 none", "[1] sum 6"));
  EXPECT_THAT(SortedLines(nodes[1].out()),
              ElementsAre("[2] 2/3 0/1 1/2 127.0.0.1 none", "[2] sum 6"));
}

// The hosts have addresses other than loopback. Each rank must find the address
// of its host and send the token.
TEST_F(NodesTest, HostsWithNetworksOfTheirOwn) {
  const auto hosts = TestHosts::Start(
      2, {.delay = absl::Milliseconds(1)},
      [](int host, const std::function<void()>&) {
        const SubprocessResult run = RunSubprocess(
            Command({"--nnodes=2", absl::StrCat("--node_rank=", host),
                     absl::StrCat("--rdzv_endpoint=", TestHosts::AddressOf(0),
                                  ":29400"),
                     "--nproc=2"},
                    {kRank, "sum"}),
            kTestDeadline, {.environment = {{"LOCKSTEP_TOKEN", "0123456789"}}});
        return absl::StrCat(run.exit_status, "\n", run.out, run.err);
      });
  if (absl::IsUnavailable(hosts.status())) GTEST_SKIP() << hosts.status();
  ASSERT_THAT(hosts, IsOk());
  const std::string told =
      "lockstep: node . waits .*lockstep: all 2 nodes have joined\n";
  EXPECT_THAT((*hosts)->Collect(kTestDeadline),
              ElementsAre(MatchesRegex("0\n(.[01]. sum 10\n){2}" + told),
                          MatchesRegex("0\n(.[23]. sum 10\n){2}" + told)));
}

TEST_F(NodesTest, AllEndSoonAfterTheFirstFailureAndNameIt) {
  const TemporaryFolder folder =
      TemporaryFolder::Create("nodes", testing::TempDir()).value();
  const struct {
    std::string script;
    int node;  // The node with the first failure.
    int exit_status;
    std::string named;
  } kCases[] = {
      // The other ranks fail soon afterwards, by themselves, because of rank 2.
      {absl::StrCat("F=", folder.path(),
                    "/F; if [ $RANK = 2 ]; then echo > $F; exit 4; fi; "
                    "while [ ! -e $F ]; do sleep 0.01; done; sleep 1; "
                    "exit 5"),
       1, 4, "rank 2 .* exited with status 4"},
      {"[ $RANK = 3 ] && kill -SEGV $$; sleep 1000", 1, 139,
       "rank 3 .* was killed by signal 11"},
      {"trap '' TERM; [ $RANK = 0 ] && exit 7; while :; do sleep 1; done", 0, 7,
       "rank 0 .* exited with status 7"},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.script);
    Nodes nodes({"--nproc=2"}, {"--nproc=2"}, test.script);
    for (const int node : {0, 1}) {
      EXPECT_EQ(nodes[node].Wait(), test.exit_status);
      EXPECT_THAT(nodes[node].Marked(), IsEmpty());
      EXPECT_THAT(
          nodes[node].err(),
          testing::ContainsRegex(
              node == test.node ? absl::StrCat("\nlockstep: ", test.named)
                                : absl::StrCat("\nlockstep: node ", test.node,
                                               " .*", test.named)));
    }
  }
}

// Rank 1 fails first, but its launcher is stopped until rank 0 has failed too.
TEST_F(NodesTest, TheFirstFailureIsTheFirstToHappenNotToBeHeardOf) {
  Nodes nodes({"--nproc=1"}, {"--nproc=1"},
              "trap 'sleep 1; exit 5' TERM; echo $$; "
              "while :; do sleep 1000 & wait; done");
  int pids[2] = {};
  for (const int node : {0, 1}) {
    pids[node] = std::stoi(nodes[node].ReadLine().value_or("[] 0").substr(4));
    ASSERT_GT(pids[node], 0);
  }
  ASSERT_TRUE(SendSignal(nodes[1].pid(), SIGSTOP));
  ASSERT_TRUE(SendSignal(pids[1], SIGKILL));
  ASSERT_TRUE(AwaitProcessEnd(pids[1], kTestDeadline));
  ASSERT_TRUE(SendSignal(pids[0], SIGTERM));
  EXPECT_TRUE(nodes[0].AwaitMarked([](int count) { return count == 1; }));
  ASSERT_TRUE(SendSignal(nodes[1].pid(), SIGCONT));
  for (const int node : {0, 1}) EXPECT_EQ(nodes[node].Wait(), 128 + SIGKILL);
}

// The other launcher notices the death because the connections close. The
// supervisor must therefore hold none of them, only its socket to the launcher.
TEST_F(NodesTest, ALauncherThatDiesIsNamed) {
  for (const int dead : {0, 1}) {
    Nodes nodes({"--nproc=1"}, {"--nproc=1"}, "echo there; sleep 1000");
    for (const int node : {0, 1}) EXPECT_TRUE(nodes[node].ReadLine());
    const std::string count = absl::StrCat(
        "ls -l /proc/", SupervisorOf(nodes[dead]), "/fd | grep -c socket:");
    EXPECT_EQ(RunSubprocess({"sh", "-c", count}, kTestDeadline).out, "1\n");
    ASSERT_TRUE(SendSignal(nodes[dead].pid(), SIGKILL));
    ChildProcess& other = nodes[1 - dead];
    EXPECT_EQ(other.Wait(kEndDeadline), 1);
    EXPECT_THAT(other.Marked(), IsEmpty());
    EXPECT_THAT(other.err(),
                testing::ContainsRegex(absl::StrCat(
                    "the launcher of node ", dead, " .pid [0-9]+.* died")));
  }
}

// Each launcher waits alone until its time is up.
TEST_F(NodesTest, SaysForWhomItWaitsAndWhoDidNotCome) {
  const ReservedPort port = ReservePort();
  const std::string at = absl::StrCat("127.0.0.1:", port.port);
  const struct {
    int node;
    std::string waits, missing;
  } kCases[] = {
      {0, absl::StrCat("node 0 waits at ", at, " for nodes 1, 2\n"),
       "nodes 1, 2 of 3 did not come within 300ms\n"},
      {1, absl::StrCat("node 1 waits for node 0 at ", at, "\n"),
       "node 0 did not answer within 300ms: Connection refused\n"},
  };
  for (const auto& test : kCases) {
    const SubprocessResult run = RunToEnd(
        Command({"--nnodes=3", absl::StrCat("--node_rank=", test.node),
                 absl::StrCat("--rdzv_endpoint=", at), "--timeout=300ms"},
                {"true"}));
    EXPECT_EQ(run.exit_status, 124);
    EXPECT_EQ(run.err,
              absl::StrCat("lockstep: ", test.waits,
                           "launch: the launchers cannot meet: rendezvous ", at,
                           ": ", test.missing));
  }
}

// Without a resolver the launcher repeats the query until its time is up.
TEST_F(NodesTest, NamesTheHostThatDoesNotResolve) {
  for (const int node : {0, 1}) {
    const SubprocessResult run =
        RunToEnd(Command({"--nnodes=2", absl::StrCat("--node_rank=", node),
                          "--master_addr=nohost.invalid", "--timeout=2s"},
                         {"true"}));
    EXPECT_THAT(run.exit_status, AnyOf(1, 124));
    EXPECT_THAT(run.err, HasSubstr("cannot resolve nohost.invalid"));
  }
}

TEST_F(NodesTest, TheTimeLimitCoversMeetingAndRunning) {
  Nodes nodes({"--nproc=1", "--timeout=1s"}, {"--nproc=1"}, "sleep 1000");
  EXPECT_EQ(nodes[0].Wait(), 124);
  EXPECT_EQ(nodes[1].Wait(), 124);
  EXPECT_THAT(nodes[0].err(), HasSubstr("the time limit of 1.0 s was over"));
}

TEST_F(NodesTest, AnotherTokenIsRefused) {
  Nodes nodes({"--nproc=1"}, {"--nproc=1"}, "echo there",
              {{"LOCKSTEP_TOKEN", "a guess"}});
  EXPECT_EQ(nodes[1].Wait(), 1);
  EXPECT_THAT(nodes[1].err(), HasSubstr("its token is not node 0's"));
  EXPECT_EQ(nodes[0].out(), "");
}

// torchrun takes seconds to start, and longer on a busy machine.
constexpr absl::Duration kDeadline = absl::Seconds(100);

// Two ranks join the group of a launcher and sum their numbers.
class LaunchersTest : public testing::Test {
 protected:
  static std::vector<std::string> WithRank(std::vector<std::string> command) {
    command.push_back(std::filesystem::absolute(kRank).string());
    command.push_back("sum");
    return command;
  }

  // Expects the sums of both ranks, and no file or folder of the rendezvous.
  void ExpectSums(const std::string& out) const {
    const std::vector<std::string> lines =
        absl::StrSplit(out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines, Each(HasSubstr("sum 3")));
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.path())) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("lockstep-")));
    }
  }

  // Starts both ranks with the variables. A value "$" is replaced by the rank.
  void ExpectSumsWith(const Environment& variables) const {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (const std::string rank : {"0", "1"}) {
      Environment environment = kept_;
      for (const auto& [name, value] : variables) {
        environment.push_back({name, value == "$" ? rank : value});
      }
      ranks.push_back(
          std::make_unique<ChildProcess>(WithRank({}), environment));
    }
    std::string out;
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->Wait(kDeadline), 0) << rank->err();
      absl::StrAppend(&out, rank->out());
    }
    ExpectSums(out);
  }

  void ExpectRuns(const std::vector<std::string>& command) const {
    ChildProcess launcher(command, kept_);
    EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.err();
    ExpectSums(launcher.out());
  }

  const TemporaryFolder folder_ =
      TemporaryFolder::Create("launchers", testing::TempDir()).value();
  // Keeps temporary files in folder_, so that leftovers of a launcher show.
  const Environment kept_ = {{"TMPDIR", folder_.path()}};
};

TEST_F(LaunchersTest, OurOwn) {
  ExpectRuns(WithRank({kLaunch, "--nproc=2", "--"}));
}

TEST_F(LaunchersTest, MpirunAlsoWithAShellBeforeEachRank) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectRuns(WithRank(command));
  // The program is not the last command of its shell, so the shell does not
  // replace itself by it.
  command.insert(command.end(),
                 {"sh", "-c", absl::StrJoin(WithRank({}), " ") + " && true"});
  ExpectRuns(command);
}

// Runs the README's command for Debian's torchrun, which newer versions accept
// too.
TEST_F(LaunchersTest, TorchrunAsTheReadmeWritesIt) {
  std::vector<std::string> command = FindTorchrunProgram();
  if (command.empty()) GTEST_SKIP() << "no torchrun on this machine";
  const std::string readme = ReadFile("collectives/launch/README.md").value();
  constexpr char kProgram[] = "\n    torchrun --no_python ";
  const size_t begin = readme.find(kProgram);
  ASSERT_NE(begin, readme.npos);
  const absl::string_view line = absl::string_view(readme).substr(
      begin + 1, readme.find('\n', begin + 1) - begin - 1);
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  EXPECT_EQ(words.back(), "./train");
  command.insert(command.end(), words.begin() + 1, words.end() - 1);
  ExpectRuns(WithRank(command));
}

// The test starts the ranks itself, with the variables that a launcher would
// set. For several hosts, each rank runs as if it were alone on its host.
TEST_F(LaunchersTest, EnvironmentsOfOneHostAndOfSeveral) {
  for (const bool several : {false, true}) {
    if (several && !CanProve()) GTEST_SKIP() << "built without OpenSSL";
    const std::string local_rank = several ? "0" : "$";
    const std::string local_size = several ? "1" : "2";
    const Environment launchers[] = {
        {{"SLURM_JOB_ID", "7"},
         {"SLURM_STEP_ID", "1"},
         {"SLURM_NTASKS", "2"},
         {"SLURM_STEP_TASKS_PER_NODE", several ? "1(x2)" : "2"},
         {"SLURM_NODEID", several ? "$" : "0"},
         {"SLURM_PROCID", "$"},
         {"SLURM_LOCALID", local_rank}},
        {{"PMI_RANK", "$"},
         {"PMI_SIZE", "2"},
         {"MPI_LOCALRANKID", local_rank},
         {"MPI_LOCALNRANKS", local_size}},
        {{"OMPI_COMM_WORLD_RANK", "$"},
         {"OMPI_COMM_WORLD_SIZE", "2"},
         {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank},
         {"OMPI_COMM_WORLD_LOCAL_SIZE", local_size}},
        several ? Environment{{"RANK", "$"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "0"},
                              {"LOCAL_WORLD_SIZE", "1"},
                              {"LOCKSTEP_RENDEZVOUS", "/of/one/host"}}
                : Environment{{"RANK", "$"}, {"WORLD_SIZE", "2"}},
    };
    for (Environment variables : launchers) {
      const ReservedPort port = ReservePort();
      variables.push_back({"MASTER_ADDR", "127.0.0.1"});
      variables.push_back({"MASTER_PORT", absl::StrCat(port.port)});
      variables.push_back({"LOCKSTEP_HOST_ADDRESS", "127.0.0.2"});
      ExpectSumsWith(variables);
    }
  }
}

}  // namespace
}  // namespace lockstep
