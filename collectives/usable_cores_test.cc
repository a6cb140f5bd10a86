#include "collectives/usable_cores.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

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
