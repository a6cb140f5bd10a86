#include "collectives/process_stat.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
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

}  // namespace
}  // namespace lockstep
