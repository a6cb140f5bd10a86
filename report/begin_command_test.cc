// What ends a command at once, and with which status.
#include "report/begin_command.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "gtest/gtest.h"
#include "report/command_status.h"

ABSL_FLAG(int, ranks, 2, "a flag of the command");

namespace lockstep {
namespace {

using testing::internal::CaptureStderr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStderr;
using testing::internal::GetCapturedStdout;

struct Began {
  std::optional<int> status;
  std::string out;
  std::string err;
};

Began Begin(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/bin/program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  CaptureStdout();
  CaptureStderr();
  Began began;
  began.status = BeginCommand("command", "the usage\n", argv);
  began.out = GetCapturedStdout();
  began.err = GetCapturedStderr();
  return began;
}

class BeginCommandTest : public testing::Test {
 private:
  absl::FlagSaver flags_;
};

TEST_F(BeginCommandTest, GoesOnWithTheFlagsSet) {
  const Began began = Begin({"--ranks=5"});
  EXPECT_EQ(began.status, std::nullopt);
  EXPECT_EQ(began.out + began.err, "");
  EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5);
}

TEST_F(BeginCommandTest, PrintsTheUsageForHelp) {
  const Began began = Begin({"--ranks=5", "--help"});
  EXPECT_EQ(began.status, 0);
  EXPECT_EQ(began.out, "the usage\n");
  EXPECT_EQ(began.err, "");
}

TEST_F(BeginCommandTest, NamesWhatIsNoFlag) {
  for (const std::string wrong : {"--rank=5", "--ranks=five", "ranks"}) {
    const Began began = Begin({wrong});
    EXPECT_EQ(began.status, kUsageError);
    EXPECT_EQ(began.out, "");
    EXPECT_EQ(began.err.find("command: "), 0u) << began.err;
    EXPECT_NE(began.err.find(wrong.substr(0, wrong.find('='))),
              std::string::npos)
        << began.err;
    EXPECT_EQ(began.err.find('\n'), began.err.size() - 1) << began.err;
  }
}

}  // namespace
}  // namespace lockstep
