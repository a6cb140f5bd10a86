// Programs in the place of Python: right, wrong, dead and silent ones.
#include "benchmarks/torch_process.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/fake_python.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
constexpr char kReady[] = "echo lockstep: ready 2.1.0 and more; ";

absl::StatusOr<TorchProcess> Start(const std::vector<std::string>& pythons,
                                   absl::Duration timeout = absl::Minutes(1)) {
  return TorchProcess::Start(pythons, "script", absl::Now() + timeout);
}

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

TEST(PythonsToTryTest, TakesOneThatIsNamedAloneElseTheUsualOnes) {
  EXPECT_THAT(PythonsToTry(""), ElementsAre("python3", "/usr/bin/python3"));
  EXPECT_THAT(PythonsToTry("python3.9"), ElementsAre("python3.9"));
  EXPECT_THAT(PythonsToTry("/opt/python"), ElementsAre("/opt/python"));
  // As `bazel run` says where its user is.
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1), 0);
  EXPECT_THAT(PythonsToTry("env/bin/python"),
              ElementsAre("/home/user/env/bin/python"));
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
}

TEST(TorchProcessTest, RunsTheScriptAndAnswers) {
  const std::string python = MakePython(absl::StrCat(
      kReady, "s=$2; while read line; do echo lockstep: $s does $line; done"));
  absl::StatusOr<TorchProcess> process = Start({python});
  ASSERT_THAT(process, IsOk());
  EXPECT_EQ(process->python(), python);
  EXPECT_EQ(process->version(), "2.1.0 and more");
  EXPECT_THAT(process->Ask("1 2", Later()), IsOkAndHolds("script does 1 2"));
  EXPECT_THAT(process->Ask("3", Later()), IsOkAndHolds("script does 3"));
}

TEST(TorchProcessTest, TakesTheFirstThatHasPyTorchOrSaysWhyNone) {
  std::vector<std::string> pythons = {
      "/absent/python", MakePython("echo lockstep: missing No module named x"),
      MakePython("echo no python; exit 3"),
      MakePython("echo lockstep: hello; cat"),
      MakePython(absl::StrCat(kReady, "cat"))};
  EXPECT_THAT(Start(pythons), IsOk());
  pythons.pop_back();
  EXPECT_THAT(
      Start(pythons),
      StatusIs(kUnavailable,
               AllOf(HasSubstr("/absent/python: it ended with exit status 127; "
                               "it said: cannot run it: No such file"),
                     HasSubstr("No module named x; "),
                     HasSubstr("status 3; it said: no python; "),
                     HasSubstr("not understood: hello"))));
}

// One deadline for all: 40 of half a second each would take 20.
TEST(TorchProcessTest, GivesUpAllThatHangAtOneDeadline) {
  const std::vector<std::string> pythons(40, MakePython("sleep 1000"));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(Start(pythons, absl::Milliseconds(500)),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST(TorchProcessTest, NamesThePythonThatHangsOrDies) {
  const std::string hangs = MakePython(absl::StrCat(kReady, "sleep 1000"));
  absl::StatusOr<TorchProcess> process = Start({hangs});
  ASSERT_THAT(process, IsOk());
  EXPECT_THAT(process->Ask("1", absl::Now() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat(hangs, ": it did not answer in time")));
  const std::string dies =
      MakePython(absl::StrCat(kReady, "read line; echo MemoryError; exit 1"));
  absl::StatusOr<TorchProcess> other = Start({dies});
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->Ask("1", Later()),
              StatusIs(kUnavailable,
                       AllOf(HasSubstr(dies), HasSubstr(": MemoryError"))));
}

}  // namespace
}  // namespace lockstep
