// Tests how ranks of a `tcp` group learn that a rank failed in a Split.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::MatchesRegex;

// Makes system calls with this number end in `action`, from now on in this
// process.
void ReplaceSystemCall(int number, uint32_t action) {
  sock_filter filter[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(number)},
      {BPF_RET | BPF_K, 0, 0, action},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program = {std::size(filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(1);
  }
}

// One of two ranks, which are processes, fails. The new group has them in
// reverse order.
TEST(TcpSplitTest, WhatFailsInASplitIsToldOfTheRankByItsNumber) {
  if (!IsBuilt(Backend::kTcp)) GTEST_SKIP() << "without OpenSSL";
  const struct {
    int rank;
    int system_call;
    uint32_t action;
    const char* told;
  } cases[] = {
      {0, SYS_socket, SECCOMP_RET_ERRNO | EMFILE,
       "rank 0: cannot listen at 127.0.0.1: Too many open files"},
      {0, SYS_connect, SECCOMP_RET_KILL_PROCESS,
       "rank 0 .pid [0-9]+. died .seen by rank 1 .*"},
      {1, SYS_accept4, SECCOMP_RET_ERRNO | EMFILE,
       "in the new group of color 7: rank 0: cannot take connections: Too many "
       "open files"},
  };
  for (const auto& test : cases) {
    const auto statuses = RunRanks(Backend::kTcp, 2, [&](Communicator& group) {
      if (group.rank() == test.rank) {
        ReplaceSystemCall(test.system_call, test.action);
      }
      return group.Split(7, -group.rank()).status();
    });
    EXPECT_THAT(std::string(statuses[1 - test.rank].message()),
                MatchesRegex(test.told));
  }
}

}  // namespace
}  // namespace lockstep
