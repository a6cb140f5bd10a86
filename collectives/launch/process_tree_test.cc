#include "collectives/launch/process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/launch/testing/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;
using testing::Pair;

class ProcessTreeTest : public testing::Test {
 protected:
  ProcessTreeTest() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &child, nullptr);
  }

  // A child that waits for a signal.
  static pid_t StartIdleChild() {
    const pid_t pid = fork();
    if (pid == 0) {
      while (true) pause();
    }
    return pid;
  }
};

TEST_F(ProcessTreeTest, ListsOwnChildrenOnly) {
  EXPECT_THAT(ListChildren(getpid()), IsOkAndHolds(ElementsAre()));
  const pid_t child = StartIdleChild();
  EXPECT_THAT(ListChildren(getpid()), IsOkAndHolds(ElementsAre(child)));
  EXPECT_THAT(ListChildren(child), IsOkAndHolds(ElementsAre()));
  EXPECT_THAT(ListChildren(getppid()), IsOkAndHolds(Contains(getpid())));
  EXPECT_THAT(ListChildren(getppid()), IsOkAndHolds(Not(Contains(child))));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(ProcessTreeTest, ReportsEndsAndSparesOthers) {
  const pid_t spared = StartIdleChild();
  const pid_t child = StartIdleChild();
  std::vector<std::pair<pid_t, int>> ended;
  EXPECT_THAT(KillChildren(std::vector<pid_t>{spared}, kTestDeadline,
                           [&](pid_t pid, int status) {
                             ended.push_back({pid, status});
                           }),
              IsOk());
  EXPECT_THAT(ended, ElementsAre(Pair(child, SIGKILL)));
  EXPECT_EQ(waitpid(spared, nullptr, WNOHANG), 0);  // It lives.
  EXPECT_THAT(KillChildren({}, kTestDeadline, [](pid_t, int) {}), IsOk());
  EXPECT_EQ(waitpid(spared, nullptr, WNOHANG), -1);  // It is gone, and reaped.
}

TEST_F(ProcessTreeTest, EndsDescendantsInOtherSessions) {
  ChildProcess tree({"sh", "-c",
                     "setsid sh -c 'trap \"\" TERM; setsid sleep 1000 & "
                     "echo ready; wait' & (setsid sleep 1000 &) ; sleep 1000"});
  ASSERT_EQ(tree.ReadLine(), "ready");
  ASSERT_TRUE(tree.AwaitMarked([](int count) { return count >= 5; }));
  EXPECT_THAT(KillChildren({}, kTestDeadline, [](pid_t, int) {}), IsOk());
  EXPECT_THAT(tree.Marked(), ElementsAre());
}

}  // namespace
}  // namespace lockstep
