// Processes that live, that ended, and that have another's number.
#include "collectives/rendezvous/process_identity.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
