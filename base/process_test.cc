#include "base/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cores.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Fields 4 to 21 after the state, with parent 17; then the start, and more.
constexpr char kFields[] =
    " 17 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 123456789 23 24\n";

TEST(ProcessStatTest, FindsFieldsAfterAnyName) {
  for (const char* name : {"sh", "", "a b", ") R 1 2", "((", ")", "x)\n"}) {
    const std::optional<ProcessStat> stat =
        ParseProcessStat(absl::StrCat("99 (", name, ") Z", kFields));
    ASSERT_TRUE(stat.has_value()) << name;
    EXPECT_EQ(stat->state, 'Z');
    EXPECT_EQ(stat->parent, 17);
    EXPECT_EQ(stat->start_ticks, 123456789u);
  }
}

TEST(ProcessStatTest, RejectsTextCutAnywhereBeforeTheStart) {
  const std::string whole = absl::StrCat("99 (sh) S", kFields);
  const size_t start = whole.find("123456789");
  for (size_t size = 0; size <= start; ++size) {
    EXPECT_FALSE(ParseProcessStat(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_TRUE(ParseProcessStat(whole.substr(0, start + 9)).has_value());
}

TEST(ProcessStatTest, RejectsFieldsThatAreNoNumbers) {
  const std::string whole = absl::StrCat("99 (sh) S", kFields);
  for (const char* field : {" 17 3", "123456789"}) {
    std::string bad = whole;
    bad.replace(bad.find(field), 3, " x ");
    EXPECT_FALSE(ParseProcessStat(bad).has_value()) << bad;
  }
}

TEST(ProcessStatTest, ReadsThisProcessWhateverItsName) {
  prctl(PR_SET_NAME, "a) Z 1 (b");
  const std::optional<ProcessStat> stat = ReadProcessStat(getpid());
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, getppid());
  EXPECT_GT(stat->start_ticks, 0u);
}

TEST(ProcessStatTest, SeesAZombieAndThenNothing) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
            0);
  const std::optional<ProcessStat> ended = ReadProcessStat(child);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->state, 'Z');
  EXPECT_EQ(ended->parent, getpid());
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ReadProcessStat(child).has_value());
}

TEST(ProcessIdentityTest, ThisProcessIsAlive) {
  EXPECT_EQ(ThisProcess().pid, getpid());
  EXPECT_EQ(ThisProcess(), ThisProcess());
  EXPECT_TRUE(IsAlive(ThisProcess()));
}

TEST(ProcessIdentityTest, ReusedNumberIsAnotherProcess) {
  ProcessIdentity earlier = ThisProcess();
  --earlier.start_ticks;
  EXPECT_FALSE(IsAlive(earlier));
}

TEST(ProcessIdentityTest, StartLiesBeforeNow) {
  const uint64_t now = TicksSinceHostStart();
  EXPECT_LE(ThisProcess().start_ticks, now);
  // A test that started an hour ago would have been killed.
  EXPECT_GT(ThisProcess().start_ticks + 360'000, now);
}

TEST(ProcessIdentityTest, StoppedIsAliveAndZombieIsNot) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ProcessIdentity self = ThisProcess();
    if (write(ready[1], &self, sizeof(self)) != sizeof(self)) _exit(1);
    raise(SIGSTOP);
    _exit(0);
  }
  ProcessIdentity identity;
  ASSERT_EQ(read(ready[0], &identity, sizeof(identity)),
            static_cast<ssize_t>(sizeof(identity)));
  close(ready[0]);
  close(ready[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(IsAlive(identity));

  kill(child, SIGKILL);
  siginfo_t ended;  // WNOWAIT leaves a zombie.
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT),
            0);
  EXPECT_FALSE(IsAlive(identity));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(IsAlive(identity));
}

TEST(CoresOfQuotaTest, RoundsUpToWholeCores) {
  EXPECT_EQ(CoresOfQuota("200000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("150000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("50000 100000\n"), 1);
  EXPECT_EQ(CoresOfQuota("100001 100000"), 2);
}

TEST(CoresOfQuotaTest, IsZeroWithoutAQuota) {
  for (const char* text :
       {"", "max 100000\n", "7", "1 2 3", "-5 100000", "5 0"}) {
    EXPECT_EQ(CoresOfQuota(text), 0) << text;
  }
}

TEST(UsableCoresTest, IsBetweenOneAndTheAffinity) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), AffinityCpus().size());
}

TEST(AffinityCpusTest, FollowsTheAffinity) {
  const std::vector<int> all = AffinityCpus();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end(), std::greater_equal()),
            all.end());
  ASSERT_TRUE(SetAffinity(std::span(&all.back(), 1)));
  EXPECT_EQ(AffinityCpus(), std::vector<int>{all.back()});
  EXPECT_EQ(UsableCores(), 1);
  ASSERT_TRUE(SetAffinity(all));
  EXPECT_EQ(AffinityCpus(), all);
}

TEST(SetAffinityTest, RefusesCpusThatAreNotThere) {
  const std::vector<int> all = AffinityCpus();
  for (const std::vector<int>& cpus :
       {std::vector<int>{}, {-1}, {(1 << 16) - 1}, {1 << 16}}) {
    errno = 0;
    EXPECT_FALSE(SetAffinity(cpus));
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(AffinityCpus(), all);
  }
}

TEST(UsableCoresTest, JoinsTheCoresOfBoundProcesses) {
  std::vector<int> cpus = AffinityCpus();
  cpus.resize(std::min<size_t>(cpus.size(), 4));
  std::vector<pid_t> children;
  for (const int cpu : cpus) {
    int bound[2];
    ASSERT_EQ(pipe(bound), 0);
    children.push_back(fork());
    if (children.back() == 0) {
      SetAffinity(std::span(&cpu, 1));
      close(bound[1]);
      while (true) pause();
    }
    close(bound[1]);
    char end = 0;
    EXPECT_EQ(read(bound[0], &end, 1), 0);  // Returns once it is bound.
    close(bound[0]);
    EXPECT_EQ(AffinityCpus(children.back()), std::vector<int>{cpu});
    EXPECT_EQ(UsableCores(std::span(&children.back(), 1)), 1);
  }
  EXPECT_EQ(UsableCores(children),
            std::min<int>(static_cast<int>(cpus.size()), UsableCores()));
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(UsableCores(children), 1);
}

}  // namespace
}  // namespace lockstep
